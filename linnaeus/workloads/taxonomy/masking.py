"""Hiding metadata in training, so that one model serves with any of its components missing.

Per sample: with one probability all components are hidden, else with another one combination of them, drawn from a list by weight.
Keyed by (seed, global_step, position) and applied after mixing, on the device. Validation passes hide named components for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from linnaeus import randomness
from linnaeus.config.schema_schedule import RampConfig, ScheduleConfig
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment.draws import sample_keys, uniform_draws

FULL_OR_PARTIAL = 1  # the operation of these draws within their stream


@dataclass(frozen=True)
class MetadataMasking:
    """What partial masking may draw."""

    seed: int
    choices: np.ndarray  # bool [C, M]: what each combination hides
    cumulative: np.ndarray  # float64 [C]: cumulative probability

    @classmethod
    def of(cls, config: ScheduleConfig, components: Sequence[str], seed: int) -> MetadataMasking:
        """Raises ConfigError for a name that is not among `components` and for unusable weights."""
        listed = config.partial_mask_whitelist or _proper_subsets(components)
        weights = _weights(config, len(listed))
        rows = [hidden(names, components, "schedule.partial_mask_whitelist") for names in listed]
        choices = np.array(rows, dtype=bool).reshape(len(listed), len(components))
        return cls(seed, choices, np.cumsum(weights) / np.sum(weights) if len(weights) else weights)

    def draw(self, steps: np.ndarray, positions: np.ndarray, full: np.ndarray, partial: np.ndarray) -> np.ndarray:
        """bool [B, M], True = hidden, for int64 [B] `steps` and `positions` and the probabilities float [B] at those steps."""
        u = uniform_draws(sample_keys(self.seed, randomness.MASK, steps, positions), FULL_OR_PARTIAL, 3)
        mask = np.zeros((len(positions), self.choices.shape[1]), dtype=bool)
        if len(self.choices):
            drawn = np.searchsorted(self.cumulative, u[:, 2], side="right").clip(max=len(self.choices) - 1)
            mask |= self.choices[drawn] & (u[:, 1] < partial)[:, None]
        return mask | (u[:, 0] < full)[:, None]


def masking_notes(config: ScheduleConfig, components: Sequence[str]) -> tuple[str, ...]:
    """What the schedule asks for that these components cannot give, one line each, for the start of the run."""
    found = []
    if ramp_used(config.meta_mask_prob) and not components:
        found.append("schedule.meta_mask_prob has no effect: data.components is empty")
    if ramp_used(config.partial_meta_mask_prob) and len(components) < 2 and not config.partial_mask_whitelist:
        found.append(f"schedule.partial_meta_mask_prob has no effect: data.components={list(components)} has no proper subset to mask")
    return tuple(found)


def hidden(names: Sequence[str], components: Sequence[str], key: str) -> np.ndarray:
    """bool [M]: which of `components` are among `names`; raises ConfigError, naming `key`, for one that is none of them."""
    for name in names:
        if name not in components:
            raise ConfigError(f"{key}: {name!r} is not one of data.components, {list(components)}")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{key}: {list(names)} must name at least one component, each once")
    return np.array([c in names for c in components], dtype=bool)


def ramp_used(ramp: RampConfig) -> bool:
    return ramp.start > 0 or ramp.end > 0


def _proper_subsets(components: Sequence[str]) -> list[list[str]]:
    return [list(names) for size in range(1, len(components)) for names in combinations(components, size)]


def _weights(config: ScheduleConfig, count: int) -> np.ndarray:
    given = config.partial_mask_weights
    if not given:
        return np.ones(count)
    if len(given) != len(config.partial_mask_whitelist):
        raise ConfigError(
            f"schedule.partial_mask_weights has {len(given)} numbers for the {len(config.partial_mask_whitelist)} combinations of "
            "schedule.partial_mask_whitelist; give one each, or none"
        )
    if min(given) < 0 or sum(given) <= 0:
        raise ConfigError(f"schedule.partial_mask_weights={list(given)} must be 0 or more, and not all 0")
    return np.array(given, dtype=np.float64)
