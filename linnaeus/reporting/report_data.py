"""`ReportData`: everything a report may tell of one moment of a run, as plain values. The engine fills it in, sections read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ReportData:
    """All fields but `clocks` are determined by the configuration, the number of processes and `step`.

    `row`: the newest row of training metrics (`train/loss`, `train/<task>/weight`, ...), empty before the first. `units`: what samples
    hold, and how much of it was seen (`("tokens", 3_932_160)`). `batch`: samples of a micro-batch, micro-batches of an update on one
    process, processes. `validation`: the newest results of the passes made so far (`val/loss`), the last of them at step `validated`.
    `more`: rows of the curriculum, growth and workload. `clocks`: `time/...` (means and sums of this launch; wall_seconds of all),
    `recent/...` (over the last reports) and `memory/...`, those that are known.
    """

    step: int
    total_steps: int
    steps_per_epoch: int
    tasks: tuple[str, ...] = ()
    row: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    units: tuple[str, int] | None = None
    batch: tuple[int, int, int] = (1, 1, 1)
    global_batch_size: int = 1
    parameters: int = 0
    active_parameters: int = 0
    validated: int = -1
    validation: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, float | int | str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
