"""Save checkpoints: collect the state of all parts and pass it to the checkpoint writer, which writes while training continues."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from typing import Any

from linnaeus.checkpoint.weight_files import tensor_bytes
from linnaeus.rundir.identity import plain
from linnaeus.train.logged_errors import log_write_errors
from linnaeus.train.measuring.readings import costs
from linnaeus.train.outputs import CheckpointNotWritten
from linnaeus.train.state import Training


def save(t: Training) -> None:
    """Copy the state at this step to host memory and start to write a checkpoint in a thread of rank 0. Call this on all ranks.

    The rows of metrics up to this step are on the disk before the checkpoint is committed."""
    activity, t.watchdog.activity = t.watchdog.activity, "saving"
    step, output = t.progress.global_step, t.output
    with t.clock.measure("saving"):
        t.broadcast_buffers()
        if output.batches is not None:
            with log_write_errors(output.batches.path):
                output.batches.sync()
        per_rank = t.context.all_gather(t.tracker.rank_state_dict())
        if t.order.anywhere:
            per_rank = t.tracker.merged_rank_states(per_rank)
        weights = t.shards.whole_state(t.model.state_dict())
        averages = t.shards.whole_state(t.ema.averaged()) if t.ema is not None else None
        optimizers = t.shards.whole_optimizer_state(t.optimizers.state_dict())
        if output.writer is not None:
            output.reports.saves += 1
            parts = {name: optimizers if part is t.optimizers else part.state_dict() for name, part in t.stateful().items()}
            output.writer.save(
                step,
                model_state=weights,
                ema_state=averages,
                training_state=parts | {"ranks": per_rank},
                state=readable_state(t),
                before_write=output.before_write,
                deferred=optimizers,
            )
    output.saved_step, t.watchdog.activity = step, activity


def readable_state(t: Training) -> dict[str, Any]:
    """Return the content of state.json: values that a resume needs, all of plain types (numbers, strings, lists), so that a person can read
    them."""
    step, schedule = t.progress.global_step, t.config.schedule
    validated = t.tracker.last_step == step
    return {
        "global_step": step,
        "score": t.tracker.last.get(schedule.best_monitor) if validated else None,
        "monitor": schedule.best_monitor,
        "mode": schedule.best_mode,
        "stop_reason": t.run.stop_reason,
        "early_stop": dataclasses.asdict(schedule.early_stop),
        "progress": t.progress.state_dict(),
        "best": t.tracker.best,
        "outputs": t.output.counters(t.clock.wall()),
        "costs": costs(t)._asdict(),
        "run_id": t.output.directory.run_id,
        "world_size": t.context.world_size,
        "data_fingerprint": t.workload.fingerprint,
        "classes": t.workload.classes,
        "run": {"config": plain(t.output.directory.saved), "record": t.output.directory.saved_record},
        "saved": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def wait_for_copy(t: Training) -> None:
    """Wait until the state of the optimizers is copied for the newest checkpoint. Call this before the next update, which changes the
    state."""
    if t.output.writer is not None:
        with t.clock.measure("saving"):
            t.output.writer.wait_until_copied()


def settle(t: Training) -> None:
    """Wait until the last checkpoint is on the disk. If it could not be written, save once more.

    Raise `CheckpointNotWritten`, on every rank, if the second attempt fails too."""
    with t.clock.measure("saving"):
        failure = t.context.broadcast_object(t.output.wait_for_writer())
        if failure is not None:
            save(t)
            failure = t.context.broadcast_object(t.output.wait_for_writer())
    if failure is not None:
        newest = t.context.broadcast_object(t.output.newest_intact())
        start = "starts from the beginning, since there is no checkpoint" if newest is None else f"continues from step {newest}"
        raise CheckpointNotWritten(f"step {t.progress.global_step} could not be saved ({failure}); the same command {start}")


def weights_hash(t: Training) -> str:
    """Return a hash (BLAKE2b) of the weights that validation uses, raw or averaged. Return "-" on ranks other than 0, which write no
    results. Call this on all ranks."""
    if not t.context.is_master and not t.shards.rows:
        return "-"
    digest = hashlib.blake2b(digest_size=16)
    ema = t.ema if t.config.trainer.ema_validate else None
    for name, tensor in (ema.averaged() if ema is not None else t.model.state_dict()).items():
        whole = t.shards.whole(name, tensor)
        if not t.context.is_master:
            continue
        digest.update(name.encode())
        digest.update(tensor_bytes(whole))
    return digest.hexdigest() if t.context.is_master else "-"
