"""Profile a range of updates (`profile=steps:50-60`): the times of the parts of an update, and a trace by torch's profiler.

Under torch's profiler an update often takes 1.5 times as long or more. So the first half of the range is timed without it, and the second
half is traced with it. A range of one update is both timed and traced.

The folder `profile` of the run directory then contains `summary.txt` (one screen), `parts.json` (the times of each timed update),
`trace.json` (for Perfetto or chrome://tracing) and `operations.txt` (the operations with the longest times).
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from linnaeus.errors import ConfigError, counted
from linnaeus.files import to_json, write_atomic
from linnaeus.reporting.formatting import format_seconds
from linnaeus.train.logged_errors import log_write_errors
from linnaeus.train.measuring.sections import ASIDE, PARTS, Marks, Sections, no_annotation, part_seconds

if TYPE_CHECKING:
    from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")

ROWS = 60  # number of operations in operations.txt
BAR = 30  # width of the longest bar in summary.txt


def profiled_steps(text: str) -> tuple[int, int]:
    """Return (first update, last update), counted from 1, of a value of `profile`, such as `steps:50-60` or `steps:50`. Raise `ConfigError`
    for any other text."""
    found = re.fullmatch(r"steps:(\d+)(?:-(\d+))?", text.strip())
    first, last = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 1 <= first <= last:
        raise ConfigError(f"profile={text}: it must be the first and the last update to profile, such as steps:50-60")
    return first, last


def profile_notes(text: str | None, last_step: int) -> list[str]:
    """Return a note for the log, [] if there is none: no profile is written if the run ends before the last update of `profile`.

    text: value of `profile`. last_step: number of updates of the run."""
    late = text is not None and profiled_steps(text)[1] > last_step
    return [f"profile={text}: no profile is written, because the last update is {last_step:,}"] if late else []


class StepProfiler:
    """Profiler of the updates `first` to `last` (counted from 1), on rank 0 only. `Sections` calls its methods, as of each `User`."""

    def __init__(self, text: str, directory: Path, device: torch.device) -> None:
        """`text`: value of `profile`. `directory`: the run directory. Raise `ConfigError` for an invalid `text`."""
        self.first, self.last = profiled_steps(text)
        self.traced_from = self.first + (self.last - self.first + 1) // 2  # the first traced update
        self.directory, self.device = directory / "profile", device
        self.sections: Sections | None = None
        self._timed: dict[int, Marks] = {}
        self._profiler: Any = None

    def wants(self, step: int) -> bool:
        """Return True if update `step` is in the range. Before the first traced update, start torch's profiler."""
        if self._profiler is None and self.traced_from <= step <= self.last:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if self.device.type == "cuda":
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.start()
            if self.sections is not None:
                self.sections.annotate = torch.profiler.record_function
        return self.first <= step <= self.last

    def add(self, t: Training, step: int, marks: Marks) -> None:
        """Keep `marks` of update `step` if the update is timed: it is in the first half of the range, or it is the only update of the
        range. After the last update of the range, write all files.

        If the run was resumed within the second half of the range, which is traced, summary.txt and parts.json are not written."""
        if step < self.traced_from or self.first == self.last:
            self._timed[step] = marks
        if step >= self.last:
            with log_write_errors(self.directory):
                self._finish(t)

    def close(self) -> None:
        """Stop torch's profiler if the run ends within the range. A profiler that still runs crashes the process at its exit."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _finish(self, t: Training) -> None:
        profiler, self._profiler = self._profiler, None
        if self.sections is not None:
            self.sections.annotate = no_annotation
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        profiler.stop()
        self.directory.mkdir(exist_ok=True)
        profiler.export_chrome_trace(str(self.directory / "trace.json"))
        order = "self_cuda_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        write_atomic(self.directory / "operations.txt", profiler.key_averages().table(sort_by=order, row_limit=ROWS) + "\n")
        updates = {step: part_seconds(marks) for step, marks in self._timed.items()}
        self._timed = {}
        if not updates:  # the run was resumed within the traced half, so there is only a trace
            log.info("profile of steps %d to %d: %s", self.traced_from, self.last, self.directory)
            return
        text = describe_parts(updates, (self.traced_from, self.last), self._operations(t))
        write_atomic(self.directory / "summary.txt", text + "\n")
        write_atomic(self.directory / "parts.json", to_json(parts_record(updates, (self.traced_from, self.last))))
        log.info("profile: %s\n%s", self.directory, text)

    def _operations(self, t: Training) -> float | None:
        """Return the number of floating-point operations of the last update on this process; None if unknown. Operations repeated by
        activation checkpointing are not included."""
        if t.flops is None:
            return None
        step, found = t.progress.global_step - 1, t.flops.of_last_update(t)
        return None if found is None else found.per_sample * t.sampler.samples_in(step) / t.context.world_size


def parts_record(updates: dict[int, dict[str, float]], traced: tuple[int, int]) -> dict[str, Any]:
    """Return the content of parts.json: for each part and for the whole update the mean seconds, and all seconds of each single update.

    updates: step -> result of `part_seconds` for the timed updates, not empty. traced: (first, last) update of the trace."""
    number = len(updates)
    means = {name: sum(update[name] for update in updates.values()) / number for name in (*PARTS, *ASIDE)}
    return {
        "timed": [min(updates), max(updates)],
        "traced": list(traced),
        "seconds_per_step": sum(map(seconds_of_update, updates.values())) / number,
        "parts": {name: means[name] for name in PARTS},
        "aside": {name: means[name] for name in ASIDE},
        "updates": [{"step": step, "seconds": seconds_of_update(update), **update} for step, update in updates.items()],
    }


def seconds_of_update(update: dict[str, float]) -> float:
    """Return the seconds of an update, without validation and saving. `update`: result of `part_seconds`."""
    return sum(update.values()) - sum(update[name] for name in ASIDE)


def describe_parts(updates: dict[int, dict[str, float]], traced: tuple[int, int], flops: float | None = None) -> str:
    """Return the text of summary.txt. `updates`: step -> result of `part_seconds`. `traced`: (first, last) update of the trace. `flops`:
    number of operations in an update of this process; None if unknown."""
    record = parts_record(updates, traced)
    whole, steps = record["seconds_per_step"], sorted(updates)
    lines = [f"{counted(len(steps), 'update')} ({steps[0]:,} to {steps[-1]:,}), mean {format_seconds(whole)} each", ""]
    lines += [f"{'':12}{'mean':>10}{'median':>10}{'longest':>10}{'share':>8}"]
    longest = max(record["parts"].values()) or 1.0
    rows = {name: [update[name] for update in updates.values()] for name in (*PARTS, *ASIDE)}
    totals = [seconds_of_update(update) for update in updates.values()]
    for name in PARTS:
        mean = record["parts"][name]
        lines += [_row(name, rows[name], f"{100 * mean / whole:7.1f}%  {'#' * round(BAR * mean / longest)}")] if any(rows[name]) else []
    lines += [_row("total", totals, f"{100:7.1f}%")]
    lines += [_row(name, rows[name], "   not in the total") for name in ASIDE if any(rows[name])]
    lines += [""]
    if flops is not None:
        lines += [f"model: {flops / 1e9:,.4g} GFLOP in an update of this process, {flops / whole / 1e9:,.4g} GFLOP/s"]
    if steps[-1] < traced[0]:
        lines.append(f"trace.json and operations.txt: updates {traced[0]:,} to {traced[1]:,}, slower under torch's profiler")
    else:
        lines.append("trace.json and operations.txt are of the same update: these times include torch's profiler")
    return "\n".join(lines)


def _row(name: str, times: list[float], end: str) -> str:
    """Return a line of the table: `name`, the mean, median and maximum of `times`, and the text `end`. `times`: seconds in each update."""
    shown = [format_seconds(value) for value in (sum(times) / len(times), median(times), max(times))]
    return f"{name:12}{''.join(f'{text:>10}' for text in shown)}{end}".rstrip()
