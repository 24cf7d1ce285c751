"""What a sweep leaves in `<run.root>/sweeps/<name>/`.

sweep.json    command, parameters, metric, and of each trial: values, overrides, run directory, status, metric, seconds, error
trials.csv    one row per trial, in their order; no clocks, so that two sweeps can be compared with `cmp`
table.txt     the same for a person, the best first, clocks too if `sweep.columns` names some
means.txt     the same over the seeds, where seed is among what is swept: mean and standard deviation
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
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import write_atomic
from linnaeus.rundir.lock import RunLock
from linnaeus.sweep.means import SEED, over_seeds
from linnaeus.sweep.outcomes import WAITING, Metric, Outcome
from linnaeus.sweep.trials import Trial, shown

RECORD, ROWS, TABLE, MEANS, PICTURE = "sweep.json", "trials.csv", "table.txt", "means.txt", "sweep.svg"
CLOCKS = ("time/", "memory/")  # never the same twice


class SweepLock(RunLock):
    """One live parent per sweep."""

    def _in_use(self, owner: dict[str, Any] | None) -> ConfigError:
        who = f"process {owner['pid']} on {owner['host']} since {owner['since']}" if owner else "another process"
        return ConfigError(f"sweep.name: {self.path.parent} is being run by {who}; wait for it, or choose another sweep.name")


class SweepRecord:
    """The files of one sweep; `before`: what sweep.json said when this start began."""

    def __init__(self, directory: Path, root: Path, metric: Metric, keys: Sequence[str], columns: Sequence[str] = ()) -> None:
        self.directory, self.root, self.metric, self.keys = directory, root, metric, list(keys)
        self.columns = list(columns)
        self.before: dict[str, Any] = {}

    def open(self) -> SweepLock:
        """Make the directory and take it; the lock is the caller's to release."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"run.root: {self.directory} cannot be made ({error.strerror}); choose a directory you may write to"
            ) from None
        lock = SweepLock(self.directory / "lock")
        try:
            lock.acquire()
        except OSError as error:
            raise ConfigError(f"run.root: {lock.path} cannot be written ({error.strerror}); see to that disk") from None
        path = self.directory / RECORD
        self.before = json.loads(path.read_text()) if path.exists() else {}
        return lock

    def write(self, trials: Sequence[Trial], outcomes: Mapping[int, Outcome], head: Mapping[str, Any], more: Mapping[int, Any]) -> None:
        """Everything but the picture. sweep.json begins with `head`; `more`: what else it has of a trial, by number."""
        rows = [self._row(trial, outcomes.get(trial.number, Outcome(WAITING))) | more.get(trial.number, {}) for trial in trials]
        if "study" in head:  # what an earlier start had proposed beyond these
            rows += [row for row in self.before.get("trials", []) if row["trial"] > len(rows)]
        write_atomic(self.directory / RECORD, json.dumps({**head, "trials": rows}, indent=1) + "\n")
        write_atomic(self.directory / ROWS, self.rows(trials, outcomes))
        write_atomic(self.directory / TABLE, self.table(trials, outcomes))
        means = self.means(trials, outcomes)
        if means:
            write_atomic(self.directory / MEANS, means)

    def _row(self, trial: Trial, outcome: Outcome) -> dict[str, Any]:
        return {
            "trial": trial.number,
            "values": trial.values,
            "overrides": trial.overrides,
            "directory": str(trial.directory),
            "status": outcome.status,
            "value": outcome.value,
            "columns": dict(outcome.columns),
            "step": outcome.step,
            "seconds": outcome.seconds,
            "error": outcome.error,
        }

    def rows(self, trials: Sequence[Trial], outcomes: Mapping[int, Outcome]) -> str:
        """trials.csv."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        lasting = [name for name in self.columns if not name.startswith(CLOCKS)]
        writer.writerow(["trial", *self.keys, "status", self.metric.name, *lasting, "step", "directory"])
        for trial in trials:
            found = outcomes.get(trial.number, Outcome(WAITING))
            measured = ["" if x is None else repr(x) for x in (found.value, *(found.columns.get(name) for name in lasting))]
            values = [trial.values[key] for key in self.keys]
            writer.writerow([trial.number, *values, found.status, *measured, found.step, os.path.relpath(trial.directory, self.root)])
        return text.getvalue()

    def table(self, trials: Sequence[Trial], outcomes: Mapping[int, Outcome]) -> str:
        """table.txt: the best first and marked, then the rest in their order."""
        ranked = ranking(trials, outcomes, self.metric)
        lines = [["", "trial", *self.keys, self.metric.name, *map(heading, self.columns), "step", "status", "run"]]
        for trial in ranked:
            found = outcomes.get(trial.number, Outcome(WAITING))
            best = "*" if trial is ranked[0] and found.value is not None else ""
            value = "-" if found.value is None else f"{found.value:.6g}"
            more = [number(found.columns.get(name)) for name in self.columns]
            step = "-" if found.step is None else str(found.step)
            values = [shown(trial.values[key]) for key in self.keys]
            lines.append([best, str(trial.number), *values, value, *more, step, found.status, os.path.relpath(trial.directory, self.root)])
        return aligned(lines)

    def means(self, trials: Sequence[Trial], outcomes: Mapping[int, Outcome]) -> str:
        """means.txt: a line for each combination of the other parameters; empty where no seeds are swept."""
        groups = over_seeds(trials, outcomes, self.metric, self.columns)
        if not groups:
            return ""
        keys = [key for key in self.keys if key != SEED]
        lines = [[*keys, "seeds", self.metric.name, *map(heading, self.columns)]]
        lines += [[*map(shown, g.values), str(g.count), *(f"{number(m)} +- {number(s)}" for m, s in g.numbers)] for g in groups]
        return aligned(lines)

    def unknown(self, outcomes: Mapping[int, Outcome]) -> list[str]:
        """Columns that no trial which ended well has."""
        good = [outcome for outcome in outcomes.values() if outcome.value is not None]
        return [name for name in self.columns if good and not any(name in outcome.columns for outcome in good)]


def heading(name: str) -> str:
    """A column's name without the group most of them are in."""
    return name.removeprefix("val/").removeprefix("time/")


def number(x: float | None) -> str:
    return "-" if x is None else f"{x:.4g}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() + "\n" for line in lines)


def ranking(trials: Sequence[Trial], outcomes: Mapping[int, Outcome], metric: Metric) -> list[Trial]:
    """The best first; those without a value last, in their order."""
    sign = 1 if metric.mode == "min" else -1

    def place(trial: Trial) -> tuple[bool, float, int]:
        value = outcomes.get(trial.number, Outcome(WAITING)).value
        return value is None, sign * (value or 0.0), trial.number

    return sorted(trials, key=place)
