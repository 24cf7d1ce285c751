"""`Outputs`: everything a run writes, and the only code of the engine that knows files. Ranks other than 0 take part in what
must be gathered or agreed and write nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from linnaeus.checkpoint import CheckpointWriter, LoadedCheckpoint
from linnaeus.checkpoint.files import write_atomic
from linnaeus.config.errors import RunFailed
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.engine.batch_record import BatchRecord
from linnaeus.engine.results import ValidationResults
from linnaeus.engine.run_reports import RunReports
from linnaeus.logging import LogSinks, ProgressDisplay, write_report, write_summary
from linnaeus.rundir import RunDirectory
from linnaeus.rundir.owed import read_summary

if TYPE_CHECKING:
    from linnaeus.engine.training import Training

log = logging.getLogger("linnaeus")


class CheckpointNotWritten(RunFailed):
    """The end of the run could not be saved."""


class Outputs:
    """Rows, reports, checkpoints and validation results of one run."""

    def __init__(
        self, config: Config, context: DistributedContext, directory: RunDirectory, sinks: LogSinks, display: ProgressDisplay
    ) -> None:
        self.config, self.context, self.directory = config, context, directory
        self.sinks, self.display = sinks, display
        keep = config.schedule
        self.writer: CheckpointWriter | None = None
        if context.is_master:
            self.writer = CheckpointWriter(directory.checkpoints, keep.keep_last, keep.keep_best, keep.best_mode)
        self.seconds_before = 0.0  # of earlier launches
        self.last_row: dict[str, Any] = {}
        self.saved_step = -1
        self.begun = False  # rows, results and checkpoints are cut back to where the run goes on
        self.results = ValidationResults(directory.validation)
        self.batches: BatchRecord | None = None  # with debug.batch_hashes
        self.reports = RunReports(config, directory.path / "reports.jsonl" if context.is_master else None, display.line)

    # -- rows and reports ------------------------------------------------------------------------------------------------

    def row(self, t: Training, row: Mapping[str, Any]) -> None:
        self.last_row |= row
        self.sinks.log(t.progress.global_step, row)

    def timings(self, t: Training) -> None:
        """Clocks and memory since the start of this launch."""
        self.sinks.log_timings(t.progress.global_step, self.throughput(t))

    def throughput(self, t: Training) -> dict[str, float]:
        seconds = max(t.clock.training(), 1e-9)
        steps = t.progress.global_step - t.first_step
        samples = t.progress.samples_seen - t.first_sample
        row = {
            "time/samples_per_second": samples / seconds,
            "time/ms_per_step": 1000 * seconds / max(steps, 1),
            "time/waiting_for_data": t.clock.waiting / seconds,
            "time/training_seconds": seconds,
            "time/validation_seconds": t.clock.validating,
            "time/saving_seconds": t.clock.saving,
            "time/reporting_seconds": self.reports.reporter.seconds,
            "time/wall_seconds": self.seconds_before + t.clock.wall(),
            "memory/host_MiB": _peak_host_mib(),
        }
        if t.units is not None:
            row[f"time/{t.units[0]}_per_second"] = (t.progress.units_seen - t.first_unit) / seconds
        if t.device.type == "cuda":
            row["memory/device_MiB"] = torch.cuda.max_memory_allocated(t.device) / 2**20
        return row

    def report(self, t: Training) -> None:
        """The progress report, every 1 % of the run, and the clocks behind it."""
        with self.reports.reporter.timed():
            clocks = self.reports.report(t, self.last_row, self.throughput(t))
            self.sinks.log_timings(t.progress.global_step, clocks)

    # -- validation results ----------------------------------------------------------------------------------------------

    def validation_result(self, step: int, key: str, weights: str) -> dict[str, float] | None:
        """The result of a pass that was finished before with these weights, the same on every process; None when it has to run."""
        return self.context.broadcast_object(self.results.read(step, key, weights) if self.context.is_master else None)

    def show_validation(self, t: Training, found: Mapping[str, float]) -> None:
        """A line on the console for a finished pass: its losses and first accuracies. A loss that is no number is said loudly."""
        if not self.context.is_master:
            return
        shown = [name for name in found if name.endswith(("/loss", "/top1")) and (name.count("/") == 1 or name.endswith("/top1"))]
        text = "  ".join(f"{name} {found[name]:.4f}" for name in shown or list(found)[:4])
        log.info("step %d  %s", t.progress.global_step, text)
        lost = [name for name in shown if name.endswith("/loss") and not math.isfinite(found[name])]
        if lost:
            log.warning("%s at step %d is no finite number: lost weights, or no sample with a label", lost[0], t.progress.global_step)

    def write_validation(self, step: int, key: str, metrics: dict[str, float], weights: str) -> None:
        """At once; while the disk refuses it is kept, and no checkpoint that builds on it is committed before it is written."""
        if self.context.is_master:
            self.reports.passes += 1
            with told_if_unwritten(self.results.path(step, key)):
                self.results.write(step, key, metrics, weights)

    def _before_commit(self) -> None:
        """In the writer's thread."""
        self.results.flush()
        self.sinks.sync()
        self.reports.sync()

    def dump_metrics(self, t: Training) -> None:
        if self.context.is_master:
            text = json.dumps(t.tracker.dump_metrics_state(), indent=1)
            path = self.directory.path / "debug" / f"metrics-step-{t.progress.global_step:08d}.json"
            with told_if_unwritten(path):
                path.parent.mkdir(exist_ok=True)
                write_atomic(path, text + "\n")
            log.info("metrics state at step %d: %s", t.progress.global_step, text)

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def save(self, t: Training) -> None:
        """A checkpoint of this step, from a copy in host memory that is written while training goes on; its rows are on the disk
        before it is."""
        doing, t.vitals.doing = t.vitals.doing, "saving"
        with t.clock.charge("saving"):
            t.broadcast_buffers()
            if self.batches is not None:
                self.batches.sync()
            per_rank = self.context.all_gather(t.tracker.rank_state_dict())
            if self.writer is not None:
                self.reports.saves += 1
                parts = {name: part.state_dict() for name, part in t.stateful().items()}
                self.writer.save(
                    t.progress.global_step,
                    model_state=t.model.state_dict(),
                    ema_state=t.ema.averaged() if t.ema is not None else None,
                    training_state=parts | {"ranks": per_rank},
                    state=self._state(t),
                    before_commit=self._before_commit,
                    steady=parts.get("optimizers"),
                )
        self.saved_step, t.vitals.doing = t.progress.global_step, doing

    def before_update(self, t: Training) -> None:
        """Wait until the optimizers' state, which changes now, is in the copy of the newest checkpoint."""
        if self.writer is not None and not self.writer.is_copied:
            with t.clock.charge("saving"):
                self.writer.copied()

    def _state(self, t: Training) -> dict[str, Any]:
        """What a person may want to read, and what the outputs themselves continue from."""
        step = t.progress.global_step
        scored = t.tracker.last_step == step
        return {
            "global_step": step,
            "score": t.tracker.last.get(self.config.schedule.best_monitor) if scored else None,
            "stop_reason": t.stop_reason,
            "early_stop": dataclasses.asdict(self.config.schedule.early_stop),
            "progress": t.progress.state_dict(),
            "best": t.tracker.best,
            "outputs": {
                "rows": self.sinks.state_dict(),
                "reports": self.reports.rows,
                "owed_report": self.reports.owed,
                "seconds": self.seconds_before + t.clock.wall(),
            },
            "run_id": self.directory.run_id,
            "world_size": self.context.world_size,
            "data_fingerprint": t.workload.fingerprint,
            "saved": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }

    def begin(self, t: Training, checkpoint: LoadedCheckpoint | None) -> None:
        """Cut rows, results and later checkpoints back to where the run goes on."""
        step = checkpoint.step if checkpoint else 0
        outputs: dict[str, Any] = {"rows": {}, "seconds": 0.0}
        if checkpoint is not None and checkpoint.state["run_id"] == self.directory.run_id:  # not another run's, continued here
            outputs = checkpoint.state["outputs"]
        self.seconds_before, self.begun = outputs["seconds"], True
        if self.writer is not None:  # before the rows are cut: a kill in between must not leave a checkpoint that counts more
            for name in self.writer.begin(step):
                log.warning("checkpoint %s lies beyond step %d and was set aside", name, step)
        for line in self.sinks.resume(outputs["rows"], step):
            log.warning(line)
        self.reports.begin(t, outputs.get("reports", 0), outputs.get("owed_report"))
        if self.batches is not None:
            self.batches.begin(step)
        if self.context.is_master:
            self.results.discard_after(step if checkpoint else -1)

    def weights_hash(self, t: Training) -> str:
        """BLAKE2b of the weights that are validated, rank 0's; the others need none, they write nothing."""
        if not self.context.is_master:
            return "-"
        digest = hashlib.blake2b(digest_size=16)
        averaged = t.ema is not None and self.config.trainer.ema_validate
        for name, tensor in (t.ema.averaged() if t.ema is not None and averaged else t.model.state_dict()).items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def settle(self, t: Training) -> None:
        """Wait until what was saved last is on the disk, after one more try if it could not be written. Raises
        `CheckpointNotWritten` on every process."""
        with t.clock.charge("saving"):
            failure = self.context.broadcast_object(self._wait_for_writer())
            if failure is not None:
                self.save(t)
                failure = self.context.broadcast_object(self._wait_for_writer())
        if failure is not None:
            raise CheckpointNotWritten(
                f"step {t.progress.global_step} could not be saved ({failure}); the same command continues from the last checkpoint"
            )

    def _wait_for_writer(self) -> str | None:
        if self.writer is None:
            return None
        self.writer.wait()
        return self.writer.failure

    # -- the end ---------------------------------------------------------------------------------------------------------

    def write_report(self, t: Training) -> None:
        """report.html, from what the run has written and the sections of its workload."""
        if self.context.is_master and self.config.logger.report:
            title = f"{self.config.run.experiment} / {self.directory.path.name}"
            with told_if_unwritten(self.directory.path / "report.html"):
                log.info("report: %s", write_report(self.directory.path, title, t.workload.report_sections(t.tracker.final)))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.sinks.close()
        self.reports.close()
        if self.batches is not None:
            self.batches.close()

    def summary(self, t: Training, status: str, **more: Any) -> None:
        if not self.context.is_master:
            return
        numbers = self.throughput(t)
        write_summary(
            self.directory.path / "summary.json",
            status,
            t.progress.global_step,
            best=t.tracker.best,
            final=t.tracker.final,
            samples_per_second=numbers["time/samples_per_second"],
            wall_seconds=numbers["time/wall_seconds"],
            total_steps=t.progress.expected_total_steps,
            timings=numbers,
            **more,
        )

    def fail(self, reason: str, global_step: int) -> None:
        """For another thread, which is about to end the process and asks nobody."""
        if self.context.is_master:
            with told_if_unwritten(self.directory.path / "summary.json"):  # first: the console may be a pipe that nobody reads
                self.mark("failed", max(global_step, self.saved_step, 0), error=reason)
            log.error(reason)

    def mark(self, status: str, global_step: int | None = None, **more: Any) -> None:
        """Change what summary.json says of the end, and keep what it knows of the run: for an end before anything was restored."""
        known = read_summary(self.directory.path)
        kept = {name: value for name, value in known.items() if name not in ("status", "global_step", "error", "interrupted_by")}
        step = known.get("global_step", 0) if global_step is None else global_step
        write_summary(self.directory.path / "summary.json", status, step, **(kept | more))


@contextlib.contextmanager
def told_if_unwritten(path: Path) -> Iterator[None]:
    """A file that a full or vanished disk refuses does not end the run: it is said loudly. (Checkpoints and rows have their own care.)"""
    try:
        yield
    except OSError as error:
        log.error("%s could not be written (%s)", path, error.strerror or error)


def _peak_host_mib() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
