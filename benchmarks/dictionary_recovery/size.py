"""Conditions of a comparison that are the same for both programs."""

from typing import NamedTuple


class Size(NamedTuple):
    planted: str  # name in `planted_config.SETS`
    features: int  # vectors of a dictionary
    k: float
    samples: int
    batch: int
    lr: float
    dead_after: int  # samples without activity
    tested: int = 20_000
    device: str | None = None  # "cuda"; None: the CPU, as in lines of finished trials from before other devices
