"""Trials of a sweep that Optuna proposes from the results of earlier trials (needs the extra `sweep`).

The proposals are a function of the seed and the results alone, so a sweep that was killed and continued has the same trials as one that was
not killed: proposal k uses exactly the results of trials 1 to k - sweep.parallel, in this order, even if other trials have ended by then.
No state of Optuna is saved: a new start repeats all proposals and results and compares the proposals with sweep.json.

Optuna's storages are not used, because they do not contain the sampler's random state. Also, the journal file is unreadable after a full
disk has cut off an append, and after a kill during an append the next start waits 30 s for the lock (optuna 5.0)."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.sweep.parameters import Parameter
from linnaeus.sweep.request import Request
from linnaeus.sweep.trial import Trial, make_trial
from linnaeus.sweep.trial_results import FAILED, TrialResult, metric_of
from linnaeus.sweep.trial_source import TrialSource

log = logging.getLogger("linnaeus")


class OptunaStudy(TrialSource):
    """Source of trials from Optuna's TPE sampler.

    In sweep.json each trial also has the entry `after`: the number of earlier results that Optuna used to propose the trial."""

    record_before_start = True  # the next start compares its proposals with sweep.json

    def __init__(self, request: Request) -> None:
        super().__init__()
        optuna = import_optuna()
        assert request.sweep.trials is not None
        if not request.parameters:
            raise ConfigError("sweep=optuna has nothing to search; set a parameter, as in optimizer.lr='tag(log,interval(1e-4,1e-1))'")
        self.first = check_values(request)
        self.request, self.metric, self.total = request, metric_of(request.sweep, self.first.config), request.sweep.trials
        self.after: list[int] = []
        self._distributions = {p.key: _distribution(p) for p in request.parameters}
        self._study = optuna.create_study(
            direction="minimize" if self.metric.mode == "min" else "maximize",
            sampler=optuna.samplers.TPESampler(seed=request.sweep.seed),
        )
        self._failed = optuna.trial.TrialState.FAIL
        self._results_added = 0
        self._saved: list[dict[str, Any]] = []

    def resume(self, saved: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        for key in ("parameters", "metric", "mode", "seed"):
            if saved and saved.get(key) != header[key]:
                raise ConfigError(f"sweep.name: that study has {key} {saved.get(key)}, not {header[key]}; choose another sweep.name")
        self._saved = saved.get("trials", [])
        if self._saved:
            before = Path(self._saved[0]["directory"])
            now = make_trial(self.request, 1, self._saved[0]["values"], check_directory=False).directory
            if before.parts[-2:] != now.parts[-2:]:  # `run.root` may be another one
                raise ConfigError(f"sweep.name: trial 1 of that study is {before}, not {now}: settings differ; choose another sweep.name")

    def next(self) -> Trial | None:
        number = len(self.trials) + 1
        if number > self.total:
            return None
        saved = self._saved_row(number)
        after = saved["after"] if saved else max(self._results_added, number - self.request.sweep.parallel)
        while self._results_added < after:
            result = self.results.get(self._results_added + 1)
            if result is None or not (result.is_good or result.status == FAILED):
                return None
            if result.value is None and result.status != FAILED:
                log.warning("trial %d has no %s; optuna counts it as failed", self._results_added + 1, self.metric.name)
            self._study.tell(self._results_added, result.value, None if result.value is not None else self._failed)
            self._results_added += 1
        proposed = self._study.ask(self._distributions).params
        values = {p.key: _as_typed(p, proposed[p.key]) for p in self.request.parameters}
        if saved and saved["values"] != values:
            raise ConfigError(
                f"trial {number} was run with {saved['values']}, and would be proposed as {values} now: optuna or a result has changed; "
                "choose another sweep.name"
            )
        self.trials.append(make_trial(self.request, number, values))
        self.after.append(after)
        return self.trials[-1]

    def saved_failure(self, trial: Trial) -> TrialResult | None:
        """Return the failed result of `trial` from sweep.json if a later trial was proposed from it, otherwise None.

        Such a trial is not run again: another result would change the later proposals."""
        saved = self._saved_row(trial.number)
        if saved.get("status") == FAILED and any(row["after"] >= trial.number for row in self._saved):
            return TrialResult(FAILED, seconds=saved["seconds"], error=saved["error"])
        return None

    def record(self) -> list[dict[str, Any]]:
        rows = [{**row, "after": after} for row, after in zip(super().record(), self.after)]
        return rows + self._saved[len(rows) :]  # proposals of an earlier start that are not repeated yet

    def _saved_row(self, number: int) -> dict[str, Any]:
        """Return the row of trial `number` in the sweep.json of an earlier start; {} if there is none."""
        return self._saved[number - 1] if number <= len(self._saved) else {}


def import_optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise ConfigError("sweep=optuna needs the package optuna; install it with: pip install 'linnaeus[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def check_values(request: Request) -> Trial:
    """Compose a trial for every choice and for both ends of every interval, with all other parameters at their first value. Write nothing.

    Return the trial with the first value of every parameter. Raise `ConfigError` for an invalid value."""
    first = {p.key: p.values_to_check()[0] for p in request.parameters}
    for p in request.parameters:
        for value in p.values_to_check():
            make_trial(request, 1, {**first, p.key: value}, check_directory=False)
    return make_trial(request, 1, first, check_directory=False)


def _distribution(p: Parameter) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if p.choices is not None:  # a range is sampled by index, so that each value is exactly one of its numbers
        return IntDistribution(0, len(p.choices) - 1) if p.ordered else CategoricalDistribution(p.choices)
    assert p.interval is not None
    low, high, log = p.interval.low, p.interval.high, p.interval.log
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _as_typed(p: Parameter, value: Any) -> str:
    """Return `value`, proposed by Optuna for the parameter `p`, as the text that a user would type on the command line."""
    if p.choices is not None:
        return p.choices[value] if p.ordered else value
    return repr(value)
