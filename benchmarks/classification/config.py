"""Define the configuration classes of the classification workload of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting


@dataclass(frozen=True)
class TensorsConfig(DataConfig):
    samples: int = setting("samples of an epoch", low=1)
    held: int = setting("different samples among them, held in memory", low=1)
    shape: list[int] = setting("shape of a sample")
    classes: int = setting("classes", low=2)


@dataclass(frozen=True)
class MLPConfig:
    name: str = setting("which network")
    hidden: int = setting("width of both hidden layers", low=1)


@dataclass(frozen=True)
class ViTConfig:
    name: str = setting("which network")
    architecture: str = setting("name of a timm vision transformer")


DIRECTIONS = {"top1": "max"}
SCHEMAS = {"data": {"tensors": TensorsConfig}, "model": {"mlp": MLPConfig, "vit": ViTConfig}}
