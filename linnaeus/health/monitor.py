"""Define `HealthMonitor`, which raises alarms from the numbers of a row of metrics. All processes raise the same alarms, also after a
resume.

A problem that stays raises one alarm. A later alarm of the same kind requires an interval without the problem: `QUIET_UPDATES` updates for
a problem of a single update, more than `QUIET_ROWS` rows for a lasting problem. A problem found in a validation raises at most one alarm in
a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from linnaeus.health.alarm import Alarm, dominant_process
from linnaeus.health.conditions import Conditions, RowNumbers
from linnaeus.health.label_statistics import NO_SKILL_AT_ONCE, SHUFFLED, LabelStatistics, ValidationNumbers, label_problems
from linnaeus.health.running_scale import GRADIENT, LOSS, WINDOW, RunningScale, Spike

QUIET_UPDATES = WINDOW  # updates without a problem after which it raises an alarm again
LASTING_ROWS, QUIET_ROWS = 2, 5  # rows with a lasting problem before its alarm; rows without it that do not yet allow another alarm
SUSPECTED = "suspected_labels"  # key in `_last_seen` of a first validation at chance level, which does not raise an alarm yet
SCALE_SEARCH = 8  # non-finite gradients in a row that are normal in fp16: the loss scale is halved from 2**16 to 2**8


class Updates(NamedTuple):
    """Numbers of the n consecutive updates since the last row, for T tasks and W processes. first_step: `global_step` after the first one.

    losses: mean loss of each task, [n, T]; NaN without a label, infinite if the loss is not finite. total: mean over the tasks with labels
    of loss sum / denominator in the objective, [n]. processes: sum of the losses on each process, [n, W]. norms: gradient norm before
    clipping, [n]; not finite if the update was skipped. settled: [n], True if the data of the update are comparable with the data of
    earlier updates; () if all are. Not comparable are a small last batch of an epoch, and updates while a curriculum changes the mixture of
    the data. gradients: norm of the gradient of one parameter on each process, before the sum over the processes, [n, W] or [n, 0]; () if
    it was not measured."""

    first_step: int
    losses: Sequence[Sequence[float]]
    total: Sequence[float]
    processes: Sequence[Sequence[float]]
    norms: Sequence[float]
    settled: Sequence[bool] = ()
    gradients: Sequence[Sequence[float]] = ()


class HealthMonitor:
    """Source of the alarms of a run.

    count: number of alarms so far. newest_trouble: step of the newest row of metrics or validation with a problem that has raised an alarm,
    now or before; None before the first alarm. After it rows and reports are denser (`OpsSchedule.dense_due`)."""

    def __init__(
        self,
        tasks: Sequence[str],
        scaled: bool = False,
        warm: bool = False,
        labels: Mapping[str, LabelStatistics] | None = None,
        ranks: bool = True,
    ) -> None:
        """scaled: True if the run uses a loss scale (fp16), where a few skipped updates are normal. warm: True for a warm start. labels:
        task -> statistics of its labels, for the tasks where they are known. ranks: False if alarms must not name a process rank."""
        self.tasks, self.scaled, self.ranks = tuple(tasks), scaled, ranks
        self.count = 0
        self.newest_trouble: int | None = None
        signals = {"loss": LOSS, "gradient": GRADIENT} | ({task: LOSS for task in self.tasks} if len(self.tasks) > 1 else {})
        self._scales = {name: RunningScale(limits) for name, limits in signals.items()}
        self._last_seen: dict[str, int] = {}  # kind of alarm -> the newest update with this problem
        self._skipped_in_a_row = 0
        self._conditions, self._labels = Conditions(tasks, warm), labels or {}
        self._lasting: dict[str, tuple[int, int, bool]] = {}  # problem -> (rows with it, rows without it since, True after its alarm)

    def observe(self, updates: Updates) -> list[Alarm]:
        """Return the new alarms about single updates, in the order of their steps."""
        self._conditions.update(updates.total, updates.losses)
        found = [*self._not_finite(updates), *self._loss_spikes(updates), *self._gradient_spikes(updates)]
        found = found if self.ranks else [dataclasses.replace(alarm, process_rank=None) for alarm in found]
        if found:
            self.newest_trouble = updates.first_step + len(updates.norms) - 1
        return self._raise(sorted(found, key=lambda alarm: alarm.step))

    def observe_row(self, row: RowNumbers) -> list[Alarm]:
        """Return the new alarms about problems that are present in `LASTING_ROWS` successive rows. Call this after `observe`."""
        present = {"/".join((alarm.kind, *alarm.tasks)): alarm for alarm in self._conditions.in_row(row, self._scales)}
        new = []
        for name in sorted({*present, *self._lasting}):
            rows, absent, said = self._lasting.get(name, (0, 0, False))
            rows, absent = (rows + 1, 0) if name in present else (0, absent + 1)
            if rows >= LASTING_ROWS and not said:
                new.append(present[name])
                said = True
            self._lasting[name] = rows, absent, said
            self.newest_trouble = row.step if said and rows else self.newest_trouble
            if absent > QUIET_ROWS:
                del self._lasting[name]
        return self._count(new)

    def observe_validation(self, results: ValidationNumbers) -> list[Alarm]:
        """Return the new alarms about a validation. Each kind is raised at most once in a run.

        Before the fraction `NO_SKILL_AT_ONCE` of the run, an alarm about results at chance level (`shuffled_labels`) needs two successive
        validations at chance level."""
        present = {alarm.kind: alarm for alarm in label_problems(self.tasks, self._labels, results)}
        if results.loss is not None:
            present |= {alarm.kind: alarm for alarm in self._conditions.in_validation(results.step, results.loss, self._scales["loss"])}
        if SHUFFLED not in present:
            self._last_seen.pop(SUSPECTED, None)
        elif results.fraction < NO_SKILL_AT_ONCE and SUSPECTED not in self._last_seen:
            self._last_seen[SUSPECTED] = present.pop(SHUFFLED).step
        found = [alarm for alarm in present.values() if alarm.kind not in self._last_seen]
        self._last_seen |= {alarm.kind: alarm.step for alarm in found}
        self.newest_trouble = results.step if found else self.newest_trouble
        return self._count(found)

    def _raise(self, found: Sequence[Alarm]) -> list[Alarm]:
        """Return and count the alarms in `found` that are new: no problem of the same kind was present in the `QUIET_UPDATES` updates
        before."""
        new = []
        for alarm in found:
            seen = self._last_seen.get(alarm.kind)
            if seen is None or alarm.step - seen > QUIET_UPDATES:
                new.append(alarm)
            self._last_seen[alarm.kind] = max(alarm.step, seen or 0)
        return self._count(new)

    def _count(self, new: list[Alarm]) -> list[Alarm]:
        self.count += len(new)
        return new

    def _not_finite(self, updates: Updates) -> Iterator[Alarm]:
        if updates.norms and math.isfinite(sum(updates.norms)):  # almost always
            self._skipped_in_a_row = 0
            return
        for number, norm in enumerate(updates.norms):
            if math.isfinite(norm):
                self._skipped_in_a_row = 0
                continue
            self._skipped_in_a_row += 1
            parts = updates.processes[number] if number < len(updates.processes) else []
            bad = [rank for rank, part in enumerate(parts) if not math.isfinite(part)]
            own = [rank for rank, part in enumerate(self._gradients(updates, number)) if not math.isfinite(part)]
            if not bad and self.scaled and self._skipped_in_a_row <= SCALE_SEARCH:
                continue
            tasks = tuple(task for task, loss in zip(self.tasks, updates.losses[number]) if bad and math.isinf(loss))
            what = "the loss" if bad else "the gradient"
            ranks = bad or own
            rank = ranks[0] if len(ranks) == 1 else 0 if len(parts) == 1 else None
            yield Alarm("not_finite", updates.first_step + number, f"{what} is not finite", rank, tasks)

    def _loss_spikes(self, updates: Updates) -> Iterator[Alarm]:
        spikes: dict[int, dict[str, Spike]] = {}
        columns = {"loss": updates.total} | {
            task: [losses[index] for losses in updates.losses] for index, task in enumerate(self.tasks) if task in self._scales
        }
        for name, values in columns.items():
            for spike in self._scales[name].spikes(updates.first_step, values, updates.settled):
                spikes.setdefault(spike.step, {})[name] = spike
        for step, found in spikes.items():
            spike = found.get("loss") or max(found.values(), key=lambda spike: spike.value / max(spike.usual, 1e-30))
            tasks = tuple(task for task in self.tasks if task in found)
            name = "the loss" if "loss" in found else f"the loss of {tasks[0]}"
            parts = updates.processes[step - updates.first_step]
            usual = sum(parts) * spike.usual / spike.value if spike.value else 0.0
            yield Alarm("loss_spike", step, _rise(name, spike), dominant_process(parts, usual), tasks, spike.value, spike.usual)

    def _gradient_spikes(self, updates: Updates) -> Iterator[Alarm]:
        for spike in self._scales["gradient"].spikes(updates.first_step, updates.norms, updates.settled):
            number = spike.step - updates.first_step
            parts = self._gradients(updates, number)
            rank = dominant_process(parts, sum(parts) * spike.usual / spike.value) if parts else None
            rank = 0 if len(updates.processes[number]) == 1 else rank
            yield Alarm("gradient_spike", spike.step, _rise("the gradient norm", spike), rank, (), spike.value, spike.usual)

    def _gradients(self, updates: Updates, number: int) -> Sequence[float]:
        """Return the norm on each process of update `number` of `updates`, [W]; [] if it was not measured."""
        return updates.gradients[number] if number < len(updates.gradients) else []

    def forget_alarms(self) -> None:
        """Delete the alarms so far, for a run that continues another one. A problem that remains raises an alarm of this run, too. The
        numbers with which later updates are compared stay."""
        self.count, self.newest_trouble = 0, None
        self._last_seen, self._lasting = {}, {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "newest_trouble": self.newest_trouble,
            "skipped_in_a_row": self._skipped_in_a_row,
            "last_seen": dict(self._last_seen),
            "conditions": self._conditions.state_dict(),
            "lasting": dict(self._lasting),
            "scales": {name: scale.state_dict() for name, scale in self._scales.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count, self._skipped_in_a_row = state["count"], state["skipped_in_a_row"]
        self.newest_trouble = state.get("newest_trouble")  # an older checkpoint does not have it
        self._last_seen, self._lasting = dict(state["last_seen"]), dict(state["lasting"])
        self._conditions.load_state_dict(state["conditions"])
        for name, scale in self._scales.items():
            scale.load_state_dict(state["scales"][name])


def _rise(name: str, spike: Spike) -> str:
    if spike.usual == 0:
        return f"{name} is {spike.value:.4g}, and usually 0"
    return f"{name} is {spike.value:.4g}, {spike.value / spike.usual:.1f} x the usual {spike.usual:.4g}"
