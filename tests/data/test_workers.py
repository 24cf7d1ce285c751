"""Worker processes pass batches through shared memory: order, views, reuse, errors and ends of workers."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from linnaeus.data.loader import InProcessLoader
from linnaeus.data.sampler import PositionSampler
from linnaeus.data.samples import SampleIndex
from linnaeus.data.slots import SharedSlots
from linnaeus.data.workers import WorkerLoader, WorkerPool
from linnaeus.errors import ConfigError, RunFailed
from tests import runs


class Numbers:
    """Batches of the given numbers, and errors for some of them."""

    def __getitems__(self, indices: list[int]) -> Any:
        if indices == [-1]:
            raise OSError(errno.EIO, "disk", "photo.jpg")
        if indices == [-2]:
            raise ConfigError("data: no")
        if indices == [-3]:
            raise type("Local", (ValueError,), {})("cannot be pickled")
        return {"x": torch.tensor(indices).repeat_interleave(1000), "sample": torch.tensor(indices), "name": f"{indices[0]}"}


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool([Numbers(), Numbers()], 2)  # type: ignore[list-item]
    yield pool
    pool.close()


def loader(pool: WorkerPool, batches: list[list[int]], prefetch: int = 2, number: int = 0) -> WorkerLoader:
    return WorkerLoader(pool, pool.datasets[number], batches, prefetch)


def test_a_value_arrives_as_it_was_written() -> None:
    slots, last = SharedSlots(), torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    value = {
        "image": last,
        "flags": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "expanded": torch.arange(3)[None].expand(4, 3),
        "part": torch.arange(12).reshape(3, 4)[:, 1:3],
        "one": torch.arange(10).reshape(2, 5)[:1, 3],
        "nested": [{"array": np.arange(5, dtype=np.int16)}, ("text", None, 7)],
        "index": SampleIndex(1, 2, 3, 4),
    }
    found, _ = slots.read(3, slots.write(3, value))
    slots.close()
    assert list(found) == list(value)
    for name, tensor in value.items():
        if isinstance(tensor, torch.Tensor):
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    assert found["image"].stride() == last.stride(), "channels last"
    assert found["nested"][0]["array"].tolist() == [0, 1, 2, 3, 4] and found["nested"][0]["array"].dtype == np.int16
    assert found["nested"][1] == ("text", None, 7) and found["index"] == value["index"]


def test_batches_of_all_sizes_arrive_in_order_and_their_memory_is_used_again(pool: WorkerPool) -> None:
    sizes = [[number] * (1 + number % 7) for number in range(40)]
    for indices, batch in zip(sizes, loader(pool, sizes), strict=True):
        assert batch["sample"].tolist() == indices and batch["name"] == str(indices[0])
        assert len(batch["x"]) == 1000 * len(indices) and (batch["x"] == indices[0]).all()
    assert pool._slots_made <= 2 * 2 + 2, "four submitted batches and the two that were in use"


def test_a_batch_that_is_kept_is_not_overwritten(pool: WorkerPool) -> None:
    kept = [batch["x"][:5] for batch in loader(pool, [[number] for number in range(20)])]
    assert [part.unique().tolist() for part in kept] == [[number] for number in range(20)]
    made = pool._slots_made
    del kept
    assert sorted(pool._free) == list(range(made)), "all memory is free again"


def test_two_datasets_are_read_in_turn_and_an_iteration_may_be_abandoned(pool: WorkerPool) -> None:
    training = iter(loader(pool, [[number] for number in range(9)], prefetch=3))
    first = [int(next(training)["sample"][0]) for _ in range(2)]
    other = [int(batch["sample"][0]) for batch in loader(pool, [[50], [51], [52]], number=1)]
    rest = [int(batch["sample"][0]) for batch in training]
    assert first + rest == list(range(9)) and other == [50, 51, 52]
    for batch in loader(pool, [[number] for number in range(30)]):
        if int(batch["sample"][0]) == 3:
            break
    del batch
    assert [int(batch["sample"][0]) for batch in loader(pool, [[7], [8]])] == [7, 8]
    assert pool._slots_made <= 12, "the memory of abandoned batches is used again"


class Positions:
    """Batches of the (epoch, position, sample) of each index."""

    def __getitems__(self, indices: list[SampleIndex]) -> Any:
        return {"read": torch.tensor([[index.epoch, index.position, index.sample] for index in indices])}


@pytest.fixture
def epochs() -> Iterator[tuple[WorkerLoader, PositionSampler, list[list[SampleIndex]]]]:
    """Loader of 2.5 epochs of 5 updates of one batch, its sampler, and the indices of each batch requested from the workers so far."""
    pool = WorkerPool([Positions()], 2)  # type: ignore[list-item]
    sampler, requested, submit = PositionSampler(18, 0, 4, 4, steps_per_epoch=5, total_steps=12), [], pool.submit

    def recorded(dataset: int, indices: Any) -> int:
        requested.append(list(indices))
        return submit(dataset, indices)

    pool.submit = recorded  # type: ignore[method-assign]
    yield WorkerLoader(pool, pool.datasets[0], sampler, 2), sampler, requested
    pool.close()


def test_the_next_epoch_is_read_ahead_and_no_batch_twice(epochs) -> None:
    loader, sampler, requested = epochs
    plain, expected = InProcessLoader(Positions(), sampler), []  # type: ignore[arg-type]
    for epoch, ahead in ((0, 4), (1, 2), (2, 0)):  # two workers with two batches each; the last epoch has 2 updates
        sampler.set_epoch(epoch)
        for found, other in zip(loader, plain, strict=True):
            assert torch.equal(found["read"], other["read"])
        expected += list(sampler)
        assert requested[: len(expected)] == expected and len(requested) == len(expected) + ahead
    assert len(expected) == 12 and not loader.pool._tasks, "the run has ended: nothing more is read"


@pytest.mark.parametrize(("epoch", "start"), [(0, 3), (1, 1), (2, 0)])
def test_batches_read_ahead_are_discarded_if_the_run_continues_elsewhere(epochs, epoch, start) -> None:
    loader, sampler, _ = epochs
    assert len(list(loader)) == 5 and loader._ahead is not None
    sampler.set_epoch(epoch, start)
    for found, other in zip(loader, InProcessLoader(Positions(), sampler), strict=True):  # type: ignore[arg-type]
        assert torch.equal(found["read"], other["read"])
    assert loader.pool._slots_made <= 4 + 2 + 4, "memory of discarded batches is used again"


def test_errors_arrive_with_type_and_message(pool: WorkerPool) -> None:
    batches = iter(loader(pool, [[1], [-1]]))
    next(batches)
    with pytest.raises(OSError, match=r"disk: 'photo\.jpg'") as unreadable:
        next(batches)
    assert unreadable.value.errno == errno.EIO and "__getitems__" in unreadable.value.__notes__[0], "with the place in the worker"
    with pytest.raises(ConfigError, match=r"^data: no$"):
        next(iter(loader(pool, [[-2]])))
    with pytest.raises(RuntimeError, match="Local: cannot be pickled"):
        next(iter(loader(pool, [[-3]])))
    assert next(iter(loader(pool, [[4]])))["name"] == "4", "the worker continues"


def test_a_killed_worker_is_noticed_in_one_line(pool: WorkerPool) -> None:
    batches = iter(loader(pool, [[number] for number in range(500)]))
    next(batches)
    os.kill(pool._processes[1].pid or 0, signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"^loader worker 2 of trainer\.num_workers=2 was killed by SIGKILL; .*out of memory.* checkpoint$"):
        for _ in batches:
            pass


def test_workers_ignore_requests_to_stop_and_end_with_the_pool(pool: WorkerPool) -> None:
    batches = iter(loader(pool, [[number] for number in range(50)]))
    next(batches)
    for process in pool._processes:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(process.pid or 0, number)
    assert len(list(batches)) == 49
    processes = list(pool._processes)
    pool.close()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd of Linux")
def test_the_memory_has_no_name_that_could_outlive_the_processes(pool: WorkerPool) -> None:
    before = set(os.listdir("/dev/shm"))
    assert len(list(loader(pool, [[number] for number in range(5)]))) == 5
    assert os.readlink(f"/proc/self/fd/{pool._slots._file}") == "/memfd:batches (deleted)"
    assert set(os.listdir("/dev/shm")) <= before


def test_memory_for_a_gpu_is_page_locked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[int] = []

    def register(address: int, size: int, flags: int) -> int:
        locked.append(address)
        return 0 if len(locked) < 3 else 2

    runtime = SimpleNamespace(cudaHostRegister=register, cudaError=SimpleNamespace(success=0))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    pool = WorkerPool([Numbers()], 1, pinned=True)  # type: ignore[list-item]
    try:
        for _ in range(3):
            assert len(list(loader(pool, [[number] * 4 for number in range(6)], prefetch=1))) == 6
        assert len(locked) == len(set(locked)) <= pool._slots_made
        kept = [batch["x"] for batch in loader(pool, [[number] * 4 for number in range(6)], prefetch=1)]
        assert len(locked) == 3 and not pool.pinned and len(kept) == 6, "what cannot be locked is used as it is"
    finally:
        pool.close()


def test_a_run_forks_its_workers_before_it_starts_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, started, fork = set(threading.enumerate()), list[set[threading.Thread]](), WorkerPool.start

    def start(pool: WorkerPool) -> None:
        if not pool._processes:
            started.append(set(threading.enumerate()) - before)
        fork(pool)

    monkeypatch.setattr(WorkerPool, "start", start)
    run = runs.run("vectors", tmp_path, "trainer.num_workers=1", "trainer.length=3steps", "schedule.validate=[1steps]")
    assert started == [set()], "once, for training and validation"
    assert runs.summary(run)["status"] == "finished"
