"""`CheckpointWriter`: copy the state of a run to host memory while training waits, and write the copy to the disk in a background thread.

The thread may also copy state that only an optimizer step changes; the training loop then calls `wait_until_copied` before the next step.
The thread flushes the log rows, writes and commits the checkpoint, and deletes old ones (`retention`). It calls no collective and does not
use the GPU. One checkpoint is written at a time. If the disk fails, training continues: the error is logged, `failure` is set, and the next
save tries again. Only process rank 0 has a writer."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.format import assert_plain, save_checkpoint
from linnaeus.checkpoint.loading import CheckpointDamaged, check_sizes, intact_manifest
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.checkpoint.retention import clean_directory, prune
from linnaeus.checkpoint.snapshot import HostSnapshot
from linnaeus.errors import system_reason

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("linnaeus")

SLOW_WAIT = 5.0  # seconds; a longer wait for the previous checkpoint is logged
REMEDIES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some space: the disk quota is reached",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "mount that disk for writing again",
    errno.EACCES: "make that directory writable",
    errno.EPERM: "make that directory writable",
    errno.ENOENT: "restore the run directory (deleted, moved or not mounted)",
    errno.ENOTDIR: "restore the run directory (another file has its name)",
    errno.ESTALE: "reconnect the network disk",
    errno.ENOMEM: "free some memory on this machine",
}


class CheckpointWriter:
    """Writer of the checkpoints `directory/step-N/`. Old checkpoints are deleted except the last `keep_last` and, by `state["score"]`, the
    best `keep_best`. Only scores of the metric `best_monitor` are compared; None: all scores.

    `failure`: one line if the last save could not be written, else None. `committed`: step of the newest checkpoint that this process has
    committed, -1 before the first. `copying`: True after a save with deferred state until `wait_until_copied`.

    The constructor cleans `directory` after a crash. Lock the run before you construct a writer, and search for the resume point
    afterwards."""

    def __init__(
        self, directory: Path | str, keep_last: int, keep_best: int, best_mode: str = "max", best_monitor: str | None = None
    ) -> None:
        self.directory = Path(directory)
        self.retention = keep_last, keep_best, best_mode, best_monitor
        self.failure: str | None = None
        self.committed = -1
        self.copying = False
        self._snapshot = HostSnapshot()
        self._thread: threading.Thread | None = None
        self._thread_error: BaseException | None = None
        self.directory.mkdir(exist_ok=True)
        clean_directory(self.directory)

    def save(
        self,
        step: int,
        *,
        model_state: Mapping[str, Tensor],
        training_state: dict[str, Any],
        state: dict[str, Any],
        ema_state: Mapping[str, Tensor] | None = None,
        before_write: Callable[[], None] = lambda: None,
        deferred: Any = None,
    ) -> None:
        """Copy the state to host memory and start to write the copy. See `save_checkpoint` for the arguments.

        When this returns, the caller may change all of the state except `deferred`, a dict inside `training_state`: call
        `wait_until_copied` before the tensors in `deferred` change. The thread calls `before_write` first; if `before_write` raises
        `OSError`, the checkpoint is not written. If an earlier checkpoint is still being written, wait for it first. Raise `TypeError` for
        a value that is not plain."""
        start = time.monotonic()
        self.wait()
        if time.monotonic() - start > SLOW_WAIT:
            log.warning("step %d waited %.0f s for the previous checkpoint to be written", step, time.monotonic() - start)
        assert_plain(training_state, "training_state", tensors=True)
        assert_plain(state, "state", tensors=False)
        self.failure = None
        averages = None if ema_state is None else dict(ema_state)
        live = {"model_state": dict(model_state), "ema_state": averages, "training_state": training_state, "state": state}
        try:
            content = self._snapshot.copy(live, deferred)
            self.copying = deferred is not None
        except OSError as error:
            self._fail(step, error)
            return
        thread = threading.Thread(target=self._write, args=(step, content, before_write), name="checkpoint")
        thread.start()  # not a daemon: the interpreter waits for it at exit
        self._thread = thread

    def wait_until_copied(self) -> None:
        """Wait until the deferred state is copied. The calling thread may do the copy itself. Afterwards the caller may change the
        state."""
        self._snapshot.finish()
        self.copying = False

    def wait(self) -> None:
        """Wait until the last save is committed or has failed. Raise an exception that the thread raised, except an error of the disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._thread_error = self._thread_error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait for the last save and release the host memory."""
        self.wait()
        self._snapshot.release()

    # -- in the thread ---------------------------------------------------------------------------------------------------

    def _write(self, step: int, content: dict[str, Any], before_write: Callable[[], None]) -> None:
        try:
            self._snapshot.finish()
            before_write()
            clean_directory(self.directory)  # temporary files that an earlier save could not delete take up space
            check_sizes(save_checkpoint(self.directory, step, **content, parents=False))
            if self.committed != step:  # a step with validation is saved twice, before and after the passes
                log.info("step %d is saved", step)
            self.committed = step
            self._prune(step)
        except (OSError, CheckpointDamaged) as error:
            self._fail(step, error)
        except BaseException as error:  # `wait` raises it in the training thread
            self._thread_error = error

    def _prune(self, step: int) -> None:
        """Delete old checkpoints. An error is only logged, because the new checkpoint is already committed."""
        try:
            prune(self.directory, step, *self.retention)
        except (OSError, CheckpointDamaged) as error:
            log.error("step %d is saved, but older checkpoints could not be checked for deletion (%s)", step, error)

    def _fail(self, step: int, error: OSError | CheckpointDamaged) -> None:
        self.failure = f"step {step}: {system_reason(error)}"
        newest = self.newest_intact()
        if newest is None:
            left = "There is NO checkpoint to resume from"
        elif newest == step:  # saved before its validation, and not again after it
            left = "An earlier save of this step is intact"
        else:
            left = f"The newest intact checkpoint is that of step {newest}"
        remedy = REMEDIES.get(getattr(error, "errno", 0) or 0, "check the disk")
        log.error(
            "the checkpoint of step %d could NOT be written: %s. %s; training continues and the next save tries again: %s",
            *(step, system_reason(error), left, remedy),
        )

    def newest_intact(self) -> int | None:
        """Return the step of the checkpoint from which a restart would continue: the newest one whose files have the right sizes. Return
        None if there is none."""
        try:
            return next((step for step, path in reversed(list_checkpoints(self.directory)) if intact_manifest(path) is not None), None)
        except OSError:
            return None
