"""Null labels: left out of the loss, or learnt as a class of their own that is phased in by schedule.

With `head.nulls=predict` every rank has one more class, the last, for "not known at this rank". In training a null label becomes that
class with probability 1 - `schedule.null_mask`, keyed by (seed, global_step, position), and is left out (-1) otherwise.
Validation never counts it: accuracies are over the known labels and the real classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus import randomness
from linnaeus.config.errors import ConfigError
from linnaeus.config.schema import Config
from linnaeus.workloads.taxonomy.augment.draws import draws, sample_keys

PHASE_IN = 2  # the operation of these draws within the masking stream


@dataclass(frozen=True)
class NullPhaseIn:
    """`null_class` int64 [R]: the number of the null class at each rank."""

    seed: int
    null_class: np.ndarray

    @classmethod
    def of(cls, config: Config, sizes: Sequence[int]) -> NullPhaseIn | None:
        """None where nulls are ignored. Raises ConfigError where the schedule and the head contradict each other."""
        ramp = config.schedule.null_mask
        always_left_out = ramp.start == ramp.end == 1
        if config.head.nulls == "ignore":
            if not always_left_out:
                raise ConfigError("schedule.null_mask lets null labels into the loss, but head.nulls=ignore; set head.nulls=predict")
            return None
        if always_left_out:
            raise ConfigError("head.nulls=predict needs schedule.null_mask below 1 at some time, or the null class is never learnt")
        return cls(config.seed, np.array(sizes, dtype=np.int64))

    def apply(self, steps: np.ndarray, positions: np.ndarray, label: np.ndarray, masked: np.ndarray, usable: np.ndarray) -> np.ndarray:
        """`label` int64 [B, R] with some nulls of `usable` [B] samples turned into the null class; `masked` float [B] is the
        probability that one is left out."""
        u = draws(sample_keys(self.seed, randomness.MASK, steps, positions), PHASE_IN, label.shape[1])
        taken = (label < 0) & (u >= masked[:, None]) & usable[:, None]
        return np.where(taken, self.null_class, label)
