"""Read and write the files of a sweep in the directory `<run.root>/sweeps/<name>/`.

sweep.json    command, parameters, metric, and of each trial: values, overrides, run directory, status, metric, seconds, error
trials.csv    one row per trial, by number; no clock times, so two sweeps can be compared with `cmp`
table.txt     the same rows as a table for reading, the best trial first, with the clock times in `sweep.columns`
means.txt     mean and standard deviation over the seeds and folds, if `seed` or `data.fold` is a parameter
sweep.svg     the metric over each parameter
trial-NN.log  stdout and stderr of a trial
"""

import contextlib
import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import read_json, refuse_links, to_json, write_atomic
from linnaeus.rundir.lock import RunLock
from linnaeus.sweep.trial import short_value
from linnaeus.sweep.trial_results import TrialResult
from linnaeus.sweep.trial_source import TrialSource

CLOCK_GROUPS = ("time/", "memory/")  # prefixes of columns that differ between two runs of the same trial
REPEATED = ("seed", "data.fold")  # parameters over whose values means are taken


class SweepFiles:
    """Files of one sweep. `root`: the folder `run.root`. `source`: trials and their results. `keys`: names of the swept parameters.

    `columns`: names of the further columns of the tables (`sweep.columns`)."""

    def __init__(self, directory: Path, root: Path, source: TrialSource, keys: Sequence[str], columns: Sequence[str] = ()) -> None:
        self.directory, self.root, self.source, self.keys, self.columns = directory, root, source, list(keys), list(columns)

    @contextlib.contextmanager
    def opened(self) -> Iterator[dict[str, Any]]:
        """Return a context manager that creates and locks the directory of the sweep. It yields the content of sweep.json, {} for a new
        sweep.

        Raise `ConfigError` if the directory cannot be written, sweep.json is damaged, or another process has locked the directory."""
        lock = RunLock(self.directory / "lock", kind="sweep")
        try:
            refuse_links(self.directory, ("lock", "*.log"))
            self.directory.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            raise ConfigError(
                f"run.root: {self.directory} cannot be written ({error.strerror}); free some space, or choose a directory you may write to"
            ) from None
        try:
            path = self.directory / "sweep.json"
            saved = read_json(path)
            if saved is None and path.exists():
                raise ConfigError(f"sweep.name: {path} is damaged; choose another sweep.name, or delete it: the runs are kept")
            yield saved or {}
        finally:
            lock.release()

    def write(self, header: Mapping[str, Any], picture: str | None) -> None:
        """Write all files of the sweep. sweep.json contains the fields of `header` and the trials.

        `picture`: content of sweep.svg; None: without a picture. Delete means.txt and sweep.svg if they have no content: another sweep with
        this name has left them. Raise `OSError` if a file cannot be written."""
        texts = {
            "sweep.json": to_json({**header, "trials": self.source.record()}),
            "trials.csv": self.rows(),
            "table.txt": self.table(),
            "means.txt": self.means(),
            "sweep.svg": picture,
        }
        for name, text in texts.items():
            if text:
                write_atomic(self.directory / name, text)
            else:
                (self.directory / name).unlink(missing_ok=True)

    def written(self) -> list[str]:
        """Return the names of the files with results that exist."""
        return [name for name in ("table.txt", "means.txt", "trials.csv", "sweep.svg") if (self.directory / name).exists()]

    def rows(self) -> str:
        """Return the text of trials.csv."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = [name for name in self.columns if not name.startswith(CLOCK_GROUPS)]
        writer.writerow(["trial", *self.keys, "status", self.source.metric.name, *columns, "step", "directory"])
        for trial, result in self.source.rows():
            measured = ["" if x is None else repr(x) for x in (result.value, *(result.columns.get(name) for name in columns))]
            values = [trial.values[key] for key in self.keys]
            writer.writerow([trial.number, *values, result.status, *measured, result.step, os.path.relpath(trial.directory, self.root)])
        return text.getvalue()

    def table(self) -> str:
        """Return the text of table.txt: the best trial first, with a mark, and trials without a value of the metric last."""
        lines = [["", "trial", *self.keys, *self._headings(), "step", "status", "run"]]
        for trial, result in self.source.ranking():
            mark = "*" if len(lines) == 1 and result.value is not None else ""
            values = [short_value(trial.values[key]) for key in self.keys]
            measured = [_number(result.value, 6), *(_number(result.columns.get(name)) for name in self.columns)]
            step = "-" if result.step is None else str(result.step)
            lines.append([mark, str(trial.number), *values, *measured, step, result.status, os.path.relpath(trial.directory, self.root)])
        return _aligned(lines)

    def means(self) -> str:
        """Return the text of means.txt: mean and standard deviation, over seeds and folds, of the metric and of each column.

        There is a line for each combination of the parameters other than seed and fold, the best mean first. Return "" if no combination
        has at least two trials with a value of the metric."""
        others = [key for key in self.keys if key not in REPEATED]
        groups: dict[tuple[str, ...], list[TrialResult]] = {}
        for trial, result in self.source.rows():
            group = groups.setdefault(tuple(trial.values[key] for key in others), [])
            if result.value is not None:
                group.append(result)
        if len(others) == len(self.keys) or all(len(group) < 2 for group in groups.values()):
            return ""
        lines = []
        for values, group in groups.items():
            columns = [[result.value for result in group], *([result.columns.get(name) for result in group] for name in self.columns)]
            measured = [[x for x in column if x is not None] for column in columns]
            line = [*map(short_value, values), str(len(group)), *map(_mean_and_deviation, measured)]
            lines.append((self.source.metric.rank(fmean(measured[0]) if measured[0] else None), line))
        heading = [*others, "runs", *self._headings()]
        return _aligned([heading, *(line for _, line in sorted(lines, key=lambda ranked: ranked[0]))])

    def unknown_columns(self) -> list[str]:
        """Return the names in `sweep.columns` that no trial has measured."""
        measured = [result for result in self.source.results.values() if result.value is not None]
        return [name for name in self.columns if measured and not any(name in result.columns for result in measured)]

    def _headings(self) -> list[str]:
        """Return the headings of the metric and of the columns; the prefixes `val/` and `time/` of the columns are removed."""
        return [self.source.metric.name, *(name.removeprefix("val/").removeprefix("time/") for name in self.columns)]


def _number(x: float | None, digits: int = 4) -> str:
    return "-" if x is None else f"{x:.{digits}g}"


def _mean_and_deviation(values: Sequence[float]) -> str:
    return f"{_number(fmean(values) if values else None)} +- {_number(stdev(values) if len(values) > 1 else None)}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() + "\n" for line in lines)
