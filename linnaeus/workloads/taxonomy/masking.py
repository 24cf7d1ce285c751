"""Masking of metadata in training, so that one model works with any of its components missing.

For each sample, all components are masked with probability `schedule.meta_mask_prob`; otherwise, with probability
`schedule.partial_meta_mask_prob`, one combination of components is masked, drawn from a list by weight. Draws are keyed by (seed,
global_step, position) and applied after mixing, on the device. Validation passes mask the same components for all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from linnaeus import randomness
from linnaeus.config.schema_schedule import RampConfig, ScheduleConfig
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment.draws import sample_keys, uniform_draws

FULL_OR_PARTIAL = 1  # the key of these draws within the masking stream


class MetadataMasking:
    """The combinations that partial masking draws from."""

    def __init__(self, config: ScheduleConfig, components: Sequence[str], seed: int) -> None:
        """Raise `ConfigError` for a name that is not in `components` and for invalid weights."""
        listed: Sequence[Sequence[str]] = config.partial_mask_whitelist
        if not listed:  # every proper subset
            listed = [names for size in range(1, len(components)) for names in combinations(components, size)]
        weights = _weights(config, len(listed))
        rows = [component_mask(names, components, "schedule.partial_mask_whitelist") for names in listed]
        self.seed = seed
        self.choices = np.array(rows, dtype=bool).reshape(len(listed), len(components))  # [C, M]: True for a masked component
        self.cumulative = np.cumsum(weights) / np.sum(weights) if len(weights) else weights  # float64 [C]: cumulative probability

    def draw(self, steps: np.ndarray, positions: np.ndarray, full: np.ndarray, partial: np.ndarray) -> np.ndarray:
        """Return the mask of each sample, bool [B, M], True for a masked component.

        `steps` and `positions`: int64 [B]. `full` and `partial`: float [B], the probabilities at those steps."""
        u = uniform_draws(sample_keys(self.seed, randomness.MASK, steps, positions), FULL_OR_PARTIAL, 3)
        mask = np.zeros((len(positions), self.choices.shape[1]), dtype=bool)
        if len(self.choices):
            drawn = np.searchsorted(self.cumulative, u[:, 2], side="right").clip(max=len(self.choices) - 1)
            mask |= self.choices[drawn] & (u[:, 1] < partial)[:, None]
        return mask | (u[:, 0] < full)[:, None]


def masking_notes(config: ScheduleConfig, components: Sequence[str]) -> tuple[str, ...]:
    """Return a line for each masking probability that has no effect with these components, to print at the start."""
    notes = []
    if ramp_used(config.meta_mask_prob) and not components:
        notes.append("schedule.meta_mask_prob has no effect: data.components is empty")
    if ramp_used(config.partial_meta_mask_prob) and len(components) < 2 and not config.partial_mask_whitelist:
        notes.append(f"schedule.partial_meta_mask_prob has no effect: data.components={list(components)} has no proper subset to mask")
    return tuple(notes)


def component_mask(names: Sequence[str], components: Sequence[str], key: str) -> np.ndarray:
    """Return True for each of `components` that is in `names`, bool [M]. Raise `ConfigError`, naming `key`, for an empty list, an unknown
    name or a repeated one."""
    for name in names:
        if name not in components:
            raise ConfigError(f"{key}: {name!r} is not in data.components={list(components)}")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{key}: {list(names)} must name at least one component, and each only once")
    return np.array([c in names for c in components], dtype=bool)


def ramp_used(ramp: RampConfig) -> bool:
    """Return True if the ramp is above 0 at any time."""
    return ramp.start > 0 or ramp.end > 0


def _weights(config: ScheduleConfig, count: int) -> np.ndarray:
    given = config.partial_mask_weights
    if not given:
        return np.ones(count)
    if len(given) != len(config.partial_mask_whitelist):
        raise ConfigError(
            f"schedule.partial_mask_weights has {len(given)} weights for the {len(config.partial_mask_whitelist)} combinations of "
            "schedule.partial_mask_whitelist; set one weight per combination, or none"
        )
    if min(given) < 0 or sum(given) <= 0:
        raise ConfigError(f"schedule.partial_mask_weights={list(given)} must be 0 or more, with at least one above 0")
    return np.array(given, dtype=np.float64)
