"""Position-keyed randomness: every random number is a function of a key of integers, not of the state of a generator.

`key(seed, ORDER, epoch)` names a stream; `permutation`, `uniforms` and `Draw` read it. The hash is implemented here (the SplitMix64
finaliser, folded over the parts), so that results do not depend on the version of numpy or torch; golden tests check it. `seed_globals` is
for third-party code that uses the global generators of python, numpy and torch.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

# Streams: the second part of every key, so that two uses of the same seed never share random bits.
ORDER, AUGMENT, MIX, MASK, FORWARD, INIT, SPLIT, SYNTHETIC, RESAMPLE, BOOTSTRAP, GENERATION, CONNECTION, MIXTURE, VALIDATION = range(1, 15)

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def _mix(z: int) -> int:
    """Apply the SplitMix64 finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators")."""
    z = ((z ^ (z >> 30)) * _M1) & _MASK64
    z = ((z ^ (z >> 27)) * _M2) & _MASK64
    return z ^ (z >> 31)


def key(*parts: int) -> int:
    """Return a 64-bit hash of a sequence of integers. It depends on their order."""
    h = 0
    for part in parts:
        h = _mix((h + _GOLDEN + (int(part) & _MASK64)) & _MASK64)
    return h


def hashes(stream: int, index: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each integer of `index` in a stream, uint64 of the same shape. Its quality is that of `key`."""
    with np.errstate(over="ignore"):
        z = np.asarray(index).astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(stream)
        for _ in range(2):  # two rounds, because consecutive indices differ in few bits
            z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
            z = z ^ (z >> np.uint64(31))
            z = z + np.uint64(stream)
    return z


def uniforms(stream: int, index: np.ndarray) -> np.ndarray:
    """Return a uniform number in [0, 1) for each index of a stream, float64 (53 bits of the hash)."""
    return (hashes(stream, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniforms_on(device: torch.device, stream: int, count: int) -> torch.Tensor:
    """Return `uniforms(stream, np.arange(count))`, float64 [count], computed on a device with the same bits.

    torch's int64 overflows like uint64, but its right shift copies the sign bit, which is masked.
    """
    import torch

    def signed(number: int) -> int:
        return number - (1 << 64) if number >> 63 else number

    def mixed(z: torch.Tensor, shift: int) -> torch.Tensor:
        return z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))

    z = torch.arange(count, device=device) * signed(_GOLDEN) + signed(stream)
    for _ in range(2):
        z = mixed(mixed(mixed(z, 30) * signed(_M1), 27) * signed(_M2), 31) + signed(stream)
    return ((z >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def permutation(stream: int, n: int) -> np.ndarray:
    """Return a permutation of `range(n)`, int64 [n]: the stable argsort of the hashes of the stream."""
    return argsort(hashes(stream, np.arange(n)))


def argsort(keys: np.ndarray) -> np.ndarray:
    """Return the stable argsort of 64-bit hashes [N], int64 [N]. Equal hashes are rare, and without them any sort is stable."""
    order = np.argsort(keys)
    ordered = keys[order]
    return (np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order).astype(np.int64, copy=False)


class Draw:
    """A sequence of random numbers from one key, for code that needs a few numbers per sample."""

    __slots__ = ("_state",)

    def __init__(self, *parts: int) -> None:
        self._state = key(*parts)

    def bits(self) -> int:
        """Return 64 random bits."""
        self._state = (self._state + _GOLDEN) & _MASK64
        return _mix(self._state)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a uniform number in [low, high)."""
        return low + (high - low) * ((self.bits() >> 11) * 2.0**-53)

    def integer(self, n: int) -> int:
        """Return a uniform integer in range(n). The bias of the multiplication is below n * 2**-53."""
        return min(int(self.uniform() * n), n - 1)

    def normal(self) -> float:
        """Return a standard normal number by the Box-Muller transform."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def gamma(self, shape: float) -> float:
        """Return a Gamma(shape, 1) number by the method of Marsaglia and Tsang (2000), with their boost for shape < 1."""
        if shape < 1.0:
            return self.gamma(shape + 1.0) * (1.0 - self.uniform()) ** (1.0 / shape)
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            if v > 0 and math.log(1.0 - self.uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v

    def beta(self, a: float, b: float) -> float:
        """Return a Beta(a, b) number."""
        start = self._state
        x, y = self.gamma(a), self.gamma(b)
        if x + y > 0:
            return x / (x + y)
        self._state = start  # both are below 1e-308, which is frequent for a, b < 0.01: compare their logarithms
        difference = self._log_gamma(b) - self._log_gamma(a)
        return 1.0 / (1.0 + math.exp(difference)) if difference < 700 else 0.0

    def _log_gamma(self, shape: float) -> float:
        """Return the logarithm of the number that `gamma` would return for `shape` < 1, without underflow."""
        return math.log(self.gamma(shape + 1.0)) + math.log(1.0 - self.uniform()) / shape


def seed_globals(stream: int) -> None:
    """Seed the global generators of python, numpy and torch from one key. Costs about 15 us; `torch.manual_seed` costs more, because it
    also seeds every device."""
    import torch

    random.seed(stream)
    np.random.seed(stream & 0xFFFFFFFF)
    torch.default_generator.manual_seed(stream & 0x7FFFFFFFFFFFFFFF)


def seed_forward(seed: int, global_step: int, micro_batch: int, device_type: str) -> None:
    """Seed dropout and drop-path of one forward pass. `micro_batch` is the index of the micro-batch in the global batch."""
    import torch

    stream = key(seed, FORWARD, global_step, micro_batch) & 0x7FFFFFFFFFFFFFFF
    if device_type == "cuda":
        torch.cuda.manual_seed(stream)
    else:
        torch.default_generator.manual_seed(stream)
