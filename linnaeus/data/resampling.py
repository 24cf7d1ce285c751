"""Class resampling: choose how often each sample occurs in an epoch, as a pure function of (seed, epoch).

An epoch still has N positions. A class with n samples gets a number of positions proportional to n^power: power 1/2 is square-root sampling
(Mahajan et al. 2018), power 0 is class-balanced sampling (Kang et al. 2020). Each sample without a class gets one position.

The expected number of positions of a class is rounded up or down by systematic sampling (Madow 1949) over the classes in random order, so
that it is exact on average over epochs. The samples of a class are drawn cyclically in one random order, and each epoch continues about
where the last one ended: a sample repeats in an epoch only after all other samples of its class were drawn, and over epochs every sample is
drawn. The numbers are computed in integer arithmetic, so they are equal on every machine."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from linnaeus.randomness import RESAMPLE, key, permutation

POWERS = {"square_root": 0.5, "class_balanced": 0.0}


class Resampling:
    """Resampling of N samples by their class.

    `classes`: the class of each sample, int64 [N], -1 for a sample without a class. `power`: one of `POWERS`. Time and memory are linear in
    the numbers of samples and classes."""

    def __init__(self, classes: np.ndarray, power: float, seed: int) -> None:
        assert power in POWERS.values(), "only square roots and constants are rounded equally by every library"
        self.classes, self.seed = np.asarray(classes, dtype=np.int64), seed
        self.counts = np.bincount(self.classes[self.classes >= 0])  # int64 [C]
        self.total = int(self.counts.sum())  # positions shared among the classes
        weights = _whole_weights(self.counts, power)
        self.scale = max(int(weights.sum()), 1)
        self.whole, self.rest = np.divmod(self.total * weights, self.scale)  # int64 [C]: expected = whole + rest / scale

    @property
    def expected(self) -> np.ndarray:
        """Return the mean number of positions of each class in an epoch, float64 [C]."""
        return self.whole + self.rest / self.scale

    @property
    def draws(self) -> np.ndarray:
        """Return the mean number of times that each sample occurs in an epoch, float64 [N]. The sum is N."""
        return np.append(self.expected / np.maximum(self.counts, 1), 1.0)[self.classes]

    def quotas(self, epoch: int) -> np.ndarray:
        """Return the number of positions of each class in `epoch`, int64 [C]. The sum is `total`, the number of samples with a class."""
        order = permutation(key(self.seed, RESAMPLE, epoch), len(self.rest))
        start = key(self.seed, RESAMPLE, epoch, 1) % self.scale
        quotas = self.whole.copy()
        quotas[order] += np.diff((np.cumsum(self.rest[order]) + start) // self.scale, prepend=0)
        return quotas

    def multiset(self, epoch: int) -> np.ndarray:
        """Return the dataset indices of the samples of `epoch`, int64 [N], with repetitions and not shuffled.

        Samples without a class occur once."""
        quotas = self.quotas(epoch)
        drawn_before = self.whole * epoch + self.rest * epoch // self.scale  # samples of each class drawn in earlier epochs, to within one
        of_class = np.repeat(np.arange(len(quotas)), quotas)
        number = np.arange(self.total) - np.repeat(np.cumsum(quotas) - quotas, quotas)
        first = len(self._by_class) - self.total + np.cumsum(self.counts) - self.counts
        drawn = first[of_class] + (drawn_before[of_class] + number) % self.counts[of_class]
        return np.concatenate([self._by_class[: len(self._by_class) - self.total], self._by_class[drawn]])

    @cached_property
    def _by_class(self) -> np.ndarray:
        """Return the dataset indices, int64 [N]: first the samples without a class, then the samples of each class in a random order."""
        shuffled = permutation(key(self.seed, RESAMPLE), len(self.classes))
        return shuffled[np.argsort(self.classes[shuffled], kind="stable")]

    def summary(self) -> str:
        """Return a line for the log: how many different samples the first epoch contains, how many it omits, and how often it contains a
        sample at most. The line also has the smallest and largest number of samples, and of draws, of a class."""
        nonempty, size = self.counts > 0, len(self.classes)
        counts, quotas = self.counts[nonempty], self.quotas(0)[nonempty]
        distinct = size - self.total + int(np.minimum(quotas, counts).sum())
        most = int((-(-quotas // counts)).max(initial=1))
        drawn = f"an epoch of {size:,} contains {distinct:,} different samples, each at most {most:,} times, and omits {size - distinct:,}"
        return f"{drawn}; classes of {_range(counts)} samples are drawn {_range(quotas)} times"


def _whole_weights(counts: np.ndarray, power: float) -> np.ndarray:
    """Return integer weights of C classes, int64 [C], proportional to n^power; 0 for a class without samples. `counts`: n, number of
    samples of each class, int64 [C].

    For power 1/2, square roots are multiplied by a power of two and rounded. The power of two is as large as possible under two conditions:
    a weight times the number of samples, and the sum of the weights times the number of classes or times a million epochs, fit into 64
    bits. At 1e9 samples of 1e6 classes 6 digits remain."""
    if power == 0.0:
        return (counts > 0).astype(np.int64)
    roots = np.sqrt(counts.astype(np.float64))  # correctly rounded by IEEE 754, so equal on all machines
    largest, total = int(roots.max(initial=0.0)) + 1, int(np.ceil(roots).sum())
    bits = max((int(counts.sum()) * largest).bit_length(), (total * max(len(counts), 1 << 20)).bit_length())
    return np.rint(roots * 2.0 ** min(62 - bits, 30)).astype(np.int64)


def _range(numbers: np.ndarray) -> str:
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
