"""What a checkpoint costs training, and how long it takes to go on from one, beside what PyTorch offers.

    python -m benchmarks.checkpoint                            about 25 minutes, 7 GB of disk, 7 GB of memory
    python -m benchmarks.checkpoint --quick --rounds 3         half a minute with a small model; no verdict

A transformer of 100 M parameters and its AdamW state, 1.2 GB. Time lost: the wall time of N steps with one save after the first,
minus that of N steps without one, of the same round, so that a thread which writes beside training and slows it is charged for
that; the window is longer than the writing takes. The first save of each kind, whose host memory is fresh, stands apart. One thread
trains and a second core is free. Everyone flushes to the disk. Bar: we lose at most 0.10 of what `torch.save` in the loop costs.

Going on: a checkpoint in the file cache, until model and optimizer hold its values. Ours hashes every byte, which the peers do not.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from benchmarks.interleaved import Bar, Seconds, arguments, conclude, measure, report
from linnaeus.checkpoint import CheckpointWriter, LoadedCheckpoint, load_checkpoint, verify

SYNC, RESUME_PEER = "torch.save + fsync", "torch.load + load_state_dict"
BARS = [Bar("linnaeus", SYNC, 0.10)]
BATCH, TOKENS, CLASSES = 2, 16, 1000
SIZES = {False: (12, 832, 16), True: (3, 256, 30)}  # quick: (layers, width, steps of a window)
NEEDED = 12 << 30  # bytes of free disk, twice what is written


class Trainer:
    """A model, its optimizer, and steps on fixed data."""

    def __init__(self, layers: int, width: int) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, width // 64 or 4, 4 * width, dropout=0.0, batch_first=True)
        self.model = nn.Sequential(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, CLASSES))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.inputs, self.labels = torch.randn(BATCH, TOKENS, width), torch.randint(CLASSES, (BATCH,))
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.steps(3)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.inputs).mean(1), self.labels)
            loss.backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def restore(self, found: LoadedCheckpoint) -> None:
        """Copy values into the live tensors, as a run of ours does."""
        self.model.load_state_dict(found.model_state)
        own, saved = self.optimizer.state_dict()["state"], found.training_state["optimizer"]["state"]
        for parameter, kept in own.items():
            for name, tensor in kept.items():
                tensor.copy_(saved[parameter][name])


class Saver:
    """A way to save: called in the loop; `settle` waits until the disk has it."""

    def __call__(self) -> None: ...

    def settle(self) -> None: ...


class Ours(Saver):
    """The writer of a run."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        folder.mkdir()
        self.trainer, self.step = trainer, 0
        self.writer = CheckpointWriter(folder, keep_last=1, keep_best=0)

    def __call__(self) -> None:
        self.step += 1
        state = self.trainer.state()
        self.writer.save(
            self.step,
            model_state=state["model"],
            training_state={"optimizer": state["optimizer"]},
            state={"global_step": self.step},
        )

    def settle(self) -> None:
        self.writer.wait()
        if self.writer.failure is not None:
            raise RuntimeError(self.writer.failure)


class TorchSave(Saver):
    """What most training scripts do, flushed, and put in place by a rename."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        folder.mkdir()
        self.trainer, self.path = trainer, folder / "checkpoint.pt"

    def __call__(self) -> None:
        temporary = self.path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            torch.save(self.trainer.state(), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)


class Distributed(Saver):
    """`torch.distributed.checkpoint.async_save` as documented; `cached` keeps its host copy for the next one."""

    def __init__(self, trainer: Trainer, folder: Path, cached: bool) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        folder.mkdir()
        self.trainer, self.folder, self.number = trainer, folder, 0
        self.pending: Any = None
        kept = StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False)
        self.options: dict[str, Any] = {"async_stager": DefaultStager(kept)} if cached else {}

    def __call__(self) -> None:
        self.number += 1
        self.pending = dcp.async_save(self.trainer.state(), checkpoint_id=self.folder / str(self.number), **self.options)

    def settle(self) -> None:
        if self.pending is not None:
            getattr(self.pending, "upload_completion", self.pending).result()
            shutil.rmtree(self.folder / str(self.number - 1), ignore_errors=True)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model and little to write")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="a folder on the disk to measure")
    options = parser.parse_args()
    if not options.quick and shutil.disk_usage(options.folder).free < NEEDED:
        parser.error(f"--folder={options.folder} has less than {NEEDED >> 30} GiB free; name one on another disk")
    torch.set_num_threads(1)
    layers, width, steps = SIZES[options.quick]
    with process_group(), tempfile.TemporaryDirectory(dir=options.folder) as root:
        trainer = Trainer(layers, width)
        folder, what = Path(root), f"{trainer.parameters / 1e6:.0f} M parameters with AdamW state, {options.rounds} rounds, wall time"
        tables = [saving(trainer, folder, steps, options.rounds, what), resuming(trainer, folder, options.rounds, what)]
    return conclude(tables, options.json)


@contextmanager
def process_group() -> Iterator[None]:
    """Of one process, which `async_save` wants."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def saving(trainer: Trainer, folder: Path, steps: int, rounds: int, what: str) -> dict[str, Any]:
    """Time lost to one save, of each kind."""
    savers: dict[str, Saver] = {
        "linnaeus": Ours(trainer, folder / "ours"),
        SYNC: TorchSave(trainer, folder / "sync"),
        "DCP async_save": Distributed(trainer, folder / "dcp", cached=False),
        "DCP async_save, host copy kept": Distributed(trainer, folder / "cached", cached=True),
    }
    blocked: Seconds = {name: [] for name in savers}
    settled: Seconds = {name: [] for name in savers}

    def window(name: str, save: Saver) -> float:
        start = time.perf_counter()
        trainer.steps(1)
        called = time.perf_counter()
        save()
        blocked[name].append(time.perf_counter() - called)
        trainer.steps(steps - 1)
        end = time.perf_counter()
        save.settle()
        settled[name].append(time.perf_counter() - called)
        return end - start

    def without(number: int) -> float:
        start = time.perf_counter()
        trainer.steps(steps)
        return time.perf_counter() - start

    variants: dict[str, Callable[[int], float]] = {"no save": without}
    for name, saver in savers.items():
        variants[name] = lambda number, name=name, saver=saver: window(name, saver)  # type: ignore[misc]
    times = measure(variants, rounds)
    plain = times.pop("no save")
    lost = {name: [taken - alone for taken, alone in zip(found, plain, strict=True)] for name, found in times.items()}
    notes = {
        name: f"call {statistics.median(blocked[name][1:]):.3f} s, first {blocked[name][0]:.2f} s, "
        f"on the disk after {statistics.median(settled[name][1:]):.1f} s"
        for name in savers
    }
    print(f"{steps} steps without a save: {statistics.median(plain):.2f} s ({min(plain):.2f} to {max(plain):.2f})")
    table = report(f"time lost to a checkpoint, {what}", lost, SYNC, BARS, (1, "s"), notes)
    return table | {"plain": plain, "blocked": blocked, "settled": settled}


def resuming(trainer: Trainer, folder: Path, rounds: int, what: str) -> dict[str, Any]:
    """Time until model and optimizer hold the values of the checkpoints that `saving` has left."""
    [ours] = (folder / "ours").iterdir()
    theirs, hashing = folder / "sync" / "checkpoint.pt", []

    def linnaeus() -> None:
        trainer.restore(load_checkpoint(ours))

    def with_torch(**how: Any) -> None:
        found = torch.load(theirs, weights_only=True, **how)
        trainer.model.load_state_dict(found["model"])
        trainer.optimizer.load_state_dict(found["optimizer"])

    def distributed() -> None:
        state = trainer.state()
        dcp.load(state, checkpoint_id=newest(folder / "dcp"))
        trainer.model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])

    def hashes() -> None:
        start = time.perf_counter()
        verify(ours)
        hashing.append(time.perf_counter() - start)

    variants = {
        "linnaeus": linnaeus,
        "linnaeus, hashed by another rank": lambda: trainer.restore(load_checkpoint(ours, verified=True)),
        RESUME_PEER: with_torch,
        "the same with mmap=True": lambda: with_torch(mmap=True),
        "DCP load": distributed,
    }
    seconds = measure({name: timed(act) for name, act in variants.items()} | {"hashing": timed(hashes)}, rounds)
    seconds.pop("hashing")
    check_restored(trainer, ours)
    notes = {"linnaeus": f"of it hashing {statistics.median(hashing[1:]):.2f} s"}
    return report(f"time to go on from a checkpoint, {what}", seconds, RESUME_PEER, [], (1, "s"), notes)


def timed(act: Callable[[], object]) -> Callable[[int], float]:
    def taken(number: int) -> float:
        start = time.perf_counter()
        act()
        return time.perf_counter() - start

    return taken


def newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: int(path.name))


def check_restored(trainer: Trainer, path: Path) -> None:
    """What was timed did its work: after `restore` the live values are those of the file."""
    found = load_checkpoint(path)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.zero_()
    trainer.restore(found)
    live: dict[str, Tensor] = trainer.model.state_dict()
    assert all(torch.equal(live[name], value) for name, value in found.model_state.items())
    state = trainer.optimizer.state_dict()["state"]
    assert torch.equal(state[0]["exp_avg"], found.training_state["optimizer"]["state"][0]["exp_avg"])


if __name__ == "__main__":
    sys.exit(main())
