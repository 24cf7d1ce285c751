"""Trials proposed by Optuna from what came out of earlier ones (extra `sweep`).

The proposals are a function of the seed and the results alone, so a sweep that was killed ends as one that was not: proposal k is
made after the results of trials 1 to k - sweep.parallel exactly, in their order, whatever has ended by then. Nothing of Optuna is
saved: a new start asks and tells the same again, and compares what is proposed with what sweep.json has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.sweep.outcomes import FAILED, Outcome, metric_of
from linnaeus.sweep.parameters import Parameter
from linnaeus.sweep.request import Request
from linnaeus.sweep.trials import Trial, make_trial

log = logging.getLogger("linnaeus")


class Study:
    """A source of trials. `first`: what a trial looks like, none that is run; `after`: trial number -> how many results it was proposed
    after; `head` joins sweep.json."""

    on_record_first = True  # another start compares what it proposes with the record

    def __init__(self, request: Request) -> None:
        optuna = import_optuna()
        assert request.sweep.trials is not None
        if not request.parameters:
            raise ConfigError("sweep=optuna has nothing to search; give parameters, as in optimizer.lr='tag(log,interval(1e-4,1e-1))'")
        self.first = check_ends(request)
        self.request, self.metric, self.total = request, metric_of(request.sweep, self.first.config), request.sweep.trials
        self.after: dict[int, int] = {}
        self._distributions = {p.key: _distribution(p) for p in request.parameters}
        self._study = optuna.create_study(
            direction="minimize" if self.metric.mode == "min" else "maximize",
            sampler=optuna.samplers.TPESampler(seed=request.sweep.seed),
        )
        self._failed = optuna.trial.TrialState.FAIL
        self._proposed: list[Any] = []
        self._told = 0
        self._before: list[dict[str, Any]] = []

    @property
    def head(self) -> dict[str, Any]:
        parameters = {p.setting: p.text for p in self.request.parameters}
        return {"study": {"parameters": parameters, "seed": self.request.sweep.seed, "metric": self.metric.name, "mode": self.metric.mode}}

    def resume(self, before: Mapping[str, Any]) -> None:
        """Go on with the study of an earlier start. `ConfigError` when it was another one."""
        was, now = before.get("study", {}), self.head["study"]
        other = next((key for key in was if was[key] != now[key]), None)
        if other is not None:
            raise ConfigError(f"sweep.name holds a study with other {other} ({was[other]}, now {now[other]}); choose another sweep.name")
        self._before = before.get("trials", [])

    def next(self, outcomes: Mapping[int, Outcome]) -> Trial | None:
        number = len(self._proposed) + 1
        if number > self.total:
            return None
        recorded = self._before[number - 1] if number <= len(self._before) else None
        after = recorded["after"] if recorded else max(self._told, number - self.request.sweep.parallel)
        while self._told < after:
            outcome = outcomes.get(self._told + 1)
            if outcome is None or not outcome.is_final:
                return None
            self._tell(outcome)
        proposal = self._study.ask(self._distributions)
        values = {p.key: _text(p, proposal.params[p.key]) for p in self.request.parameters}
        if recorded and recorded["values"] != values:
            raise ConfigError(
                f"trial {number} was run with {recorded['values']}, and would be proposed as {values} now: optuna or a result has changed; "
                "choose another sweep.name"
            )
        self._proposed.append(proposal)
        self.after[number] = after
        return make_trial(self.request, number, values)

    def kept(self, trial: Trial) -> Outcome | None:
        """A trial stays failed once another was proposed knowing that."""
        recorded = self._before[trial.number - 1] if trial.number <= len(self._before) else {}
        if recorded.get("status") == FAILED and any(row["after"] >= trial.number for row in self._before):
            return Outcome(FAILED, seconds=recorded["seconds"], error=recorded["error"])
        return None

    def more(self) -> dict[int, dict[str, int]]:
        """What sweep.json keeps of each trial besides."""
        return {number: {"after": after} for number, after in self.after.items()}

    def _tell(self, outcome: Outcome) -> None:
        proposal = self._proposed[self._told]
        self._told += 1
        if outcome.value is not None:
            self._study.tell(proposal, outcome.value)
            return
        if outcome.status != FAILED:
            log.warning("trial %d has no %s, and teaches optuna nothing", self._told, self.metric.name)
        self._study.tell(proposal, state=self._failed)


def import_optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise ConfigError("sweep=optuna needs the package optuna; install it with: pip install -e '.[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def check_ends(request: Request) -> Trial:
    """Every choice and both ends of every interval, the others at their first; a mistake in them is found before anything runs.
    Returns the trial with the first of all."""
    first = {p.key: p.ends()[0] for p in request.parameters}
    for p in request.parameters:
        for value in p.ends():
            make_trial(request, 1, {**first, p.key: value}, look=False)
    return make_trial(request, 1, first, look=False)


def _distribution(p: Parameter) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if p.choices is not None:  # the numbers of a range by their place: what is run is then exactly one of them
        return IntDistribution(0, len(p.choices) - 1) if p.ordered else CategoricalDistribution(p.choices)
    interval = p.interval
    assert interval is not None
    if interval.whole:
        return IntDistribution(int(interval.low), int(interval.high), log=interval.log)
    return FloatDistribution(float(interval.low), float(interval.high), log=interval.log)


def _text(p: Parameter, value: Any) -> str:
    """A proposed value as it is typed."""
    if p.choices is not None:
        return p.choices[value] if p.ordered else value
    return repr(value)
