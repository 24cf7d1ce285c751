"""Provide the trials of a sweep in their order. `Grid` composes all trials in advance; `OptunaStudy` (`optuna_study.py`) composes them one
by one."""

import dataclasses
import hashlib
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.config.environment import saved_tree
from linnaeus.errors import ConfigError
from linnaeus.rundir import update_hash
from linnaeus.sweep.request import Request
from linnaeus.sweep.trial import Trial, make_trial
from linnaeus.sweep.trial_results import WAITING, Metric, TrialResult, common_metric


class TrialSource:
    """Base class of the sources of trials.

    `trials`: the trials composed so far. `results`: trial number (from 1) -> result. `first`: an example trial, for the settings common to
    all trials. `total`: the number of trials in the whole sweep."""

    record_before_start = False  # True if a trial must not start before sweep.json on the disk contains it
    first: Trial
    total: int
    metric: Metric

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.results: dict[int, TrialResult] = {}

    def resume(self, saved: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        """Continue the sweep whose sweep.json contains `saved`; {} for a new sweep. `header`: result of `sweep_header` for the present
        command.

        The default does nothing: the results of a grid are in its run directories, so another grid may have the same name. A subclass
        raises `ConfigError` if its trials depend on `saved` and `saved` belongs to another sweep than `header`."""

    def next(self) -> Trial | None:
        """Return the next trial to run. Return None if all trials were returned, or if a running trial must end first."""
        raise NotImplementedError

    def saved_failure(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial that failed in an earlier start and must not be run again; None if it must be run."""
        return None

    def rows(self) -> list[tuple[Trial, TrialResult]]:
        """Return (trial, result) for every trial composed so far, by number."""
        return [(trial, self.results.get(trial.number, TrialResult(WAITING))) for trial in self.trials]

    def ranking(self) -> list[tuple[Trial, TrialResult]]:
        """Return (trial, result) for every trial composed so far, the best first. Trials without a value of the metric come last, sorted by
        number."""
        return sorted(self.rows(), key=lambda row: (self.metric.rank(row[1].value), row[0].number))

    def record(self) -> list[dict[str, Any]]:
        """Return the list `trials` of sweep.json: a row for each trial composed so far."""
        return [
            {
                "trial": trial.number,
                "values": trial.values,
                "overrides": trial.overrides,
                "directory": str(trial.directory),
                **dataclasses.asdict(result),
            }
            for trial, result in self.rows()
        ]


class Grid(TrialSource):
    """Source of every combination of the values of the parameters. The last parameter changes fastest. Failed trials are run again.

    The constructor raises `ConfigError` for the first invalid trial, and if two trials are the same run."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        for p in request.parameters:
            if p.choices is None:
                listed = ",".join(value.removesuffix(".0") for value in p.values_to_check())
                raise ConfigError(f"{p.key}={p.text} is not a list of values; choose sweep=optuna, or set a list: {p.key}={listed}")
        by_directory: dict[Path, Trial] = {}
        for number, values in enumerate(itertools.product(*(p.choices or () for p in request.parameters)), 1):
            trial = make_trial(request, number, {p.key: value for p, value in zip(request.parameters, values)})
            other = by_directory.setdefault(trial.directory, trial)
            if other is not trial:
                raise ConfigError(
                    f"trials {other.number} ({other.describe()}) and {number} ({trial.describe()}) are the same run {trial.directory}: "
                    "they differ in nothing that alters the updates; leave one out, or set run.name"
                )
            self.trials.append(trial)
        self.first, self.total = self.trials[0], len(self.trials)
        self.metric = common_metric(request.sweep, self.trials)
        self._remaining = iter(self.trials)

    def next(self) -> Trial | None:
        return next(self._remaining, None)


def sweep_header(request: Request, metric: Metric) -> dict[str, Any]:
    """Return the content of sweep.json except `trials`."""
    return {
        "command": ["linnaeus", *sys.argv[1:]],
        "parameters": {p.setting: p.text for p in request.parameters},
        "fixed": request.fixed,
        "metric": metric.name,
        "mode": metric.mode,
        "seed": request.sweep.seed,
    }


def sweep_name(request: Request, first: Trial) -> str:
    """Return the name of the sweep's directory: `sweep.name`, or by default ten hexadecimal digits of a hash.

    The hash depends on the swept values and on the settings that change optimizer updates, so the same sweep has the same name with any
    launcher. With `plan=true` the name ends in `-plan`, so that the files of a sweep that has been trained stay."""
    end = "-plan" if first.config.plan else ""
    if request.sweep.name is not None:
        return request.sweep.name + end
    content: dict[str, Any] = {
        "parameters": [[p.setting, p.text] for p in request.parameters],
        "first": update_hash(saved_tree(first.config)),
        "experiment": first.config.run.experiment,
        "run": first.config.run.name,
        "method": request.sweep.method,
    }
    if request.sweep.method == "optuna":  # the proposals of Optuna depend on these too
        content["study"] = [request.sweep.seed, request.sweep.metric, request.sweep.mode]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:10] + end
