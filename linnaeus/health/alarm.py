"""Define `Alarm`: trouble in a run, with the update, the process rank and the samples to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = {  # kind -> what a person should look at first
    "loss_spike": "look at these samples; if it happens again, lower optimizer.lr or trainer.max_grad_norm",
    "gradient_spike": "look at these samples; trainer.max_grad_norm limits the damage",
    "not_finite": "the update was skipped; look at these samples, then at trainer.precision and optimizer.lr",
    "learning_rate": "lower optimizer.lr, or lengthen lr_scheduler.warmup",
    "divergence": "lower optimizer.lr, and look at the losses before this step",
    "dead_task": "check the labels and the weight of the task, and that the loss depends on its output layer",
    "task_weights": "look at train/<task>/weight; weighting=fixed keeps them constant",
    "no_progress": "check that the labels belong to the samples, then try other values of optimizer.lr",
    "validation_gap": "check that both sets have the same classes and labels; if they have, the model overfits",
}
SHOWN = 3  # samples named in the text of an alarm
LISTED = 64  # samples in a row of alarms.jsonl; the text has their number


@dataclass(frozen=True)
class Alarm:
    """Trouble found in a run.

    kind: a key of `KINDS`. step: the update to look at, as `global_step` after it. text: one sentence without the place.
    process_rank: the process whose part of the global batch it is; None if all of them contribute, or if it is unknown.
    tasks: the tasks concerned, () for all. value, usual: the number and what it was before; None if they do not apply.
    samples: names of the first `LISTED` samples of that part. sample_count: number of samples of that part."""

    kind: str
    step: int
    text: str
    process_rank: int | None = None
    tasks: tuple[str, ...] = ()
    value: float | None = None
    usual: float | None = None
    samples: tuple[str, ...] = ()
    sample_count: int = 0

    def row(self) -> dict[str, Any]:
        """Return the row of alarms.jsonl, without its `global_step`, the step at which the alarm was raised."""
        names = {"tasks": list(self.tasks), "samples": list(self.samples)}
        plain = {name: getattr(self, name) for name in ("kind", "step", "text", "process_rank", "value", "usual", "sample_count")}
        return plain | names

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Alarm:
        """Return the alarm of a row of alarms.jsonl. Unknown entries are left out, missing ones have their defaults."""
        known = {name: row[name] for name in cls.__dataclass_fields__ if name in row}
        return cls(**(known | {name: tuple(row.get(name) or ()) for name in ("tasks", "samples")}))

    def headline(self) -> str:
        """Return the update and the trouble, without the place and the advice."""
        return f"step {self.step:,}: {self.text}"

    def describe(self) -> str:
        """Return a line for the log: the trouble, its place, and advice."""
        return f"{self.headline()}{self._place()}; {KINDS[self.kind]}"

    def _place(self) -> str:
        parts = [] if self.process_rank is None else [f"process rank {self.process_rank}"]
        if self.samples:
            more = self.sample_count - min(SHOWN, len(self.samples))
            names = ", ".join(self.samples[:SHOWN])
            parts.append(f"samples {names}" + (f" and {more} more" if more > 0 else ""))
        return f" ({'; '.join(parts)})" if parts else ""


def dominant_process(values: Sequence[float], usual: float) -> int | None:
    """Return the process rank to which most of a rise of a sum belongs; None if it is spread over several.

    values: the part of the sum of each process. usual: the usual sum."""
    if len(values) == 1:
        return 0
    excess = [max(0.0, value - usual / len(values)) for value in values]
    largest = max(excess)
    return excess.index(largest) if largest > 0.5 * sum(excess) else None
