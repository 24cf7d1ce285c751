"""Measure the training time lost to a checkpoint, and the time to resume from one, compared with PyTorch's own functions.

    python -m benchmarks.checkpoint                            about 15 minutes, 7 GB of disk, 7 GB of memory
    python -m benchmarks.checkpoint --quick --rounds 3         half a minute with a small model; no verdict
    python -m benchmarks.checkpoint --bar --rounds 26          only the variants of the bar, 15 minutes
    python -m benchmarks.checkpoint --device cuda              model and optimizer on a GPU
    python -m benchmarks.checkpoint --bar --threads 2          training uses both of two cores; there is no bar for this

The state is a transformer of 100 M parameters with AdamW, 1.2 GB. Time lost: the wall time of the call and of the N steps after it until
everything is written, minus the time of N steps without a save. Those are measured just before the call and just after the writing, since
the speed of a shared machine changes within seconds. So a thread that slows training while it writes is included. The first save of each
kind, whose host memory is fresh, is listed separately. One thread trains and a second core is free, or a GPU trains; without a free core
hashing and writing would take their time from training in every variant. Every variant flushes to the disk. A save that does nothing is the
control. Bar: linnaeus loses at most 0.10 of the time that `torch.save` in the loop costs.

Resuming: the time from a checkpoint in the file cache until model and optimizer contain its values. linnaeus hashes every byte, the peers
do not.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from benchmarks.interleaved import Bar, arguments, conclude, measure, report
from linnaeus.checkpoint import CheckpointWriter, LoadedCheckpoint, load_checkpoint, verify

CONTROL = "nothing, a control"
SYNC, RESUME_PEER = "torch.save + fsync", "torch.load + load_state_dict"
BARS = [Bar("linnaeus", SYNC, 0.10)]
BATCH, TOKENS, CLASSES = 2, 16, 1000
SIZES = {False: (12, 832, 1.0), True: (2, 128, 0.02)}  # quick: (layers, width, seconds of the steps beside a save)
BESIDE = 4  # steps at least before the call, and as many after the writing, that tell how long one takes without a save
CHARGED = 4  # at least so many steps after the call are charged to it, even if nothing is being written
NEEDED = 12 << 30  # bytes of free disk, twice what is written


class Trainer:
    """A model, its optimizer, and training steps on fixed data. `beside`: least seconds of steps timed before and after each save."""

    def __init__(self, layers: int, width: int, beside: float, device: torch.device) -> None:
        torch.manual_seed(0)
        self.beside, self.device = beside, device
        layer = nn.TransformerEncoderLayer(width, width // 64 or 4, 4 * width, dropout=0.0, batch_first=True)
        self.model = nn.Sequential(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, CLASSES)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.inputs, self.labels = torch.randn(BATCH, TOKENS, width, device=device), torch.randint(CLASSES, (BATCH,), device=device)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        for _ in range(3):
            self.step()

    def step(self) -> float:
        """Make one training step. Return its wall time in seconds."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.inputs).mean(1), self.labels)
        loss.backward()
        self.optimizer.step()
        self.finish()
        return time.perf_counter() - start

    def finish(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def restore(self, found: LoadedCheckpoint) -> None:
        """Copy the values of a checkpoint into the model and the optimizer, as a run of linnaeus does."""
        self.model.load_state_dict(found.model_state)
        own, saved = self.optimizer.state_dict()["state"], found.training_state["optimizer"]["state"]
        for parameter, kept in own.items():
            for name, tensor in kept.items():
                tensor.copy_(saved[parameter][name])
        self.finish()


class Saver:
    """A way to save a checkpoint. This base class saves nothing and serves as the control.

    Calling it saves. `busy` returns True while something is being written in the background. `settle` waits for the writing and raises its
    error. `close` frees memory that is reused between saves."""

    def __call__(self) -> None: ...

    def busy(self) -> bool:
        return False

    def settle(self) -> None: ...

    def close(self) -> None: ...


class Ours(Saver):
    """Saver that uses the checkpoint writer of linnaeus."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        folder.mkdir()
        self.trainer, self.step = trainer, 0
        self.writer = CheckpointWriter(folder, keep_last=1, keep_best=0)
        trainer.optimizer.register_step_pre_hook(lambda *_: self.writer.wait_until_copied())  # as a run does before an update

    def __call__(self) -> None:
        self.step += 1
        state = self.trainer.state()
        self.writer.save(
            self.step,
            model_state=state["model"],
            training_state={"optimizer": state["optimizer"]},
            state={"global_step": self.step},
            deferred=state["optimizer"]["state"],
        )

    def busy(self) -> bool:
        return any(thread.name == "checkpoint" for thread in threading.enumerate())

    def settle(self) -> None:
        self.writer.wait()
        if self.writer.failure is not None:
            raise RuntimeError(self.writer.failure)

    def close(self) -> None:
        self.writer.close()


class TorchSave(Saver):
    """Saver of most training scripts: `torch.save` to a temporary file, flush, rename."""

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
    """Saver that uses `torch.distributed.checkpoint.async_save` as documented. `cached`: reuse the host copy for the next save."""

    def __init__(self, trainer: Trainer, folder: Path, cached: bool) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        folder.mkdir()
        self.trainer, self.folder, self.number = trainer, folder, 0
        self.pending: Any = None
        cuda = trainer.device.type == "cuda"
        kept = StagingOptions(use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda)
        self.options: dict[str, Any] = {"async_stager": DefaultStager(kept)} if cached else {}

    def __call__(self) -> None:
        self.number += 1
        self.pending = dcp.async_save(self.trainer.state(), checkpoint_id=self.folder / str(self.number), **self.options)

    def busy(self) -> bool:
        return not self._upload().done()

    def settle(self) -> None:
        self._upload().result()
        shutil.rmtree(self.folder / str(self.number - 1), ignore_errors=True)

    def _upload(self) -> Any:
        return getattr(self.pending, "upload_completion", self.pending)


@dataclass(frozen=True)
class Window:
    """Wall times in seconds around one save: of the steps before it, of the call, of the steps during the writing, and of the steps
    after it."""

    before: list[float]
    call: float
    during: list[float]
    after: list[float]

    @property
    def lost(self) -> float:
        return self.call + sum(self.during) - len(self.during) * statistics.fmean(self.before + self.after)

    @property
    def written(self) -> float:
        """Seconds from the call to the end of the step in which the writing ended."""
        return self.call + sum(self.during)

    def numbers(self) -> dict[str, float]:
        """Return the times for the JSON file."""
        steps = {"step_before": statistics.fmean(self.before), "step_after": statistics.fmean(self.after)}
        return {"lost": self.lost, "call": self.call, "written": self.written, "steps_during": len(self.during)} | steps


def window(trainer: Trainer, save: Saver) -> Window:
    before = steps_without_a_save(trainer)
    start = time.perf_counter()
    save()
    call = time.perf_counter() - start
    during: list[float] = []
    while len(during) < CHARGED or save.busy():
        during.append(trainer.step())
    save.settle()
    return Window(before, call, during, steps_without_a_save(trainer))


def steps_without_a_save(trainer: Trainer) -> list[float]:
    """Make at least `BESIDE` training steps, for at least `trainer.beside` seconds. Return the seconds of each."""
    taken: list[float] = []
    while len(taken) < BESIDE or sum(taken) < trainer.beside:
        taken.append(trainer.step())
    return taken


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model and little to write")
    parser.add_argument("--bar", action="store_true", help="ours, torch.save and the control alone, and nothing of going on")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="a folder on the disk to measure")
    parser.add_argument("--threads", type=int, default=1, help="threads that train; there is no bar for more than one")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where model and optimizer are")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device=cuda: no CUDA device here")
    if not options.quick and shutil.disk_usage(options.folder).free < NEEDED:
        parser.error(f"--folder={options.folder} has less than {NEEDED >> 30} GiB free; name one on another disk")
    if options.threads < 1:
        parser.error(f"--threads={options.threads}: at least 1")
    torch.set_num_threads(options.threads)
    with process_group(), tempfile.TemporaryDirectory(dir=options.folder) as root:
        trainer = Trainer(*SIZES[options.quick], torch.device(options.device))
        where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
        threads = f", {options.threads} threads" if options.threads > 1 else ""
        what = f"{trainer.parameters / 1e6:.0f} M parameters with AdamW state, {where}{threads}, {options.rounds} rounds, wall time"
        folder = Path(root)
        tables = [saving(trainer, folder, options.rounds, what, options.bar)]
        if not options.bar:
            tables.append(resuming(trainer, folder, options.rounds, what))
    return conclude(tables, options.json)


@contextmanager
def process_group() -> Iterator[None]:
    """Return a context manager with a process group of one process, which `async_save` requires."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def saving(trainer: Trainer, folder: Path, rounds: int, what: str, bar: bool) -> dict[str, Any]:
    """Measure the training time lost to one save with each saver, and return the table. `bar`: only with the savers of the bar."""
    savers = {CONTROL: Saver(), "linnaeus": Ours(trainer, folder / "ours"), SYNC: TorchSave(trainer, folder / "sync")}
    if not bar:
        savers["DCP async_save"] = Distributed(trainer, folder / "dcp", cached=False)
        if not torch.__version__.startswith("2.11."):  # where a stager serves once
            savers["DCP async_save, host copy kept"] = Distributed(trainer, folder / "cached", cached=True)
    windows: dict[str, list[Window]] = {name: [] for name in savers}

    def lost(name: str) -> float:
        windows[name].append(window(trainer, savers[name]))
        return windows[name][-1].lost

    seconds = measure({name: lambda number, name=name: lost(name) for name in savers}, rounds)  # type: ignore[misc]
    for saver in savers.values():
        saver.close()
    steps = [taken for found in windows.values() for each in found for taken in each.before + each.after]
    notes = {
        name: f"call {statistics.median(each.call for each in found[-rounds:]):.3f} s, first {found[0].call:.2f} s, "
        f"written after {statistics.median(each.written for each in found[-rounds:]):.1f} s"
        for name, found in windows.items()
    }
    low, median, high = np.quantile(steps, [0.05, 0.5, 0.95])
    print(f"a step without a save: {median:.3f} s (nine of ten between {low:.3f} and {high:.3f})")
    bars = BARS if torch.get_num_threads() == 1 else []
    table = report(f"time lost to a checkpoint, {what}", seconds, SYNC, bars, (1, "s"), notes)
    return table | {"windows": {name: [each.numbers() for each in found] for name, found in windows.items()}}


def resuming(trainer: Trainer, folder: Path, rounds: int, what: str) -> dict[str, Any]:
    """Measure the time to load the checkpoints that `saving` has written into model and optimizer, and return the table."""
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
    """Check that after `restore` the model and the optimizer have the values of the checkpoint at `path`."""
    found = load_checkpoint(path)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.zero_()
    trainer.restore(found)
    live: dict[str, Tensor] = trainer.model.state_dict()
    assert all(torch.equal(live[name].cpu(), value) for name, value in found.model_state.items())
    state = trainer.optimizer.state_dict()["state"]
    assert torch.equal(state[0]["exp_avg"].cpu(), found.training_state["optimizer"]["state"][0]["exp_avg"])


if __name__ == "__main__":
    sys.exit(main())
