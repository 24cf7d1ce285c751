"""Compute random numbers as pure functions of a key of integers, without the state of a generator.

`key(seed, ORDER, epoch)` hashes integers to a 64-bit number that identifies a stream of random numbers; `permutation`, `uniforms` and
`Draw` compute the numbers. The hash is implemented here (the SplitMix64 finaliser, folded over the integers), so that results do not
depend on the version of numpy or torch; golden tests check it. `seed_globals` is for third-party code that uses the global generators of
python, numpy and torch.
"""

from __future__ import annotations

import functools
import math
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

# Streams: the second part of every key, so that two uses of the same seed never share random bits.
ORDER, AUGMENT, MIX, MASK, FORWARD, INIT, SPLIT, SYNTHETIC, RESAMPLE, BOOTSTRAP, GENERATION, CONNECTION, MIXTURE, VALIDATION, ROUNDING = (
    range(1, 16)
)

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def _mix(z: int) -> int:
    """Return the SplitMix64 finaliser of a 64-bit integer (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators")."""
    z = ((z ^ (z >> 30)) * _M1) & _MASK64
    z = ((z ^ (z >> 27)) * _M2) & _MASK64
    return z ^ (z >> 31)


def key(*parts: int) -> int:
    """Return a 64-bit hash of a sequence of integers, which serves as the key of a stream. The order of the integers matters."""
    return continued_key(0, *parts)


def continued_key(start: int, *parts: int) -> int:
    """Return `key(*first, *parts)`, where `start` is `key(*first)`."""
    h = start
    for part in parts:
        h = _mix((h + _GOLDEN + (int(part) & _MASK64)) & _MASK64)
    return h


def hashes(stream: int, index: np.ndarray) -> np.ndarray:
    """Return random 64-bit integers, uint64 in the shape of `index`: for each integer i in `index`, number i of the stream.

    `stream`: a result of `key`."""
    with np.errstate(over="ignore"):
        z = np.asarray(index).astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(stream)
        for _ in range(2):  # two rounds, because consecutive indices differ in few bits
            z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
            z = z ^ (z >> np.uint64(31))
            z = z + np.uint64(stream)
    return z


def uniforms(stream: int, index: np.ndarray) -> np.ndarray:
    """Return uniform numbers in [0, 1), float64 in the shape of `index`: for each integer i in `index`, number i of the stream."""
    return (hashes(stream, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hashes_on(stream: int, index: torch.Tensor) -> torch.Tensor:
    """Compute `hashes` on the device of `index`, an int64 tensor. Return int64 in the shape of `index`, with the same 64 bits as numpy's
    uint64.

    torch has no uint64 arithmetic. Its int64 overflows in the same way; its right shift copies the sign bit, which is masked here."""

    def signed(number: int) -> int:
        return number - (1 << 64) if number >> 63 else number

    def mixed(z: torch.Tensor, shift: int) -> torch.Tensor:
        return z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))

    z = index * signed(_GOLDEN) + signed(stream)
    for _ in range(2):
        z = mixed(mixed(mixed(z, 30) * signed(_M1), 27) * signed(_M2), 31) + signed(stream)
    return z


def uniforms_on(device: torch.device, stream: int, count: int) -> torch.Tensor:
    """Compute `uniforms(stream, np.arange(count))` on a device: float64 [count], with the same bits as numpy."""
    import torch

    return ((hashes_on(stream, torch.arange(count, device=device)) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def permutation(stream: int, n: int) -> np.ndarray:
    """Return the random permutation of `range(n)` that belongs to `stream`, int64 [n]: the stable argsort of the hashes of 0 to n - 1."""
    return argsort(hashes(stream, np.arange(n)))


def argsort(keys: np.ndarray) -> np.ndarray:
    """Return the stable argsort of 64-bit hashes [N], int64 [N].

    The faster unstable sort is used first; its result is the same unless two hashes are equal, which is rare."""
    order = np.argsort(keys)
    ordered = keys[order]
    return (np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order).astype(np.int64, copy=False)


class Draw:
    """A small random generator that starts from the key of `parts`, for code that draws a few numbers per sample."""

    __slots__ = ("_state",)

    def __init__(self, *parts: int) -> None:
        self._state = key(*parts)

    def bits(self) -> int:
        """Return the next 64 random bits as an integer."""
        self._state = (self._state + _GOLDEN) & _MASK64
        return _mix(self._state)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a uniform number in [low, high)."""
        return low + (high - low) * ((self.bits() >> 11) * 2.0**-53)

    def integer(self, n: int) -> int:
        """Return a uniform integer in range(n). The probability of each integer deviates by less than n * 2**-53."""
        return min(int(self.uniform() * n), n - 1)

    def normal(self) -> float:
        """Return a number from the standard normal distribution, by the Box-Muller transform."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def gamma(self, shape: float) -> float:
        """Return a number from the distribution Gamma(shape, 1), by the method of Marsaglia and Tsang (2000), with their boost for shape
        < 1."""
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
        """Return a number from the distribution Beta(a, b)."""
        start = self._state
        x, y = self.gamma(a), self.gamma(b)
        if x + y > 0:
            return x / (x + y)
        self._state = start  # both are below 1e-308, which is frequent for a, b < 0.01: compare their logarithms
        difference = self._log_gamma(b) - self._log_gamma(a)
        return 1.0 / (1.0 + math.exp(difference)) if difference < 700 else 0.0

    def _log_gamma(self, shape: float) -> float:
        """Return the logarithm of the number that `gamma(shape)` would return, without underflow. `shape` must be below 1."""
        return math.log(self.gamma(shape + 1.0)) + math.log(1.0 - self.uniform()) / shape


def seed_globals(stream: int) -> None:
    """Seed the global generators of python, numpy and torch (CPU only) from the key `stream`.

    This takes about 15 us. `torch.manual_seed` is not used, because it takes longer: it also seeds every GPU."""
    import torch

    random.seed(stream)
    np.random.seed(stream & 0xFFFFFFFF)
    torch.default_generator.manual_seed(stream & 0x7FFFFFFFFFFFFFFF)


def seed_forward(seed: int, global_step: int, micro_batch: int, device_type: str) -> None:
    """Seed torch's generator of the device for dropout and drop-path in one forward pass.

    `micro_batch` is the index of the micro-batch in the global batch, over all processes."""
    import torch

    stream = continued_key(_forward_key(seed), global_step, micro_batch) & 0x7FFFFFFFFFFFFFFF
    if device_type == "cuda":
        torch.cuda.manual_seed(stream)
    else:
        torch.default_generator.manual_seed(stream)


@functools.lru_cache(maxsize=1)
def _forward_key(seed: int) -> int:
    return key(seed, FORWARD)
