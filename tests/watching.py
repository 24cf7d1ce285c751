"""Record values of a run, or break parts of it, with context managers.

A job of `tests.runs` lists their names, so they also apply in the processes of a group. They write to `folder`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from linnaeus.distributed import DistributedContext, get_rank_safely, get_world_size
from linnaeus.distributed.synchronisation import RankSync
from linnaeus.optim.update import GradScaler, Update
from linnaeus.train import loop


@contextlib.contextmanager
def first_gradients(folder: Path) -> Iterator[None]:
    """Write the gradients of all parameters at the first update to gradients.pt, in the order of the parameters."""
    original = Update.__call__

    def update(self: Update) -> Any:
        path = folder / "gradients.pt"
        if get_rank_safely() == 0 and not path.exists():
            torch.save([grad.clone() for grad in self.optimizers.gradients()], path)
        return original(self)

    with mock.patch.object(Update, "__call__", update):
        yield


@contextlib.contextmanager
def own_denominators(folder: Path) -> Iterator[None]:
    """Break the law of factorisation, as most trainers do.

    Divide the loss of each micro-batch by the number of its own labels, and the sum over a window by the number of its micro-batches."""
    original = loop.forward_backward

    def forward_backward(t: Any, batch: Any, scales: Any) -> None:
        own = t.workload.valid_counts(batch).clamp(min=1.0)
        original(t, batch, 1 / own / t.sampler.accumulation)

    with mock.patch.object(loop, "forward_backward", forward_backward):
        yield


@contextlib.contextmanager
def inf_on_one_rank(folder: Path) -> Iterator[None]:
    """Make the loss of the last process infinite in the third update. Write the state of each process after each update to rank<r>.pt."""
    original, history = loop.train_one_step, []

    def train_one_step(t: Any, window: Any) -> None:
        broken = t.progress.global_step == 2 and t.context.rank == t.context.world_size - 1
        loss_sums = t.workload.loss_sums
        factor = float("inf") if broken else 1.0
        with mock.patch.object(t.workload, "loss_sums", lambda outputs, batch: loss_sums(outputs, batch) * factor):
            original(t, window)
        history.append(
            {
                "global_step": t.progress.global_step,
                "parameters": torch.cat([p.detach().reshape(-1) for p in t.model.parameters()]).clone(),
                "update": t.update.state_dict(),
                "scale": t.precision.state_dict(),
                "ema": t.ema.state_dict(),
            }
        )

    # an initial scale without overflow
    with mock.patch.object(loop, "train_one_step", train_one_step), mock.patch.object(GradScaler, "INITIAL", 2.0**8):
        yield
    torch.save(history, folder / f"rank{get_rank_safely()}.pt")


@contextlib.contextmanager
def collectives(folder: Path) -> Iterator[None]:
    """Write the names of the collective calls of each process, in order, to calls-rank<r>.txt. The files must be equal."""
    calls: list[str] = []
    with contextlib.ExitStack() as stack:
        for name in ("all_reduce", "all_gather", "broadcast_object", "broadcast", "barrier"):
            original = getattr(DistributedContext, name)

            def counted(self: Any, *args: Any, _name: str = name, _original: Any = original) -> Any:
                calls.append(_name)
                return _original(self, *args)

            stack.enter_context(mock.patch.object(DistributedContext, name, counted))
        yield
    (folder / f"calls-rank{get_rank_safely()}.txt").write_text("\n".join(calls))


@contextlib.contextmanager
def bytes_of_updates(folder: Path) -> Iterator[None]:
    """Write the bytes that this process passes to each collective of `torch.distributed` in its updates to bytes-rank<r>.json: a list of
    {name: bytes}, one for each update. DDP reduces gradients without these functions, unless trainer.deterministic is true."""
    import torch.distributed as dist

    sent: list[dict[str, int]] = []
    inputs = {"all_reduce": 0, "all_gather": 1, "all_gather_into_tensor": 1, "reduce_scatter_tensor": 1, "all_to_all_single": 1}
    inputs |= {"broadcast": 0, "send": 0}
    with contextlib.ExitStack() as stack:
        for name, place in inputs.items():
            original = getattr(dist, name)

            def counted(*args: Any, _name: str = name, _original: Any = original, _place: int = place, **named: Any) -> Any:
                if sent:
                    sent[-1][_name] = sent[-1].get(_name, 0) + args[_place].nbytes
                return _original(*args, **named)

            stack.enter_context(mock.patch.object(dist, name, counted))
        stack.enter_context(around_updates(before=lambda t: sent.append({}), after=lambda t: kept.append(dict(sent[-1]))))
        kept: list[dict[str, int]] = []
        yield
    (folder / f"bytes-rank{get_rank_safely()}.json").write_text(json.dumps(kept))


@contextlib.contextmanager
def around_updates(before: Callable[[Any], None] = lambda t: None, after: Callable[[Any], None] = lambda t: None) -> Iterator[None]:
    """Call `before` and `after` with the `Training`, before and after each update."""
    original = loop.train_one_step

    def train_one_step(t: Any, window: Any) -> None:
        before(t)
        original(t, window)
        after(t)

    with mock.patch.object(loop, "train_one_step", train_one_step):
        yield


def on_last_rank() -> bool:
    """Return True in the process with the highest rank."""
    return get_rank_safely() == get_world_size() - 1


def terminate() -> None:
    """Send SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)


def in_update(step: int, act: Callable[[], None], only_last_rank: bool = False) -> AbstractContextManager[None]:
    """Call `act` during the update that ends at `step`, in every process or only in the last one."""

    def before(t: Any) -> None:
        if t.progress.global_step == step - 1 and (on_last_rank() or not only_last_rank):
            act()

    return around_updates(before)


def stopped_at(step: int) -> AbstractContextManager[None]:
    """Send SIGTERM to this process during the update that ends at `step`."""
    return in_update(step, terminate)


def one_rank_is_stopped(folder: Path) -> AbstractContextManager[None]:
    """Send SIGTERM to the last process during the fifth update."""
    return in_update(5, terminate, only_last_rank=True)


def last_rank_fails(folder: Path) -> AbstractContextManager[None]:
    """Raise an error in the last process in the fifth update."""

    def fail() -> None:
        raise ArithmeticError("an error of this process alone")

    return in_update(5, fail, only_last_rank=True)


def last_rank_hangs(folder: Path) -> AbstractContextManager[None]:
    """Make the last process sleep for 120 s in its fifth update."""
    return in_update(5, lambda: time.sleep(120), only_last_rank=True)


@contextlib.contextmanager
def counted(owner: Any, name: str) -> Iterator[list[Any]]:
    """Yield a list. Each call of `owner.name` in the block appends its positional arguments."""
    original, calls = getattr(owner, name), []

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    with mock.patch.object(owner, name, counting):
        yield calls


@contextlib.contextmanager
def signalled_in_validation(round_: int, only_last_rank: bool = False) -> Iterator[None]:
    """Send SIGTERM to this process at the start of round `round_` of the validation batches of the run, counted from 1."""
    original, rounds = RankSync.start_round, []

    def start_round(self: RankSync, unreadable: bool) -> bool:
        rounds.append(1)
        if len(rounds) == round_ and (on_last_rank() or not only_last_rank):
            terminate()
        return original(self, unreadable)

    with mock.patch.object(RankSync, "start_round", start_round):
        yield


def last_rank_signalled_in_validation(folder: Path) -> AbstractContextManager[None]:
    """Send SIGTERM to the last process in the third round of validation batches."""
    return signalled_in_validation(3, only_last_rank=True)


@contextlib.contextmanager
def unread_by_last_rank(folder: Path, training: bool = True, step: int = 5) -> Iterator[None]:
    """Raise `OSError` when the last process reads data for the update after `step`, or for validation if `training` is False."""
    from tests.vectors.workload import Vectors

    original = Vectors.__getitems__

    def fail(self: Any, indices: Any) -> Any:
        late = indices[0].global_step == step if training else indices[0].position >= 4
        if self.training == training and late and on_last_rank():
            raise OSError("the file server is away")
        return original(self, indices)

    with mock.patch.object(Vectors, "__getitems__", fail):
        yield


def unread_in_validation_by_last_rank(folder: Path) -> AbstractContextManager[None]:
    """Raise `OSError` when the last process reads validation data."""
    return unread_by_last_rank(folder, training=False)


@contextlib.contextmanager
def masks_of_each_rank(folder: Path) -> Iterator[None]:
    """Write the masks of growing connections of this process after each update to masks-rank<r>.pt."""
    history: list[Any] = []
    with around_updates(after=lambda t: history.append({m.name: m.mask.bool() for m in t.growth.masked})):
        yield
    torch.save(history, folder / f"masks-rank{get_rank_safely()}.pt")


@contextlib.contextmanager
def slow_forward(folder: Path) -> Iterator[None]:
    """Give each process a simulated clock for the parts of its updates, which forward moves by 100 ms, on rank 1 by 125 ms. The times that
    have another clock, of data and of the host, are 0."""
    from linnaeus.train.measuring import sections
    from linnaeus.train.measuring.rank_report import RankReport
    from tests.vectors.workload import MLP

    now, forward, own = {"now": 0.0}, MLP.forward, RankReport._own

    def simulated(report: RankReport, t: Any) -> dict[str, float]:
        return own(report, t) | {"data": 0.0, "host": 0.0}

    def slow(model: Any, batch: Any) -> Any:
        now["now"] += 0.125 if get_rank_safely() == 1 else 0.1
        return forward(model, batch)

    clock = mock.patch.object(sections, "clock", lambda: now["now"])
    with mock.patch.object(MLP, "forward", slow), clock, mock.patch.object(RankReport, "_own", simulated):
        yield


@contextlib.contextmanager
def sleeping_forward(folder: Path) -> Iterator[None]:
    """Make forward take 0.4 s, on the last rank 0.5 s."""
    from tests.vectors.workload import MLP

    forward = MLP.forward

    def slow(model: Any, batch: Any) -> Any:
        time.sleep(0.5 if on_last_rank() else 0.4)
        return forward(model, batch)

    with mock.patch.object(MLP, "forward", slow):
        yield


@contextlib.contextmanager
def bad_gradients(folder: Path) -> Iterator[None]:
    """In the last process, multiply the gradient of update 76 by 100 and that of update 96 by NaN. The losses are as usual."""
    from tests.vectors.workload import MLP

    forward, factors, now = MLP.forward, {75: 100.0, 95: float("nan")}, {"step": 0}

    def hooked(model: Any, batch: Any) -> Any:
        found, factor = forward(model, batch), factors.get(now["step"])
        if model.training and factor is not None and on_last_rank():
            found["y"].register_hook(lambda gradient: gradient * factor)
        return found

    count = around_updates(before=lambda t: now.update(step=t.progress.global_step))
    with mock.patch.object(MLP, "forward", hooked), count:
        yield


@contextlib.contextmanager
def slow_loader(folder: Path) -> Iterator[None]:
    """Give each process a simulated clock, which forward moves by 3 s. Reading the data of updates 31 to 45, and of all from 56 on, moves
    it by 9 s in the last process."""
    from linnaeus.data import loader
    from linnaeus.train.measuring.clock import Clock
    from tests.vectors.workload import MLP, Vectors

    now, forward, read = {"now": 0.0}, MLP.forward, Vectors.__getitems__

    def slow(self: Any, indices: Any) -> Any:
        late = 30 <= indices[0].global_step < 45 or indices[0].global_step >= 55
        now["now"] += 9.0 if self.training and late and on_last_rank() else 0.0
        return read(self, indices)

    def timed(model: Any, batch: Any) -> Any:
        now["now"] += 3.0
        return forward(model, batch)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(Clock, "now", staticmethod(lambda: now["now"])))
        stack.enter_context(mock.patch.object(loader, "time", mock.Mock(perf_counter=lambda: now["now"])))
        stack.enter_context(mock.patch.object(Vectors, "__getitems__", slow))
        stack.enter_context(mock.patch.object(MLP, "forward", timed))
        yield


@contextlib.contextmanager
def leak(folder: Path) -> Iterator[None]:
    """Let rank 1 keep 64 MiB more in each update from the 15th on."""
    from tests.vectors.workload import MLP

    forward, updates, kept = MLP.forward, {"number": 0}, list[bytes]()

    def leaks(model: Any, batch: Any) -> Any:
        updates["number"] += model.training
        if model.training and updates["number"] >= 15 and get_rank_safely() == 1:
            kept.append(b"x" * (64 << 20))
        return forward(model, batch)

    with mock.patch.object(MLP, "forward", leaks):
        yield


@contextlib.contextmanager
def waits_apart(folder: Path) -> Iterator[None]:
    """Let rank 1 compute its gradients only after rank 0 has begun to wait for them: the part "exchange" of its backward.

    Rank 0 writes a file when that part begins. If it began after the wait, both would wait for each other; rank 1 then gives up."""
    from linnaeus.optim.update import Precision
    from linnaeus.train.measuring.sections import EXCHANGE, Sections

    mark, backward, updates = Sections._mark, Precision.backward, {"number": 0}

    def marked(self: Any, name: str) -> None:
        if name == EXCHANGE and get_rank_safely() == 0 and self._marks[-1][0] == "backward":
            (folder / f"waits-{updates['number']}").touch()
        mark(self, name)

    def late(self: Any, *args: Any, **kwargs: Any) -> None:
        updates["number"] += 1
        deadline = time.monotonic() + 20
        while get_rank_safely() == 1 and updates["number"] <= 4 and not (folder / f"waits-{updates['number']}").exists():
            if time.monotonic() > deadline:
                raise AssertionError("rank 0 has waited for the gradients of rank 1 before its own part had ended")
            time.sleep(0.002)
        backward(self, *args, **kwargs)

    with mock.patch.object(Sections, "_mark", marked), mock.patch.object(Precision, "backward", late):
        yield


@contextlib.contextmanager
def compiled_eagerly(folder: Path) -> Iterator[None]:
    """Compile without code generation: a graph runs the operations of the uncompiled model."""
    with mock.patch("torch.compile", functools.partial(torch.compile, backend="aot_eager")):
        yield


@contextlib.contextmanager
def unequal_memory(folder: Path) -> Iterator[None]:
    """Give the first process memory for 9 samples, and the others for 5."""
    from tests.limited_memory import limited_to

    with limited_to(9 if get_rank_safely() == 0 else 5):
        yield
