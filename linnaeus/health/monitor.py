"""`HealthMonitor`: raise alarms from the numbers of a row of metrics, once each, the same after a resume and on all processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from linnaeus.health.alarm import Alarm, dominant_process
from linnaeus.health.conditions import Conditions, RowNumbers
from linnaeus.health.running_scale import GRADIENT, LOSS, WINDOW, RunningScale, Spike

DENSE_ROWS = 5  # rows of metrics after an alarm that are also reported
QUIET_UPDATES = WINDOW  # updates without the trouble after which it is news again
LASTING_ROWS, QUIET_ROWS = 2, 5  # rows with lasting trouble before it is said, rows without it after which it is news again
SCALE_SEARCH = 8  # non-finite gradients in a row that the search for the loss scale of fp16 explains: 2**16 falls to 2**8


class Updates(NamedTuple):
    """Numbers of the consecutive updates since the last row, the first of them `first_step`.

    losses: mean loss of each task per update; NaN without a label, infinite if the loss is not finite. total: mean over the tasks with
    labels, per update. processes: sum of the losses on each process, per update. norms: gradient norm before clipping, per update; not
    finite if the update was skipped. settled: per update, False if it has a small part of a batch only, and while a curriculum changes
    the mixture of the data."""

    first_step: int
    losses: Sequence[Sequence[float]]
    total: Sequence[float]
    processes: Sequence[Sequence[float]]
    norms: Sequence[float]
    settled: Sequence[bool] = ()


class HealthMonitor:
    """Alarms of a run and the memory that they need.

    `count`: number of alarms so far. `dense_rows`: number of further rows of metrics that are reported because of an alarm."""

    def __init__(self, tasks: Sequence[str], scaled: bool = False, warm: bool = False) -> None:
        """`scaled`: True if a loss scale is searched (fp16), so that single skipped updates are normal. `warm`: True if the run starts from
        given weights."""
        self.tasks, self.scaled = tuple(tasks), scaled
        self.count = self.dense_rows = 0
        signals = {"loss": LOSS, "gradient": GRADIENT} | ({task: LOSS for task in self.tasks} if len(self.tasks) > 1 else {})
        self._scales = {name: RunningScale(limits) for name, limits in signals.items()}
        self._last_seen: dict[str, int] = {}  # kind of trouble -> the newest update that had it
        self._skipped_in_a_row = 0
        self._conditions = Conditions(tasks, warm)
        self._lasting: dict[str, tuple[int, int, bool]] = {}  # trouble -> (rows with it, rows without it since, True if it was said)

    def observe(self, updates: Updates) -> list[Alarm]:
        """Return the new alarms of the updates of a row, the earliest first."""
        self.dense_rows = max(0, self.dense_rows - 1)
        self._conditions.update(updates.total)
        found = [*self._not_finite(updates), *self._loss_spikes(updates), *self._gradient_spikes(updates)]
        return self._raise(sorted(found, key=lambda alarm: alarm.step))

    def observe_row(self, row: RowNumbers) -> list[Alarm]:
        """Return the new alarms about lasting trouble: such as is present in `LASTING_ROWS` rows in a row. Call this after `observe`."""
        present = {"/".join((alarm.kind, *alarm.tasks)): alarm for alarm in self._conditions.in_row(row, self._scales["loss"])}
        new = []
        for name in sorted({*present, *self._lasting}):
            rows, absent, said = self._lasting.get(name, (0, 0, False))
            rows, absent = (rows + 1, 0) if name in present else (0, absent + 1)
            if rows >= LASTING_ROWS and not said:
                new.append(present[name])
                said = True
            self._lasting[name] = rows, absent, said
            if absent > QUIET_ROWS:
                del self._lasting[name]
        return self._count(new)

    def observe_validation(self, step: int, loss: float) -> list[Alarm]:
        """Return the new alarm after a validation with this `loss`: said once in a run."""
        found = [alarm for alarm in self._conditions.in_validation(step, loss, self._scales["loss"]) if alarm.kind not in self._last_seen]
        self._last_seen |= {alarm.kind: alarm.step for alarm in found}
        return self._count(found)

    def _raise(self, found: Sequence[Alarm]) -> list[Alarm]:
        """Return those of `found` that are news, and count them."""
        new = []
        for alarm in found:
            seen = self._last_seen.get(alarm.kind)
            if seen is None or alarm.step - seen > QUIET_UPDATES:
                new.append(alarm)
            self._last_seen[alarm.kind] = max(alarm.step, seen or 0)
        return self._count(new)

    def _count(self, new: list[Alarm]) -> list[Alarm]:
        self.count += len(new)
        self.dense_rows = DENSE_ROWS if new else self.dense_rows
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
            if not bad and self.scaled and self._skipped_in_a_row <= SCALE_SEARCH:
                continue
            tasks = tuple(task for task, loss in zip(self.tasks, updates.losses[number]) if bad and math.isinf(loss))
            what = "the loss" if bad else "the gradient"
            rank = bad[0] if len(bad) == 1 else 0 if len(parts) == 1 else None
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
            rank = 0 if updates.processes and len(updates.processes[0]) == 1 else None
            yield Alarm("gradient_spike", spike.step, _rise("the gradient norm", spike), rank, (), spike.value, spike.usual)

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "dense_rows": self.dense_rows,
            "skipped_in_a_row": self._skipped_in_a_row,
            "last_seen": dict(self._last_seen),
            "conditions": self._conditions.state_dict(),
            "lasting": dict(self._lasting),
            "scales": {name: scale.state_dict() for name, scale in self._scales.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count, self.dense_rows, self._skipped_in_a_row = state["count"], state["dense_rows"], state["skipped_in_a_row"]
        self._last_seen, self._lasting = dict(state["last_seen"]), dict(state["lasting"])
        self._conditions.load_state_dict(state["conditions"])
        for name, scale in self._scales.items():
            scale.load_state_dict(state["scales"][name])


def _rise(name: str, spike: Spike) -> str:
    return f"{name} is {spike.value:.4g}, {spike.value / spike.usual:.1f} x the usual {spike.usual:.4g}"
