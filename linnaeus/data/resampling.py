"""Which samples fill an epoch when classes are not drawn as often as they occur: a pure function of (seed, epoch).

An epoch keeps its N positions. A class of n samples is given a number of them proportional to n^power: 1/2 is square-root sampling
(Mahajan et al. 2018), 0 class-balanced sampling (Kang et al. 2020). Samples of no class keep theirs, one each.

Fractions of positions are dealt out by systematic sampling (Madow 1949) over the classes in keyed order: each class gets the whole
number below or above its expectation, and exactly its expectation on average over epochs. A class is gone round in one keyed order of
its samples, and an epoch goes on about where the one before it ended: nothing repeats in an epoch before all of its class was
used, and over epochs even the largest class is seen whole. Quotas are whole-number arithmetic, the same on every machine.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from linnaeus.randomness import RESAMPLE, key, permutation

POWERS = {"square_root": 0.5, "class_balanced": 0.0}


class Resampling:
    """`classes` int64 [N]: the class of each sample, -1 for none; `power` is one of `POWERS`. Linear in samples and classes."""

    def __init__(self, classes: np.ndarray, power: float, seed: int) -> None:
        assert power in POWERS.values(), "weights of another power would depend on how a library rounds it"
        self.classes, self.seed = np.asarray(classes, dtype=np.int64), seed
        self.counts = np.bincount(self.classes[self.classes >= 0])  # int64 [C]
        self.total = int(self.counts.sum())  # positions dealt out
        weights = _whole_weights(self.counts, power)
        self.scale = max(int(weights.sum()), 1)
        self.whole, self.rest = np.divmod(self.total * weights, self.scale)  # int64 [C]: expected = whole + rest / scale

    @property
    def expected(self) -> np.ndarray:
        """float64 [C]: positions of an epoch that each class gets, on average over epochs."""
        return self.whole + self.rest / self.scale

    @property
    def draws(self) -> np.ndarray:
        """float64 [N]: how often each sample is drawn in an epoch, on average; they add up to N."""
        return np.append(self.expected / np.maximum(self.counts, 1), 1.0)[self.classes]

    def quotas(self, epoch: int) -> np.ndarray:
        """int64 [C]: positions of this epoch that each class gets; they add up to `total`."""
        order = permutation(key(self.seed, RESAMPLE, epoch), len(self.rest))
        start = key(self.seed, RESAMPLE, epoch, 1) % self.scale
        quotas = self.whole.copy()
        quotas[order] += np.diff((np.cumsum(self.rest[order]) + start) // self.scale, prepend=0)
        return quotas

    def multiset(self, epoch: int) -> np.ndarray:
        """int64 [N]: the samples of an epoch, in no particular order; those of no class once each."""
        quotas = self.quotas(epoch)
        begun = self.whole * epoch + self.rest * epoch // self.scale  # how far each class had come, up to one sample
        of_class = np.repeat(np.arange(len(quotas)), quotas)
        number = np.arange(self.total) - np.repeat(np.cumsum(quotas) - quotas, quotas)
        first = len(self._by_class) - self.total + np.cumsum(self.counts) - self.counts
        drawn = first[of_class] + (begun[of_class] + number) % self.counts[of_class]
        return np.concatenate([self._by_class[: len(self._by_class) - self.total], self._by_class[drawn]])

    @cached_property
    def _by_class(self) -> np.ndarray:
        """int64 [N]: samples of no class, then those of each class in its keyed order."""
        shuffled = permutation(key(self.seed, RESAMPLE), len(self.classes))
        return shuffled[np.argsort(self.classes[shuffled], kind="stable")]

    def summary(self) -> str:
        """What the first epoch sees, for a person."""
        there, size = self.counts > 0, len(self.classes)
        counts, quotas = self.counts[there], self.quotas(0)[there]
        distinct = size - self.total + int(np.minimum(quotas, counts).sum())
        most = int((-(-quotas // counts)).max(initial=1))
        said = f"an epoch of {size:,} sees {distinct:,} different samples, leaves out {size - distinct:,}, one comes up to {most:,} times"
        return f"{said}; classes of {_span(counts)} samples come {_span(quotas)} times"


def _whole_weights(counts: np.ndarray, power: float) -> np.ndarray:
    """int64 [C] proportional to n^power, 0 for n = 0. Roots are as fine as 64 bits allow to products with the samples, and to sums
    times classes or a million epochs: to 6 digits at 1e9 samples of 1e6 classes."""
    if power == 0.0:
        return (counts > 0).astype(np.int64)
    roots = np.sqrt(counts.astype(np.float64))  # IEEE rounds it correctly: no two machines differ
    largest, together = int(roots.max(initial=0.0)) + 1, int(np.ceil(roots).sum())
    bits = max((int(counts.sum()) * largest).bit_length(), (together * max(len(counts), 1 << 20)).bit_length())
    return np.rint(roots * 2.0 ** min(62 - bits, 30)).astype(np.int64)


def _span(numbers: np.ndarray) -> str:
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
