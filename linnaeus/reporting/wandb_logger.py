"""Weights & Biases, on rank 0 only, offline without an account; a logger that fails never fails the run, nor keeps it waiting.

W&B is a process of its own, which may die or, worse, live on and answer nothing (stopped, waiting for a disk), and its library then
waits without limit. So all of W&B happens on one thread, fed by a queue: training puts rows in, and whoever waits for that thread
does so for a bounded time, after which the process is killed.

One W&B run per run directory: its id is made at the first start and kept, and no row is sent twice (`sent.py`). A checkpoint counts
no row that still waits in the queue: what a kill loses there, the resumed run replays. Offline, every start makes a folder of its own
with the same id; `wandb sync` joins them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linnaeus.reporting.console import LOGGER
from linnaeus.reporting.sent_rows import SENT, SentRows

STARTS_WITHIN = 100.0  # seconds; W&B itself gives up on its server after 90, and says why
TAKES_WITHIN = 60.0  # a row is taken in milliseconds; nothing waits for one that is held up but the rows behind it
MOST_WAITING = 1_000  # rows in the queue, which a checkpoint or the end can wait for: 3 ms each
WAITS = 10.0  # of a checkpoint, the end, or a row when the queue is full: a run that is told to stop has 30 s under torchrun
FINISHES_WITHIN = 100.0  # an upload at the end, of a process that has just answered; what is left, `wandb sync` sends
DIES_WITHIN = 2.0  # a killed process, unless it hangs in a dead disk


class Row(NamedTuple):
    stream: str
    position: int
    items: dict[str, Any]


class WandbLogger:
    """`log` sends a row with `global_step` as the x axis of everything. `mode` is online or offline."""

    def __init__(self, directory: Path, *, run_id: str, mode: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        self._changed = threading.Condition()  # guards all below, never held while W&B is called
        self._queue: deque[Row] = deque()
        self._put = self._taken = 0
        self._taking_since: float | None = None
        self._started = self._answered = self._abandoned = self._over = False
        self._exit_code: int | None = None
        arguments = {"id": run_id, "mode": mode, "project": project, "name": name, "config": dict(config)}
        self._thread = threading.Thread(target=self._work, args=(Path(directory), arguments), name="wandb", daemon=True)
        self._thread.start()
        try:  # waited for: a W&B that cannot start says so at the start, and no loader worker is forked in the middle of an import
            if not self._wait(lambda: self._started, STARTS_WITHIN):
                self._abandon(f"no answer within {STARTS_WITHIN:.0f} s")
                self._leave()
        except BaseException:  # told to stop meanwhile; nobody will call `close`
            self._over = True
            _kill_children_of(self._thread)
            self._leave()
            raise

    # -- on the thread of W&B ----------------------------------------------------------------------------------------------

    def _work(self, directory: Path, arguments: dict[str, Any]) -> None:
        try:
            import wandb

            with contextlib.closing(SentRows(directory, directory / "wandb" / SENT)) as sent:
                run = _init(wandb, directory, arguments)
                atexit.register(self.close)  # runs before W&B's own, which would wait without limit if nobody had called `close`
                self._set("_started")
                self._send_rows(run, sent)
            if not self._over:
                run.status()  # answered at once, however much is left to upload
                self._set("_answered")
                run.finish(exit_code=self._exit_code or 0)
        except Exception as error:  # what its library raises when the process fails is of many kinds
            self._give_up(next(iter(str(error).splitlines()), type(error).__name__))
        _tear_down()

    def _send_rows(self, run: Any, sent: SentRows) -> None:
        while (row := self._next()) is not None:
            step = sent.take(row.stream, row.position)
            if step is not None:  # W&B's own step counts rows over all starts: it must never go back
                run.log(row.items, step=step)

    def _next(self) -> Row | None:
        """The next row; None when there will be no more."""
        with self._changed:
            self._taken, self._taking_since = self._put - len(self._queue), None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._over or self._exit_code is not None)
            if self._over or not self._queue:
                return None
            self._taking_since = time.monotonic()
            return self._queue.popleft()

    def _set(self, name: str) -> None:
        with self._changed:
            setattr(self, name, True)
            self._changed.notify_all()

    # -- on any other ------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return self._started and not self._over

    def begin(self, global_step: int) -> None:
        """Positions, not steps, say what was sent."""

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None:
        """Have the row sent that is number `position` of its stream, unless it was sent before."""
        with self._changed:
            if self._over:
                return
            self._queue.append(Row(stream, position, {**row, "global_step": global_step}))
            self._put += 1
            self._changed.notify_all()
            waiting, held = len(self._queue), self._held()
        if held > TAKES_WITHIN or waiting > MOST_WAITING:
            self._abandon_unless_it_moves()

    def sync(self) -> None:
        """Before a checkpoint: the rows so far are with W&B, if it takes them. What it holds up now will be sent, or given up, later."""
        target = self._put
        self._wait(lambda: self._taken >= target, self._patience())

    def close(self, exit_code: int = 0) -> None:
        """End the W&B process; rows still on their way are waited for, as long as it answers."""
        with self._changed:
            self._exit_code = exit_code
            self._changed.notify_all()
        if not self._abandoned and not self._wait(lambda: self._answered, self._patience()):
            self._abandon(f"no answer within {WAITS:.0f} s")
        if not self._abandoned:
            self._thread.join(FINISHES_WITHIN)
            if self._thread.is_alive():
                self._abandon(f"not finished after {FINISHES_WITHIN:.0f} s")
        self._leave()
        atexit.unregister(self.close)

    def _wait(self, done: Callable[[], bool], within: float) -> bool:
        """For `done`, or for the end of W&B; False when it takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: done() or self._over, within)

    def _held(self) -> float:
        """Seconds since the thread took a row that it is not through with."""
        since = self._taking_since
        return 0.0 if since is None else time.monotonic() - since

    def _patience(self) -> float:
        """What there is left to wait for a row that is held up: nothing when others have waited for it."""
        return max(0.0, WAITS - self._held())

    def _abandon_unless_it_moves(self) -> None:
        """Rows that come faster than W&B takes them go at its pace. And it may have been this process that was stopped: then the
        thread goes on now."""
        taken = self._taken
        if not self._wait(lambda: self._taken > taken, WAITS):
            self._abandon(f"no answer for {self._held():.0f} s")

    def _abandon(self, reason: str) -> None:
        """Give up on a process that does not answer: once it is dead, the thread's call fails and the thread ends."""
        self._abandoned = True
        self._give_up(reason)
        _kill_children_of(self._thread)

    def _give_up(self, reason: str) -> None:
        with self._changed:
            first, self._over = not self._over, True
            self._queue.clear()
            self._changed.notify_all()
        if first:
            LOGGER.warning(f"logger.wandb: no W&B from here on, training continues ({reason})")

    def _leave(self) -> None:
        """See to it that the interpreter's end does not wait for W&B, even if its process cannot be killed."""
        self._over = True
        self._thread.join(DIES_WITHIN)
        if self._thread.is_alive():
            threading.Thread(target=_tear_down, daemon=True).start()
            self._thread.join(DIES_WITHIN)


def _init(wandb: Any, directory: Path, arguments: dict[str, Any]) -> Any:
    settings = wandb.Settings(console="off", silent=True, save_code=False)
    run = wandb.init(dir=str(directory), resume="allow", settings=settings, **arguments)
    run.define_metric("global_step")
    run.define_metric("*", step_metric="global_step")
    return run


def _tear_down() -> None:
    """End the process of W&B and wait for it, which otherwise is done, without limit and not quietly, when the interpreter ends."""
    with contextlib.suppress(BaseException):  # it also exits with the status of its process
        import wandb

        wandb.teardown()


def _kill_children_of(thread: threading.Thread) -> None:
    """Linux knows which thread has started a process. The ones of W&B hold nothing that `metrics.jsonl` does not."""
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/self/task/{thread.native_id}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
