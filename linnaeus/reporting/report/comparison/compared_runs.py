"""Find the runs of a comparison, and group the runs that differ only in seed or fold."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.reporting.report.configuration import flatten, shown
from linnaeus.reporting.report.run_files import RunFiles, open_run
from linnaeus.rundir.finished_run import ENDED
from linnaeus.rundir.identity import alters_updates

SEEDS = ("seed", "data.fold")  # runs that differ in these keys only form a group, whose mean is shown


def find_runs(paths: Sequence[Path]) -> list[RunFiles]:
    """Return the runs in `paths`, without duplicates. A path is a run directory, or a sweep directory, which stands for the runs of its
    trials.

    Raise `ConfigError` for any other path, and for a sweep without runs."""
    found: dict[Path, RunFiles] = {}
    for path in paths:
        for run in _trials(path) if (path / "sweep.json").exists() else [open_run(path)]:
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def _trials(path: Path) -> list[RunFiles]:
    """Return the runs of the sweep directory `path`. Trials without a run.json are left out. Raise `ConfigError` if no run remains.

    sweep.json has the directory of each trial, `<run.root>/<experiment>/<name>`, whose `run.root` may be relative to the folder in which
    the sweep was started. So the last two parts are tried first, below the folder two above `path`; then the directory as written."""
    trials = (read_json(path / "sweep.json") or {}).get("trials")
    folders = [Path(str(trial.get("directory"))) for trial in trials or () if isinstance(trial, dict)]
    candidates = [[path.resolve().parents[1].joinpath(*folder.parts[-2:]), folder] for folder in folders]
    runs = [
        RunFiles(next(c for c in choice if (c / "run.json").exists()))
        for choice in candidates
        if any((c / "run.json").exists() for c in choice)
    ]
    if not runs:
        raise ConfigError(f"{path} is a sweep without a run: none of the directories in its sweep.json has a run.json")
    return runs


@dataclass(frozen=True)
class Group:
    """Runs whose configurations differ only in `SEEDS` (seed and data fold) and in keys that do not change updates.

    name: label on the page."""

    name: str
    runs: tuple[RunFiles, ...]

    def values(self, key: str) -> list[float]:
        """Return the final values of the metric `key`, one per run. Runs without a value are left out."""
        return [value for run in self.runs if (value := run.final.get(key)) is not None]

    def mean(self, key: str) -> float | None:
        """Return the mean of the metric `key` over the runs; None if no run has it."""
        values = self.values(key)
        return fmean(values) if values else None

    def deviation(self, key: str) -> float | None:
        """Return the sample standard deviation of the metric `key` over the runs; None if fewer than two runs have the metric."""
        values = self.values(key)
        return stdev(values) if len(values) > 1 else None

    @property
    def unfinished(self) -> str:
        """Return which runs did not finish, such as `killed` or `2 of 3 unfinished`; "" if all finished."""
        states = [run.status for run in self.runs if run.status not in ENDED]
        return "" if not states else states[0] if len(self.runs) == 1 else f"{len(states)} of {len(self.runs)} unfinished"

    @property
    def seconds(self) -> float | None:
        """Return the mean device time of the runs in seconds (see `_device_seconds`); None if no time is known.

        Runs with an unknown time are left out."""
        found = [_device_seconds(run) for run in self.runs]
        known = [seconds for seconds in found if seconds]
        return fmean(known) if known else None


def _device_seconds(run: RunFiles) -> float | None:
    """Return the training time of a run in seconds x its processes, summed over all launches, without validation and saving; None if
    unknown.

    A launch without a number of processes has that of run.json, otherwise 1. Without a training time, return the wall time of the run x
    processes."""
    processes = run.record.get("world_size", 1)
    processes = processes if isinstance(processes, int) else 1
    each = ((timings.get("time/training_seconds", 0.0), timings.get("time/processes", processes)) for timings in run.launch_timings)
    total = sum(seconds * number for seconds, number in each)
    return total or run.last_timings.get("time/wall_seconds", 0.0) * processes or None


class Compared:
    """Runs of a comparison, divided into groups. The first group is the reference, with which the other groups are compared."""

    def __init__(self, runs: Sequence[RunFiles]) -> None:
        self.runs = list(runs)

    @cached_property
    def configurations(self) -> list[dict[str, str]]:
        """Return the configuration of each run: {dotted key: value as text}. Keys that do not change updates are left out."""
        return [{key: shown(value) for key, value in flatten(run.config).items() if alters_updates(key)} for run in self.runs]

    @cached_property
    def differing(self) -> list[str]:
        """Return the configuration keys whose values differ between the runs."""
        keys = dict.fromkeys(key for own in self.configurations for key in own)
        return [key for key in keys if len({own.get(key) for own in self.configurations}) > 1]

    @cached_property
    def groups(self) -> list[Group]:
        """Return the groups, in the order of their first runs."""
        keys = [key for key in self.differing if key not in SEEDS]
        folded: dict[tuple[str | None, ...], list[RunFiles]] = {}
        for run, own in zip(self.runs, self.configurations, strict=True):
            folded.setdefault(tuple(own.get(key) for key in keys), []).append(run)
        names = _distinct([(self._name(keys, values, runs), runs[0].path.resolve()) for values, runs in folded.items()])
        return [Group(name, tuple(runs)) for name, runs in zip(names, folded.values(), strict=True)]

    def _name(self, keys: Sequence[str], values: Sequence[str | None], runs: Sequence[RunFiles]) -> str:
        """Return the label of a group, such as `head.name=linear`.

        keys: configuration keys that differ between groups. values: the group's values for these keys; None for a key that the group lacks.
        runs: runs of the group. If one of the keys ends in `.name`, the label has only keys that do. If the label would have more than 3
        keys or more than 60 characters, or would not distinguish the groups, return the directory name of the first run."""
        own = [f"{key}={value}" for key, value in zip(keys, values, strict=True) if value is not None]
        short = [text for text in own if text.partition("=")[0].endswith(".name")] or own
        text = " ".join(short[:3])
        name = runs[0].path.name
        return text if text and len(text) <= 60 and len(short) <= 3 and self._distinguishes(keys) else name

    def _distinguishes(self, keys: Sequence[str]) -> bool:
        names = [key for key in keys if key.endswith(".name")] or list(keys)
        chosen = names[:3]
        found = {tuple(own.get(key) for key in chosen) for own in self.configurations}
        return len(found) == len({tuple(own.get(key) for key in keys) for own in self.configurations})

    @cached_property
    def metrics(self) -> list[str]:
        """Return the keys of the final metrics that have a value in more than half of the runs.

        Runs without any final metric are not counted. Metrics of passes with masked metadata are left out."""
        validated = [run.final for run in self.runs if run.final]
        keys = dict.fromkeys(key for final in validated for key in final if "_mask_" not in key)
        return [key for key in keys if sum(final.get(key) is not None for final in validated) > len(validated) / 2]

    @property
    def main_metric(self) -> str:
        """Return the key of the main metric: the top-1 accuracy of the last (finest) task.

        Without a top-1 accuracy, it is the monitored metric of the first run that has a monitored metric, otherwise `val/loss`."""
        top = [key for key in self.metrics if key.endswith("/top1") and "/with_" not in key and key.count("/") == 2]
        monitor = next((run.monitor for run in self.runs if run.summary["best"]), "val/loss")
        return top[-1] if top else monitor


def _distinct(names: Sequence[tuple[str, Path]]) -> list[str]:
    """Return a unique name for each (name, run directory), in this order.

    A name that occurs more than once is replaced by the last two parts of the run's path. If these are not unique either, it is replaced by
    the whole path."""
    texts = [name for name, _ in names]
    for longer in (lambda path: " / ".join(path.parts[-2:]), str):
        texts = [longer(path) if texts.count(text) > 1 else text for text, (_, path) in zip(texts, names, strict=True)]
    return texts


def same_data(runs: Sequence[RunFiles]) -> bool:
    """Return True if all runs have one data fingerprint in common; False if they differ or if a run has no fingerprint."""
    prints: set[Any] = {run.record.get("data_fingerprint") for run in runs}
    return len(prints) == 1 and None not in prints
