"""Define `Alarm`: a problem of a run, and the update, process rank and samples in which it was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = {  # kind -> advice
    "loss_spike": "look at these samples; if it happens again, lower optimizer.lr or trainer.max_grad_norm",
    "gradient_spike": "look at these samples; trainer.max_grad_norm limits the size of such an update",
    "not_finite": "the update was skipped; look at these samples, then at trainer.precision and optimizer.lr",
    "learning_rate": "lower optimizer.lr, or lengthen lr_scheduler.warmup",
    "divergence": "lower optimizer.lr, and look at the losses before this step",
    "dead_task": "check the labels and the weight of the task, and that the loss depends on its output layer",
    "saturated_task": "its output is certain and wrong: lower the weight of the task or optimizer.lr, and check its labels",
    "task_weights": "look at train/<task>/weight; weighting=fixed keeps them constant",
    "no_progress": "check that the labels belong to the samples, then try other values of optimizer.lr",
    "shuffled_labels": "check that the training labels belong to their samples, and that both sets have the same numbering of classes",
    "label_shift": "check how both sets were drawn: the model learns the class frequencies of training",
    "validation_gap": "check that both sets have the same classes and labels; if they have, the model overfits",
}
# Alarms about times and memory, which differ between equal runs. `text` has step, process rank and advice. Rank 0 writes them to the log
# and to alarms.jsonl. They are not counted in `train/alarms`, and a checkpoint has no state of them, because rows of metrics and
# checkpoints of a resumed run must be equal to those of an unbroken run. So a later launch may raise them again.
MEASURED = ("data_wait", "slow_rank", "memory_growth", "throttled")
SHOWN = 3  # samples named in the text of an alarm
LISTED = 64  # samples in a row of alarms.jsonl; the text has their number


@dataclass(frozen=True)
class Alarm:
    """Problem found in a run.

    kind: a key of `KINDS`, or one of `MEASURED`. step: the `global_step` after the update with the problem. text: description without step,
    rank and samples; for a kind of `MEASURED` the complete line.
    process_rank: rank of the process whose part of the global batch caused the problem; None if several did, or if the process is unknown.
    tasks: names of the tasks with the problem; () for all. value: the number that raised the alarm; None if there is none. usual: the
    number with which `value` was compared, such as the median of earlier updates; None if there is none.

    samples: names of the first `LISTED` samples of the update, on process `process_rank`, or on all processes if `process_rank` is None; ()
    if the problem is not one of a single update. sample_count: number of all these samples, not only of the first `LISTED`."""

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
        """Return the alarm as a row of alarms.jsonl. The key `global_step`, the step at which the alarm was raised, is added by the
        writer."""
        names = {"tasks": list(self.tasks), "samples": list(self.samples)}
        plain = {name: getattr(self, name) for name in ("kind", "step", "text", "process_rank", "value", "usual", "sample_count")}
        return plain | names

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Alarm:
        """Return the alarm in a row of alarms.jsonl. Unknown keys are ignored. Missing keys have the defaults of the class; a missing
        `kind`, `step` or `text` raises TypeError."""
        known = {name: row[name] for name in cls.__dataclass_fields__ if name in row}
        return cls(**(known | {name: tuple(row.get(name) or ()) for name in ("tasks", "samples")}))

    def headline(self) -> str:
        """Return the step and the text, such as `step 1,200: the loss is 9.1`."""
        return self.text if self.kind in MEASURED else f"step {self.step:,}: {self.text}"

    def describe(self) -> str:
        """Return a line for the log: step, text, process rank, samples and advice."""
        return self.text if self.kind in MEASURED else f"{self.headline()}{self._place()}; {KINDS[self.kind]}"

    def _place(self) -> str:
        parts = [] if self.process_rank is None else [f"process rank {self.process_rank}"]
        if self.samples:
            more = self.sample_count - min(SHOWN, len(self.samples))
            names = ", ".join(self.samples[:SHOWN])
            parts.append(f"samples {names}" + (f" and {more} more" if more > 0 else ""))
        return f" ({'; '.join(parts)})" if parts else ""


def dominant_process(values: Sequence[float], usual: float) -> int | None:
    """Return the rank of the process with more than half of the total increase over W processes; None if there is no such process.

    values: contribution of each process to a sum, [W]. usual: the usual value of that sum. The increase of a process is its contribution
    minus usual / W, or 0 if this difference is negative. The total increase is the sum of the increases. For W = 1 the result is always
    0."""
    if len(values) == 1:
        return 0
    excess = [max(0.0, value - usual / len(values)) for value in values]
    largest = max(excess)
    return excess.index(largest) if largest > 0.5 * sum(excess) else None
