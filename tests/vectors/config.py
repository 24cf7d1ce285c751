"""Groups of the vectors workload."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting


@dataclass(frozen=True)
class VectorsConfig(DataConfig):
    train_samples: int = setting("vectors to train on", low=1)
    validation_samples: int = setting("vectors to validate on", low=1)
    width: int = setting("numbers in a vector", low=1)
    components: list[str] = setting("metadata components of a vector, which can be masked")
    unlabelled: float = setting("share of the samples without the second target", low=0, high=1)


@dataclass(frozen=True)
class MLPConfig:
    name: str = setting("which network")
    hidden: int = setting("width of the hidden layers", low=1)
    dropout: float = setting("dropout of the hidden layers", low=0, high=1)
    batch_norm: bool = setting("normalise by batch statistics")


DIRECTIONS = {"mse": "min", "r2": "max"}
SCHEMAS = {"data": {"vectors": VectorsConfig}, "model": {"mlp": MLPConfig}}
