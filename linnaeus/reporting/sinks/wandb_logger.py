"""Log rows to Weights & Biases on rank 0. Errors of W&B do not stop the run, and a hang of W&B blocks the run for a limited time only.

The W&B process can die or hang, and the W&B library then waits without a limit. So one thread makes all calls of W&B and reads rows from a
queue, and other threads wait for this thread with a timeout. A W&B process that does not answer is killed.

A run directory has one W&B run. Each launch first sends the rows that earlier launches have logged, from metrics.jsonl and timings.jsonl.

An offline launch sends all earlier rows again. The reason: W&B writes its file in blocks of 32 KiB, so the folder of a killed launch lacks
its last rows, and `wandb sync` does not join several folders of one run. A launch that ends deletes the folders of earlier launches, so
that one folder with every row is left. In an online launch, `SentRows` records each row before it is sent, so no row is sent twice. Rows
that were lost because the W&B process was killed before their upload stay missing at W&B. A checkpoint waits up to `WAIT_TIMEOUT` seconds
for the queue to be sent.
"""

import atexit
import contextlib
import math
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from linnaeus.files import read_json, to_json, write_atomic
from linnaeus.reporting.jsonl.rows import whole_lines
from linnaeus.reporting.sinks.log_sinks import Row
from linnaeus.reporting.terminal.console import LOGGER

START_TIMEOUT = 100.0  # seconds; W&B itself stops trying to reach its server after 90 s and then names the reason
SEND_TIMEOUT = 60.0  # a row takes milliseconds; only the rows behind a blocked one wait for it
MAX_QUEUED = 1_000  # rows; a checkpoint and the end of the run wait for them, 3 ms each
WAIT_TIMEOUT = 10.0  # for which a checkpoint, the end of the run, or a full queue waits; torchrun kills a run 30 s after a stop signal
FINISH_TIMEOUT = 100.0  # for the upload at the end, if the process still answers; `wandb sync` sends the rest
KILL_TIMEOUT = 2.0  # for a killed process to end; longer only if it hangs in a failed disk


class WandbLogger:
    """Sender of rows to W&B, with `global_step` as the x axis of every chart.

    directory: run directory. mode: online or offline. name, config: name and configuration of the run at W&B. The constructor waits for at
    most `START_TIMEOUT` seconds until W&B has started."""

    def __init__(self, directory: Path, *, run_id: str, mode: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        self._condition = threading.Condition()  # guards all attributes below; not held during calls of W&B
        self._queue: deque[Row] = deque()
        self._queued = self._handled = 0  # rows so far
        self._sending_since: float | None = None
        self._started = self._responded = self._killed = self._stopped = False
        self._exit_code: int | None = None
        arguments = {"id": run_id, "mode": mode, "project": project, "name": name, "config": dict(config)}
        self._thread = threading.Thread(target=self._work, args=(Path(directory), arguments), name="wandb", daemon=True)
        self._thread.start()
        try:  # wait, so that a failed start is logged at the start
            if not self._wait(lambda: self._started, START_TIMEOUT):
                self._kill(f"no answer within {START_TIMEOUT:.0f} s")
                self._end_thread()
        except BaseException:  # the run is being stopped; `close` will not be called
            self._stopped = True
            _kill_children_of(self._thread)
            self._end_thread()
            raise

    # -- on the thread of W&B ----------------------------------------------------------------------------------------------

    def _work(self, directory: Path, arguments: dict[str, Any]) -> None:
        try:
            import wandb

            sent = SentRows(directory, saved=arguments["mode"] == "online")
            earlier_folders = list((directory / "wandb").glob(f"offline-run-*-{arguments['id']}*"))  # -1 at the end: of the same second
            settings = wandb.Settings(console="off", silent=True, save_code=False)
            run = wandb.init(dir=str(directory), resume="allow", settings=settings, **arguments)
            run.define_metric("global_step")
            run.define_metric("*", step_metric="global_step")
            atexit.register(self.close)  # runs before W&B's own exit handler, which waits without a limit
            self._set("_started")
            while (queued := self._next()) is not None:
                stream, position, row = queued
                step = sent.record(stream, position)
                if step is not None:  # W&B's own step must not decrease, so it counts the rows of all launches
                    run.log(row, step=step)
            if not self._stopped:
                run.status()  # returns at once, however much is left to upload
                self._set("_responded")
                run.finish(exit_code=self._exit_code or 0)
                for folder in earlier_folders:
                    shutil.rmtree(folder, ignore_errors=True)
        except Exception as error:  # when its process fails, W&B raises exceptions of many types
            self._disable(next(iter(str(error).splitlines()), type(error).__name__))
        _tear_down()

    def _next(self) -> Row | None:
        """Wait for the next row in the queue and return it. Return None if sending has stopped, or if the queue is empty after `close`."""
        with self._condition:
            self._handled, self._sending_since = self._queued - len(self._queue), None
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._queue or self._stopped or self._exit_code is not None)
            if self._stopped or not self._queue:
                return None
            self._sending_since = time.monotonic()
            return self._queue.popleft()

    def _set(self, name: str) -> None:
        with self._condition:
            setattr(self, name, True)
            self._condition.notify_all()

    # -- on other threads --------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return self._started and not self._stopped

    @property
    def complete(self) -> bool:
        """Return True, after `close`, if W&B has received every row."""
        return self._responded and not self._killed

    def start(self, global_step: int, earlier: Iterable[Row]) -> None:
        """Queue the rows `earlier`, which earlier launches have logged. A null in them means NaN (`format_row`)."""
        for stream, position, row in earlier:
            found = {key: math.nan if value is None else value for key, value in row.items()}
            self.log(row["global_step"], found, stream=stream, position=position)

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None:
        """Queue the row with number `position` of its stream; it is sent unless an earlier launch has sent it.

        If one row takes more than `SEND_TIMEOUT` seconds, or if the queue is full, wait for up to `WAIT_TIMEOUT` seconds, then kill the W&B
        process."""
        with self._condition:
            if self._stopped:
                return
            self._queue.append((stream, position, {**row, "global_step": global_step}))
            self._queued += 1
            self._condition.notify_all()
            blocked, handled = self._seconds_sending() > SEND_TIMEOUT or len(self._queue) > MAX_QUEUED, self._handled
        # If this whole process was suspended, the thread proceeds now. With a full queue this slows training down to the speed of W&B.
        if blocked and not self._wait(lambda: self._handled > handled, WAIT_TIMEOUT):
            self._kill(f"no answer for {self._seconds_sending():.0f} s")

    def sync(self) -> None:
        """Wait, for a limited time, until W&B has received all rows so far. Called before a checkpoint is committed."""
        target = self._queued
        self._wait(lambda: self._handled >= target, self._time_to_wait())

    def drain(self) -> None:
        """Wait until W&B has received all rows so far, with no limit on the total time. For a program that only sends rows.

        Stop if W&B receives no row for `SEND_TIMEOUT` seconds."""
        target, handled = self._queued, -1
        while handled < self._handled and not self._wait(lambda: self._handled >= target, SEND_TIMEOUT):
            handled = self._handled

    def close(self, status: str = "running") -> None:
        """Send the queued rows and end the W&B run: as failed if `status` is "failed", otherwise as finished. Kill the W&B process if it
        does not answer."""
        with self._condition:
            self._exit_code = int(status == "failed")
            self._condition.notify_all()
        if not self._killed and not self._wait(lambda: self._responded, self._time_to_wait()):
            self._kill(f"no answer within {WAIT_TIMEOUT:.0f} s")
        if not self._killed:
            self._thread.join(FINISH_TIMEOUT)
            if self._thread.is_alive():
                self._kill(f"not finished after {FINISH_TIMEOUT:.0f} s")
        self._end_thread()
        atexit.unregister(self.close)

    def _wait(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done()` is True or sending has stopped, and return True. Return False if neither happens in `timeout` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: done() or self._stopped, timeout)

    def _seconds_sending(self) -> float:
        """Return for how many seconds the thread has been sending its current row; 0 if it sends none."""
        since = self._sending_since
        return 0.0 if since is None else time.monotonic() - since

    def _time_to_wait(self) -> float:
        """Return `WAIT_TIMEOUT` minus the seconds for which the thread has been sending its current row; at least 0."""
        return max(0.0, WAIT_TIMEOUT - self._seconds_sending())

    def _kill(self, reason: str) -> None:
        """Kill the W&B process, which does not answer, and log a warning with `reason`. The thread's call of W&B then fails, so the thread
        ends. The queued rows are dropped."""
        self._killed = True
        self._disable(reason)
        _kill_children_of(self._thread)

    def _disable(self, reason: str) -> None:
        with self._condition:
            first, self._stopped = not self._stopped, True
            self._queue.clear()
            self._condition.notify_all()
        if first:
            LOGGER.warning(f"logger.wandb: W&B gets no more rows in this launch, training continues ({reason})")

    def _end_thread(self) -> None:
        """End the thread, so that the interpreter does not wait for W&B at its exit even if the process cannot be killed."""
        self._stopped = True
        self._thread.join(KILL_TIMEOUT)
        if self._thread.is_alive():
            threading.Thread(target=_tear_down, daemon=True).start()
            self._thread.join(KILL_TIMEOUT)


def _tear_down() -> None:
    """End the process of W&B and wait for its end. Otherwise the interpreter would do so when it exits, without a time limit and with
    output."""
    with contextlib.suppress(BaseException):  # teardown may raise SystemExit with the status of the process
        import wandb

        wandb.teardown()


def _kill_children_of(thread: threading.Thread) -> None:
    """Kill the child processes of `thread` with SIGKILL. Only Linux is supported; on other systems nothing is killed.

    No row is lost: each row is written to metrics.jsonl or timings.jsonl before it is sent to W&B."""
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/self/task/{thread.native_id}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


class SentRows:
    """Number of rows of each stream (metrics, timings) that were sent to W&B. Used by one thread.

    saved: True: count the rows of all online launches of the run, and store the numbers in wandb/sent.json. The file is written before a
    row is sent, so a row that a resumed run logs again is not sent again."""

    def __init__(self, run: Path, saved: bool) -> None:
        self._path = run / "wandb" / "sent.json"
        self._path.parent.mkdir(exist_ok=True)
        self._saved = saved
        rows = read_json(self._path) if saved and self._path.exists() else {}
        if rows is None:  # damaged; a row is written to its file before it is sent, so the files have at least the rows that were sent
            rows = {name: whole_lines(run / f"{name}.jsonl")[0] for name in ("metrics", "timings")}
        self._rows: dict[str, int] = rows

    @property
    def total(self) -> int:
        """Return the number of rows sent so far, summed over the streams."""
        return sum(self._rows.values())

    def contains(self, stream: str, position: int) -> bool:
        """Return True if row number `position` of its stream was sent before."""
        return position <= self._rows.get(stream, 0)

    def record(self, stream: str, position: int) -> int | None:
        """Record row number `position` of its stream as sent. Return the number of rows sent so far, or None if this row had been sent
        before."""
        if self.contains(stream, position):
            return None
        self._rows[stream] = position
        if self._saved:
            write_atomic(self._path, to_json(self._rows, None))
        return self.total
