"""Draw uniform random numbers for a batch of samples, as functions of the key of each sample (a hash of seed, epoch and position) and of
the operation.

Each operation, such as cropping or flipping, has its own stream of numbers, so that switching one operation on or off does not change the
draws of another operation. The masking of metadata and of null labels (`..inputs.masking`) uses these functions too, which is why they are
not in `pipeline`."""

import numpy as np

from linnaeus import randomness

CROP, FLIP, COLOUR, ERASE, POLICY = range(1, 6)


def sample_keys(seed: int, stream: int, major: np.ndarray, minor: np.ndarray) -> np.ndarray:
    """Return the key of each sample, uint64 [B]: a hash of `seed`, `stream` (number of the purpose) and the sample's `major` (epoch or
    step) and `minor` (position or pair), both int64 [B]."""
    out = np.empty(len(major), dtype=np.uint64)
    for value in np.unique(major):
        chosen = major == value
        out[chosen] = randomness.hashes(randomness.key(seed, stream, int(value)), minor[chosen])
    return out


def uniform_draws(keys: np.ndarray, operation: int, count: int) -> np.ndarray:
    """Return `count` uniform numbers in [0, 1) per sample, float64 [B, count]. `keys`: uint64 [B], as `sample_keys` returns them.
    `operation`: number of the operation, such as cropping; each operation gets other numbers."""
    index = keys[:, None] + np.arange(count, dtype=np.uint64)
    return randomness.uniforms(randomness.key(operation), index)
