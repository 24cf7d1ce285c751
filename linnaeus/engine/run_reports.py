"""The reports of a run: what `linnaeus.progress` shows of it, gathered from the parts of the training, with clocks and estimates.

Reports due by steps go to reports.jsonl, one row each, at 0 % and from then on as `schedule.report` says; like the rows of metrics
they hold what the configuration determines and are cut back to the checkpoint a run goes on from, so each is there once. Clocks go to
timings.jsonl. Reports due by the clock are only shown. All of it is timed: `time/reporting_seconds`.

A report comes before the validation passes of its step, but for the last one, which shows their results. Until these are there it is
owed, as the passes are, and the checkpoint made before them holds what it will tell of the training since the last row: by then that
can no longer be measured.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from linnaeus.config.schema import Config
from linnaeus.engine.curriculum import curriculum_rows
from linnaeus.logging import RowWriter
from linnaeus.progress.pace import Mark, Pace, seconds_to_come
from linnaeus.progress.peaks import peak_flops, utilisation
from linnaeus.progress.reporter import Reporter
from linnaeus.progress.standing import Standing

if TYPE_CHECKING:
    from linnaeus.engine.training import Training

log = logging.getLogger("linnaeus")


class RunReports:
    """On rank 0; elsewhere it counts and writes nothing."""

    def __init__(self, config: Config, path: Path | None, show: Callable[[str], None]) -> None:
        """`path` of reports.jsonl, None on ranks other than 0."""
        self.config = config
        self.file = RowWriter(path) if path is not None else None
        self.reporter = Reporter(config.logger.report_sections, show, self.file.log if self.file is not None else lambda step, row: None)
        self.owed: dict[str, Any] | None = None  # what the last report tells of the training, while it waits for validation passes
        self.pace = Pace()
        self.passes = self.saves = 0  # made in this launch
        self._pass_steps: list[int] = []  # of all validation passes and checkpoints of the plan, one entry each
        self._save_steps: list[int] = []
        self._constant: dict[str, Any] = {}  # of a Standing
        self._work: tuple[float, float] | None = None  # FLOPs of a sample, peak FLOP/s of a device
        self._statm: int | None = None  # descriptor of what the system tells of our memory: opening it each time would take 0.1 ms

    @property
    def rows(self) -> int:
        return self.file.rows if self.file is not None else 0

    # -- the course of a run ---------------------------------------------------------------------------------------------

    def begin(self, t: Training, rows: int, owed: dict[str, Any] | None) -> None:
        """Cut the file back to the `rows` a checkpoint counted, owe the report it `owed`; a new run reports 0 %."""
        self.owed = owed
        if self.file is None:
            return
        missing = -self.file.truncate(rows)
        if missing > 0:
            log.warning("reports.jsonl lacks %d rows that the checkpoint counted", missing)
        self._pass_steps, self._save_steps = _planned_steps(t)
        self._constant, self._work = _constants(t), _work(t)
        with contextlib.suppress(OSError):  # there is no such file but on Linux
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self.pace.restart(_mark(t))
        if t.progress.global_step == 0 and self.config.schedule.report:
            with self.reporter.timed():
                row = {"train/lr": t.optimizers.base_lr * t.lr.scale(0)}
                self.reporter.report(self._standing(t, row, memory_now(t.device, self._statm)), keep=True)

    def first_update(self, t: Training) -> None:
        """From here on updates are as fast as they will be."""
        self.pace.restart(_mark(t))

    def owe(self, row: dict[str, Any]) -> None:
        """The report of this step waits for its validation passes; `row` is the newest of the training."""
        self.owed = {name: value for name, value in row.items() if name.startswith("train/")}

    def report(self, t: Training, row: dict[str, Any], throughput: dict[str, float]) -> dict[str, float]:
        """Show where the run stands, by the newest `row` or by what is owed; returns the clocks, of which `throughput` is a part."""
        owed, self.owed = self.owed, None
        if self.file is None:
            return throughput
        self.pace.take(_mark(t))
        clocks = throughput | self._recent(t) | memory_now(t.device, self._statm)
        clocks |= self._left(t, clocks, validated=owed is not None)
        keep = owed is not None or t.ops.resolved.report.due(t.progress.global_step)
        self.reporter.report(self._standing(t, row if owed is None else owed, clocks), keep)
        return clocks

    def sync(self) -> None:
        if self.file is not None:
            self.file.sync()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None

    # -- what is told ----------------------------------------------------------------------------------------------------

    def _standing(self, t: Training, row: dict[str, Any], clocks: dict[str, float]) -> Standing:
        more = _more(t)
        active = getattr(t.model, "active_parameters", lambda: self._constant["active_parameters"])
        return Standing(
            step=t.progress.global_step,
            samples=t.progress.samples_seen,
            units=(t.units[0], t.progress.units_seen) if t.units is not None else None,
            row=row,
            clocks=clocks,
            validated=t.tracker.last_step,
            validation=_validation(t),
            more=more,
            **(self._constant | {"active_parameters": more.pop("growth/active_parameters", None) or active()}),
        )

    def _recent(self, t: Training) -> dict[str, float]:
        rates = self.pace.rates(t.units[0] if t.units is not None else None)
        if rates and self._work is not None:
            rates["mfu"] = utilisation(self._work[0], rates["samples_per_second"], self._work[1], t.context.world_size)
        return {f"recent/{name}": value for name, value in rates.items()}

    def _left(self, t: Training, clocks: dict[str, float], validated: bool) -> dict[str, float]:
        """`time/eta_seconds` and, within it, validation and saving where they are known. `validated`: the passes of this step are made."""
        step = t.progress.global_step
        pace = clocks.get("recent/ms_per_step", clocks["time/ms_per_step"]) / 1000
        left = {"time/eta_seconds": max(0, t.ops.resolved.last_step - step) * pace}
        events = step + 1 if validated else step
        validation = seconds_to_come(self._pass_steps, events, t.clock.validating, self.passes)
        saving = seconds_to_come(self._save_steps, events, t.clock.saving, self.saves)
        by_clock = sum(left["time/eta_seconds"] / seconds for seconds in t.ops.resolved.checkpoint.seconds)
        if by_clock and self.saves:
            saving = (saving or 0.0) + by_clock * t.clock.saving / self.saves
        for name, seconds in (("validation", validation), ("saving", saving)):
            if seconds is not None:
                left[f"time/eta_{name}_seconds"] = seconds
                left["time/eta_seconds"] += seconds
        return left


def _mark(t: Training) -> Mark:
    return Mark(t.clock.training(), t.clock.waiting, t.progress.global_step, t.progress.samples_seen, t.progress.units_seen)


def _constants(t: Training) -> dict[str, Any]:
    """What stays as it is through a launch."""
    parameters = list(t.model.parameters())
    trainer = t.config.trainer
    return {
        "total_steps": t.progress.expected_total_steps,
        "steps_per_epoch": t.progress.steps_per_epoch,
        "tasks": t.workload.tasks,
        "batch": (trainer.micro_batch, t.sampler.accumulation, t.context.world_size),
        "global_batch": trainer.global_batch,
        "parameters": sum(p.numel() for p in parameters),
        "active_parameters": sum(p.numel() for p in parameters if p.requires_grad),
    }


def _more(t: Training) -> dict[str, Any]:
    """Rows of parts that only some runs have."""
    rows = getattr(t.workload, "report_rows", None)
    more = curriculum_rows(t) | (dict(rows(t.model, t.progress.global_step)) if rows is not None else {})
    return more | (t.growth.row() if t.growth is not None else {})


def _validation(t: Training) -> dict[str, float]:
    """The newest loss of each validation pass, and of the metrics that the workload wants to be seen beside it."""
    wanted = {"loss", *getattr(t.workload, "report_metrics", ())}
    return {name: value for name, value in t.tracker.final.items() if name.partition("/")[2] in wanted}


def _work(t: Training) -> tuple[float, float] | None:
    """FLOPs of a sample and the peak of a device, where both are known; a peak that was given in vain is said."""
    stated = getattr(t.model, "flops_per_sample", None)
    given = t.config.logger.peak_tflops
    if stated is None:
        if given is not None:
            log.warning("logger.peak_tflops has no effect: this model does not state its flops_per_sample, so there is no MFU")
        return None
    peak = given * 1e12 if given is not None else _known_peak(t)
    return (float(stated()), peak) if peak is not None else None


def _known_peak(t: Training) -> float | None:
    precision = t.config.trainer.precision
    if t.device.type != "cuda" or (precision == "float32" and torch.backends.cuda.matmul.allow_tf32):
        return None
    return peak_flops(torch.cuda.get_device_name(t.device), precision)


def _planned_steps(t: Training) -> tuple[list[int], list[int]]:
    """The steps of all validation passes, and of all checkpoints: one before and one after the passes of a step."""
    r = t.ops.resolved
    plain = [step for every in (r.validate, r.validate_mask_meta) for step in every.steps()]
    partial = [step for step in r.validate_partial_mask_meta.steps() for _ in t.ops.partial_validations_due(step)]
    validated = set(plain) | set(partial)
    saves = [step for step in r.checkpoint.steps() if step not in validated]
    return sorted(plain + partial), sorted([*saves, *validated, *validated])


def memory_now(device: torch.device, statm: int | None) -> dict[str, float]:
    """MiB: resident in this process (where the system tells it), held by tensors on the device, and what the device has."""
    found = {}
    if statm is not None:
        found["memory/host_now_MiB"] = int(os.pread(statm, 128, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    if device.type == "cuda":
        found["memory/device_now_MiB"] = torch.cuda.memory_allocated(device) / 2**20
        found["memory/device_total_MiB"] = torch.cuda.get_device_properties(device).total_memory / 2**20
    return found
