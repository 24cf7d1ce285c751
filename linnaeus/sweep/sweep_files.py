"""The files of a sweep in `<run.root>/sweeps/<name>/`.

sweep.json    command, parameters, metric, and of each trial: values, overrides, run directory, status, metric, seconds, error
trials.csv    one row per trial, by number; no clock times, so two sweeps can be compared with `cmp`
table.txt     the same for reading, the best first, with the clock times in `sweep.columns`
means.txt     mean and standard deviation over the seeds, if `seed` is one of several parameters
sweep.svg     the metric over each parameter
trial-NN.log  stdout and stderr of a trial
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import write_atomic
from linnaeus.rundir.lock import RunLock
from linnaeus.sweep.trial import Trial, short_value
from linnaeus.sweep.trial_results import WAITING, Metric, TrialResult

CLOCK_GROUPS = ("time/", "memory/")  # columns that differ between two runs of the same trial
SEED = "seed"

Results = Mapping[int, TrialResult]


class SweepLock(RunLock):
    """The lock that keeps a second parent out of a sweep."""

    def _in_use(self, owner: dict[str, Any] | None) -> ConfigError:
        process = f"process {owner['pid']} on {owner['host']} since {owner['since']}" if owner else "another process"
        return ConfigError(f"sweep.name: {self.path.parent} is in use by {process}; wait for it, or choose another sweep.name")


class SweepFiles:
    """The files of one sweep. `root`: run.root; `keys`: the parameters; `columns`: sweep.columns; `saved`: sweep.json at the start."""

    def __init__(self, directory: Path, root: Path, metric: Metric, keys: Sequence[str], columns: Sequence[str] = ()) -> None:
        self.directory, self.root, self.metric, self.keys, self.columns = directory, root, metric, list(keys), list(columns)
        self.saved: dict[str, Any] = {}

    def open(self) -> SweepLock:
        """Make and lock the directory. Return the lock, which the caller releases. Raise `ConfigError` if that is impossible."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = SweepLock(self.directory / "lock")
            lock.acquire()
        except OSError as error:
            raise ConfigError(
                f"run.root: {self.directory} cannot be written ({error.strerror}); free some space, or choose a directory you may write to"
            ) from None
        path = self.directory / "sweep.json"
        self.saved = json.loads(path.read_text()) if path.exists() else {}
        return lock

    def write(self, content: Mapping[str, Any], trials: Sequence[Trial], results: Results, picture: str | None) -> None:
        """Write all files; sweep.json gets `content`. OSError if the disk refuses one."""
        texts = {
            "sweep.json": json.dumps(content, indent=1) + "\n",
            "trials.csv": self.rows(trials, results),
            "table.txt": self.table(trials, results),
            "means.txt": self.means(trials, results),
            "sweep.svg": picture,
        }
        for name, text in texts.items():
            if text:
                write_atomic(self.directory / name, text)

    def rows(self, trials: Sequence[Trial], results: Results) -> str:
        """Return trials.csv."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = [name for name in self.columns if not name.startswith(CLOCK_GROUPS)]
        writer.writerow(["trial", *self.keys, "status", self.metric.name, *columns, "step", "directory"])
        for trial in trials:
            result = results.get(trial.number, TrialResult(WAITING))
            measured = ["" if x is None else repr(x) for x in (result.value, *(result.columns.get(name) for name in columns))]
            values = [trial.values[key] for key in self.keys]
            writer.writerow([trial.number, *values, result.status, *measured, result.step, os.path.relpath(trial.directory, self.root)])
        return text.getvalue()

    def table(self, trials: Sequence[Trial], results: Results) -> str:
        """Return table.txt: the best trial first and marked, those without a value last."""
        ranked = ranking(trials, results, self.metric)
        lines = [["", "trial", *self.keys, self.metric.name, *map(_heading, self.columns), "step", "status", "run"]]
        for trial in ranked:
            result = results.get(trial.number, TrialResult(WAITING))
            mark = "*" if trial is ranked[0] and result.value is not None else ""
            values = [short_value(trial.values[key]) for key in self.keys]
            measured = [_number(result.value, 6), *(_number(result.columns.get(name)) for name in self.columns)]
            step = "-" if result.step is None else str(result.step)
            lines.append([mark, str(trial.number), *values, *measured, step, result.status, os.path.relpath(trial.directory, self.root)])
        return _aligned(lines)

    def means(self, trials: Sequence[Trial], results: Results) -> str:
        """Return means.txt: mean and standard deviation over the seeds of the metric and of each column, per combination of the other
        parameters, the best mean first. Empty if no two trials differ in their seed alone, or all do."""
        if SEED not in self.keys or len(self.keys) == 1:
            return ""
        groups: dict[tuple[str, ...], list[TrialResult]] = {}
        for trial in trials:
            group = groups.setdefault(tuple(value for key, value in trial.values.items() if key != SEED), [])
            if trial.number in results and results[trial.number].value is not None:
                group.append(results[trial.number])
        if all(len(group) < 2 for group in groups.values()):
            return ""
        lines = []
        for values, group in groups.items():
            columns = [[result.value for result in group], *([result.columns.get(name) for result in group] for name in self.columns)]
            measured = [[x for x in column if x is not None] for column in columns]
            line = [*map(short_value, values), str(len(group)), *map(_mean_and_deviation, measured)]
            lines.append((_rank(fmean(measured[0]) if measured[0] else None, self.metric), line))
        heading = [*(key for key in self.keys if key != SEED), "seeds", self.metric.name, *map(_heading, self.columns)]
        return _aligned([heading, *(line for _, line in sorted(lines, key=lambda ranked: ranked[0]))])

    def unknown_columns(self, results: Results) -> list[str]:
        """Return the columns that no trial with a value has."""
        measured = [result for result in results.values() if result.value is not None]
        return [name for name in self.columns if measured and not any(name in result.columns for result in measured)]


def ranking(trials: Sequence[Trial], results: Results, metric: Metric) -> list[Trial]:
    """Return the trials, the best first; those without a value last, by number."""
    return sorted(trials, key=lambda trial: (_rank(results.get(trial.number, TrialResult(WAITING)).value, metric), trial.number))


def _rank(value: float | None, metric: Metric) -> tuple[bool, float]:
    """Return the sort key of a value of the metric: the best first, None last."""
    return value is None, (1 if metric.mode == "min" else -1) * (value or 0.0)


def _heading(name: str) -> str:
    """Return a column's name without its most common groups."""
    return name.removeprefix("val/").removeprefix("time/")


def _number(x: float | None, digits: int = 4) -> str:
    return "-" if x is None else f"{x:.{digits}g}"


def _mean_and_deviation(values: Sequence[float]) -> str:
    return f"{_number(fmean(values) if values else None)} +- {_number(stdev(values) if len(values) > 1 else None)}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() + "\n" for line in lines)
