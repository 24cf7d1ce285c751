"""Uniform draws for a batch of samples: a function of each sample's key and of the operation, of nothing else.

Every operation has a stream of its own, so switching one on or off never moves the draws of another.
"""

from __future__ import annotations

import numpy as np

from linnaeus import randomness

CROP, FLIP, COLOUR, ERASE, POLICY = range(1, 6)


def sample_keys(seed: int, stream: int, major: np.ndarray, minor: np.ndarray) -> np.ndarray:
    """uint64 [B]: the key of each sample in `stream`, for int64 [B] `major` (epoch or step) and `minor` (position or pair)."""
    out = np.empty(len(major), dtype=np.uint64)
    for value in np.unique(major):
        chosen = major == value
        out[chosen] = randomness.hashes(randomness.key(seed, stream, int(value)), minor[chosen])
    return out


def draws(keys: np.ndarray, operation: int, count: int) -> np.ndarray:
    """float64 [B, count] uniform in [0, 1) for uint64 [B] `keys`."""
    index = keys[:, None] + np.arange(count, dtype=np.uint64)
    return randomness.uniforms(randomness.key(operation), index)


def policy_keys(keys: np.ndarray) -> np.ndarray:
    """uint64 [B]: seeds for third-party operations, apart from the draws of ours."""
    return randomness.hashes(randomness.key(POLICY), keys)
