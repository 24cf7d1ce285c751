"""Position-keyed randomness (law 1): every draw is a function of a key made of integers, never of a generator's history.

`key(seed, EPOCH_ORDER, epoch)` names a stream; `permutation`, `uniforms` and `Draw` read it. The hash is ours (SplitMix64's
finaliser folded over the parts), so that orders do not move with the version of numpy or torch; tests hold golden values.
`seed_globals` is for third-party code that draws from the global generators of python, numpy and torch.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

# Streams: the second part of every key, so that two uses of the same seed never share bits.
ORDER, AUGMENT, MIX, MASK, FORWARD, INIT, SPLIT, SYNTHETIC, RESAMPLE, BOOTSTRAP, GENERATION, CONNECTION, MIXTURE = range(1, 14)

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def _mix(z: int) -> int:
    """SplitMix64 finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators")."""
    z = ((z ^ (z >> 30)) * _M1) & _MASK64
    z = ((z ^ (z >> 27)) * _M2) & _MASK64
    return z ^ (z >> 31)


def key(*parts: int) -> int:
    """A 64-bit key of a tuple of integers; order matters, every part does."""
    h = 0
    for part in parts:
        h = _mix((h + _GOLDEN + (int(part) & _MASK64)) & _MASK64)
    return h


def hashes(stream: int, index: np.ndarray) -> np.ndarray:
    """`key`-quality 64-bit hashes of `index` (integers, any shape) within a stream; uint64, same shape."""
    with np.errstate(over="ignore"):
        z = np.asarray(index).astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(stream)
        for _ in range(2):  # twice: consecutive indices differ in few bits
            z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
            z = z ^ (z >> np.uint64(31))
            z = z + np.uint64(stream)
    return z


def uniforms(stream: int, index: np.ndarray) -> np.ndarray:
    """Uniform float64 in [0, 1) for each index of a stream (53 bits of its hash)."""
    return (hashes(stream, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniforms_on(device: torch.device, stream: int, count: int) -> torch.Tensor:
    """`uniforms(stream, np.arange(count))`, float64 [count], the same bits, drawn on a device: torch's int64 wraps as our uint64 does,
    but shifts in the sign."""
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
    """A permutation of `range(n)`, int64: the stable argsort of the stream's hashes."""
    return np.argsort(hashes(stream, np.arange(n)), kind="stable").astype(np.int64)


class Draw:
    """A short sequence of draws from one key, for code that needs a few numbers per sample."""

    __slots__ = ("_state",)

    def __init__(self, *parts: int) -> None:
        self._state = key(*parts)

    def bits(self) -> int:
        self._state = (self._state + _GOLDEN) & _MASK64
        return _mix(self._state)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * ((self.bits() >> 11) * 2.0**-53)

    def integer(self, n: int) -> int:
        """Uniform in range(n); the bias of the multiplication is below n * 2**-53."""
        return min(int(self.uniform() * n), n - 1)

    def normal(self) -> float:
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def gamma(self, shape: float) -> float:
        """Gamma(shape, 1) by Marsaglia and Tsang (2000), with their boost below shape 1."""
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
        x, y = self.gamma(a), self.gamma(b)
        return x / (x + y)

    def choice(self, weights: list[float]) -> int:
        """An index drawn in proportion to `weights`."""
        u = self.uniform() * sum(weights)
        for i, w in enumerate(weights):
            u -= w
            if u < 0:
                return i
        return len(weights) - 1


def seed_globals(stream: int) -> None:
    """Seed python's, numpy's and torch's global generators from one key (about 15 us; `torch.manual_seed` would cost more
    and also touch every device)."""
    import torch

    random.seed(stream)
    np.random.seed(stream & 0xFFFFFFFF)
    torch.default_generator.manual_seed(stream & 0x7FFFFFFFFFFFFFFF)


def seed_forward(seed: int, global_step: int, micro_batch_size: int, device_type: str) -> None:
    """Key dropout and drop-path of one forward by (seed, global_step, index of the micro-batch in the global batch)."""
    import torch

    stream = key(seed, FORWARD, global_step, micro_batch_size) & 0x7FFFFFFFFFFFFFFF
    if device_type == "cuda":
        torch.cuda.manual_seed(stream)
    else:
        torch.default_generator.manual_seed(stream)
