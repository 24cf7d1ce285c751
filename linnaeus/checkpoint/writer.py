"""Saving during a run: what may change is copied into host memory while training waits, everything else is done in a thread beside it.

What only an update changes may be left to that thread too, if the next update waits for `copied`. Then the thread has the rows
flushed, writes, commits, and deletes what retention no longer keeps; it runs no collective and touches no device. One checkpoint is
written at a time. Where the disk refuses, training goes on: the error is logged, `failure` tells the engine, and the next save tries
again. Only process rank 0 has a writer.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.damage import CheckpointDamaged
from linnaeus.checkpoint.format import check_sizes, is_intact, save_checkpoint
from linnaeus.checkpoint.plain import assert_plain
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.checkpoint.retention import prune, set_aside_beyond, tidy
from linnaeus.checkpoint.snapshot import HostSnapshot

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("linnaeus")

NOTICEABLE = 5.0  # seconds; a save that holds training up for longer is worth a line
REMEDIES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some space, the quota is used up",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "have it mounted for writing again",
    errno.EACCES: "make that directory writable",
    errno.EPERM: "make that directory writable",
    errno.ENOENT: "bring the run directory back (deleted, moved or not mounted)",
    errno.ENOTDIR: "bring the run directory back (something else has its name)",
    errno.ESTALE: "bring the network disk back",
    errno.ENOMEM: "free some memory of this machine",
}


def nothing() -> None:
    """`before_commit` of a save that counts no rows."""


class CheckpointWriter:
    """Writes `directory/step-N/` and keeps the last `keep_last` and the best `keep_best` by `state["score"]`.

    `failure`: one line when the newest save could not be written, else None. `committed`: step of the newest checkpoint committed by
    this process, -1 before the first. Making a writer takes the directory over (crash leftovers go): hold the run's lock, and look
    for a resume point afterwards.
    """

    def __init__(self, directory: Path | str, keep_last: int, keep_best: int, best_mode: str = "max") -> None:
        self.directory = Path(directory)
        self.keep_last, self.keep_best, self.best_mode = keep_last, keep_best, best_mode
        self.failure: str | None = None
        self.committed = -1
        self._snapshot = HostSnapshot()
        self._thread: threading.Thread | None = None
        self._bug: BaseException | None = None
        self.directory.mkdir(exist_ok=True)
        tidy(self.directory)

    def begin(self, step: int) -> list[str]:
        """Call once the run knows where it goes on (0: from the start), before the first save. What lies beyond is set aside;
        the names are returned."""
        return set_aside_beyond(self.directory, step)

    def save(
        self,
        step: int,
        *,
        model_state: Mapping[str, Tensor],
        training_state: dict[str, Any],
        state: dict[str, Any],
        ema_state: Mapping[str, Tensor] | None = None,
        before_commit: Callable[[], None] = nothing,
        steady: Any = None,
    ) -> None:
        """Returns once everything is copied to the host and may change, but for `steady`, a dict that `training_state` itself holds:
        call `copied` before its tensors change. See `save_checkpoint` for what may be saved (TypeError). `before_commit` is called in
        the writer's thread before anything is written; an OSError of its own means that this checkpoint must not be. Waits first for a
        checkpoint that is still being written."""
        start = time.monotonic()
        self.wait()
        if time.monotonic() - start > NOTICEABLE:
            log.warning("step %d waited %.0f s for the checkpoint before it to be written", step, time.monotonic() - start)
        assert_plain(training_state, "training_state", tensors=True)
        assert_plain(state, "state", tensors=False)
        self.failure = None
        averages = None if ema_state is None else dict(ema_state)
        live = {"model_state": dict(model_state), "ema_state": averages, "training_state": training_state, "state": state}
        try:
            content = self._snapshot.take(live, steady)
        except OSError as error:
            self._fail(step, error)
            return
        thread = threading.Thread(target=self._write, args=(step, content, before_commit), name="checkpoint")
        thread.start()  # no daemon: an interpreter that exits finishes the file first
        self._thread = thread

    def copied(self) -> None:
        """Returns once `steady` may change, for which it copies or waits."""
        self._snapshot.finish()

    @property
    def is_copied(self) -> bool:
        """Whether `copied` would return at once."""
        return self._snapshot.is_finished

    def wait(self) -> None:
        """Until what was handed over is committed or has failed. Raises what went wrong in the thread and was no matter of the disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug

    def close(self) -> None:
        """Wait, and give the host memory back."""
        self.wait()
        self._snapshot.release()

    # -- in the thread ---------------------------------------------------------------------------------------------------

    def _write(self, step: int, content: dict[str, Any], before_commit: Callable[[], None]) -> None:
        try:
            self._snapshot.finish()
            before_commit()
            tidy(self.directory)  # what an earlier save could not remove takes up space
            check_sizes(save_checkpoint(self.directory, step, **content, parents=False))
            self.committed = step
            self._prune(step)
        except (OSError, CheckpointDamaged) as error:
            self._fail(step, error)
        except BaseException as error:  # handed to the thread that waits
            self._bug = error

    def _prune(self, step: int) -> None:
        """What cannot be deleted, or has vanished meanwhile, does not undo the checkpoint."""
        try:
            prune(self.directory, step, self.keep_last, self.keep_best, self.best_mode)
        except (OSError, CheckpointDamaged) as error:
            log.error("step %d is saved, but older checkpoints could not be looked through (%s)", step, error)

    def _fail(self, step: int, error: OSError | CheckpointDamaged) -> None:
        self.failure = f"step {step}: {_what_failed(error)}"
        remedy = REMEDIES.get(getattr(error, "errno", 0) or 0, "see to that disk")
        log.error(
            "the checkpoint of step %d could NOT be written: %s. %s; training goes on and the next save tries again: %s",
            *(step, _what_failed(error), self._standing(), remedy),
        )

    def _standing(self) -> str:
        """What a restart would continue from, as far as sizes tell."""
        try:
            for step, path in reversed(list_checkpoints(self.directory)):
                if is_intact(path):
                    return f"The newest good checkpoint is that of step {step}"
        except OSError:
            pass
        return "There is NO checkpoint to continue from"


def _what_failed(error: OSError | CheckpointDamaged) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error)
