"""Define the configuration classes of the multi-task workload `ranks` of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.classification.config import ViTConfig
from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting


@dataclass(frozen=True)
class RankedTensorsConfig(DataConfig):
    samples: int = setting("samples of an epoch", low=1)
    held: int = setting("different samples among them, held in memory", low=1)
    shape: list[int] = setting("shape of a sample")
    classes: list[int] = setting("classes of each task")


DIRECTIONS = {"top1": "max"}
SCHEMAS = {"data": {"ranked_tensors": RankedTensorsConfig}, "model": {"vit": ViTConfig}}
