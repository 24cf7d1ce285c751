"""Generate synthetic activations: sums of known ("planted"), sparsely active features, after SynthSAEBench (arXiv 2602.14687).

    x = sum over the active features f of a_f D_f + bias

The rows of D [F, d] have norm 1 and nearly the smallest possible sum of squared cosines. The frequencies of the features fall with their
numbers, by a Zipf law. The first features form trees: all roots first, then their children, then the next generation. A child is active
only if its parent is active, and at most one child of a parent is active. The features after the trees have no parent.

A feature without a parent is active if its score, a standard normal number, is above the threshold of the feature. For an active parent, a
second score chooses one child or none. Scores have common factors (low-rank correlations), so that some features are active together more
often than by chance, and others less often. The activity of an active feature is drawn from a normal distribution with a mean and a
standard deviation for each feature. Values below a tenth of the mean are raised to a tenth of the mean.

A difference from SynthSAEBench: there, several children can be drawn, of which one is kept. Here one score chooses among all children, so
that the frequencies are exact if there are no correlations.

Sample n is a pure function of (settings, seed, n). The choice of active features is bitwise the same for any division into calls: common
factors and their weights are small integers, whose float32 sums are exact in any order, and each other operation rounds once.

Cost: 5 us of CPU time a sample of the set `small`, 70 us of `large` (one core of an AMD EPYC), less than an update of a dictionary takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.files import content_digest
from linnaeus.randomness import SYNTHETIC, hashes_on, key
from linnaeus.workloads.dictionary.planted_config import PlantedSettings

FEATURE, BIAS, SPREAD, WEIGHT, CHOICE_WEIGHT, FACTOR, SCORE, CHOICE, ACTIVITY = range(9)  # streams of random numbers
FACTOR_STEPS = 128  # common factors are multiples of 1 / 128
LARGEST_FACTOR = 540  # in these steps: normal numbers have 16 bits, so they are below 4.2
FRAME_STEPS = 5
OWN = 0.01  # smallest share of the variance of a score that is not common
CHUNK = 1 << 17  # scores at a time on a CPU, so that they stay in its cache: 0.5 MB


class PlantedDictionary:
    """Planted features, and a generator of the activations that are sums of them. Tensors are on `device`.

    width: number of dimensions d. features: float32 [F, d], rows of norm 1. bias: float32 [d]. frequencies: float64 [F] on the CPU, share
    of samples in which each feature is active; exact if there are no correlations."""

    def __init__(self, config: PlantedSettings, seed: int, device: torch.device | str = "cpu") -> None:
        self.config, self.seed, self.device = config, seed, torch.device(device)
        self.width, self._count = config.width, config.features
        self._parents, in_trees = _tree_sizes(config)
        self.frequencies, chances = _frequencies(config)
        normals = torch.special.ndtri((torch.arange(1 << 16, dtype=torch.float64) + 0.5) / (1 << 16))
        self._normals = normals.float().to(self.device)  # quantiles: a normal number for each 16 bits

        self.features = self._placed(_spread_out(self._drawn(FEATURE, self._count, self.width)))
        bias = self._drawn(BIAS, 1, self.width)[0]
        self.bias = self._placed(config.bias * bias / bias.norm())
        self._mean = self._placed(torch.linspace(config.magnitude, config.last_magnitude, self._count, dtype=torch.float64))
        self._spread = self._placed(config.magnitude_spread * self._drawn(SPREAD, 1, self._count)[0].abs())

        self._parentless = torch.cat([torch.arange(min(config.roots, in_trees)), torch.arange(in_trees, self._count)]).to(self.device)
        weight, own = self._weights(WEIGHT, len(self._parentless))
        self._weight, self._own = weight.T.contiguous(), own
        self._threshold = self._placed(-torch.special.ndtri(self.frequencies[self._parentless.cpu()]))
        self._choice_weight, self._choice_own = self._weights(CHOICE_WEIGHT, self._parents)
        later = chances.flip(1).cumsum(1).flip(1).clamp(max=1)  # probability that child k or a later one is chosen
        self._choice_threshold = self._placed(-torch.special.ndtri(later))

    def sample(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return (activations float32 [count, d], codes float32 [count, F]) of the samples `first` to `first + count - 1`.

        The codes are the activities of the planted features; 0 for a feature that is not active."""
        rows, columns, values = self._codes(first, count)
        codes = torch.zeros(count, self._count, device=self.device)
        codes[rows, columns] = values
        return self._sums(count, rows, columns, values), codes

    def activations(self, first: int, count: int) -> Tensor:
        """Return the activations float32 [count, d] of the samples `first` to `first + count - 1`."""
        return self._sums(count, *self._codes(first, count))

    def names(self, numbers: Sequence[int]) -> list[str]:
        """Return the names of samples, such as planted-3fa2c01b/17. Other planted features have other names."""
        own = content_digest({"seed": self.seed, **{name: getattr(self.config, name) for name in PlantedSettings.__dataclass_fields__}})
        return [f"planted-{own[:8]}/{number}" for number in numbers]

    # -- samples ---------------------------------------------------------------------------------------------------------------

    def _codes(self, first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (sample number minus `first`, feature, activity) of all active features, [n] each, sorted by sample, then by feature."""
        step = CHUNK // max(len(self._parentless), 1) + 1 if self.device.type == "cpu" else max(count, 1)
        parts = [self._chunk(first, start, min(step, count - start)) for start in range(0, max(count, 1), step)]
        rows, columns, values = (torch.cat(part) for part in zip(*parts, strict=True))
        return rows, columns, values

    def _chunk(self, first: int, start: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        position = torch.arange(first + start, first + start + count, device=self.device)
        factors = (self._normals_of_rows(FACTOR, position, self.config.correlation_rank) * FACTOR_STEPS).round_()
        bound = (self._threshold - factors @ self._weight * self._step) * self._own
        rows, slots = (self._normals_of_rows(SCORE, position, len(self._parentless)) > bound).nonzero(as_tuple=True)
        columns = self._parentless[slots]
        found = [(rows, columns)]
        for _ in range(self.config.depth):
            inner = columns < self._parents
            rows, columns = self._children(position, factors, rows[inner], columns[inner])
            found.append((rows, columns))
        rows, columns = (torch.cat(part) for part in zip(*found, strict=True))
        order = (rows * self._count + columns).argsort()
        rows, columns = rows[order], columns[order]
        mean = self._mean[columns]
        change = self._normals_at(ACTIVITY, position[rows] * self._count + columns) * self._spread[columns]
        return rows + start, columns, torch.maximum(mean + change, mean / 10)

    def _children(self, position: Tensor, factors: Tensor, rows: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
        """Return (row, feature) of the active children, int64 [m] each, at most one child for each active parent.

        position: [N], the sample number of each row. factors: [N, rank], common factors of each row. rows, parents: [M] each, row and
        feature of each active parent."""
        common = (factors[rows] * self._choice_weight[parents]).sum(1, keepdim=True)
        bound = (self._choice_threshold[parents] - common * self._step) * self._choice_own[parents].unsqueeze(1)
        score = self._normals_at(CHOICE, position[rows] * self._parents + parents)
        passed = (score.unsqueeze(1) > bound).sum(1)  # 0: no child; k: child k - 1
        some = passed > 0
        return rows[some], (self.config.roots + parents * self.config.branching + passed - 1)[some]

    def _sums(self, count: int, rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        offsets = torch.zeros(count + 1, dtype=torch.int64, device=self.device)
        offsets[1:] = torch.bincount(rows, minlength=count).cumsum(0)
        found = F.embedding_bag(columns, self.features, offsets, mode="sum", per_sample_weights=values, include_last_offset=True)
        return found.add_(self.bias)

    # -- random numbers --------------------------------------------------------------------------------------------------------

    def _stream(self, use: int) -> int:
        return key(self.seed, SYNTHETIC, use)

    def _normals_of_rows(self, use: int, position: Tensor, number: int) -> Tensor:
        """Return `number` standard normal numbers for each entry of `position`, float32 [N, number].

        use: stream of random numbers, such as `SCORE`. position: int64 [N], sample numbers. Each 64-bit hash gives four numbers."""
        words = -(-number // 4)
        index = position.unsqueeze(1) * words + torch.arange(words, device=self.device)
        bits = hashes_on(self._stream(use), index.flatten()).view(torch.int16).view(len(position), 4 * words)[:, :number]
        return self._normals.index_select(0, bits.to(torch.int32).bitwise_and_(0xFFFF).flatten()).view(bits.shape)

    def _normals_at(self, use: int, index: Tensor) -> Tensor:
        """Return a standard normal number for each entry of `index`, float32 in its shape. use: stream of random numbers, such as
        `CHOICE`."""
        return self._normals[hashes_on(self._stream(use), index) & 0xFFFF]

    def _drawn(self, use: int, rows: int, columns: int) -> Tensor:
        return self._normals_of_rows(use, torch.arange(rows, device=self.device), columns).cpu().double()

    def _weights(self, use: int, number: int) -> tuple[Tensor, Tensor]:
        """Return (weights of the common factors in `number` scores, float32 [number, rank]; 1 / (standard deviation of the rest of each
        score), float32 [number]).

        use: stream of random numbers. Weights and factors are divided by a step and rounded to whole numbers, so that sums are exact. Set
        `_step`: the common part of a score is the sum of weight x factor, times `_step`."""
        weight = self.config.correlation * self._drawn(use, number, self.config.correlation_rank)
        weight *= ((1 - OWN) / weight.square().sum(1, keepdim=True).clamp(min=1 - OWN)).sqrt()
        largest = 2.0**24 / (LARGEST_FACTOR * self.config.correlation_rank**0.5)  # sums stay below 2^24
        step = 2.0 ** -math.floor(math.log2(largest))
        weight = (weight / step).round()
        self._step = step / FACTOR_STEPS
        return self._placed(weight), self._placed(1 / (1 - (weight * step).square().sum(1)).clamp(min=OWN / 2).sqrt())

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.float().to(self.device)


def _tree_sizes(config: PlantedSettings) -> tuple[int, int]:
    """Return (number of features that have children, number of features in trees).

    Raise `ConfigError` if the trees have more features than `features`."""
    sizes = [config.roots * config.branching**level for level in range(config.depth + 1)]
    if sum(sizes) > config.features:
        raise ConfigError(
            f"{config.roots} trees of {config.depth} levels with {config.branching} children have {sum(sizes)} features, but data.features "
            f"is {config.features}; set fewer data.roots or more data.features"
        )
    return sum(sizes[:-1]), sum(sizes)


def _frequencies(config: PlantedSettings) -> tuple[Tensor, Tensor]:
    """Return (frequencies [F], probability of each child while its parent is active [parents, children per parent]).

    The frequencies follow a Zipf law. If the children of a parent have a larger sum of frequencies than the parent, they are scaled down so
    that the sum equals the parent's frequency. Raise `ConfigError` if `rarest` is above `frequency`."""
    if config.rarest > config.frequency:
        raise ConfigError(f"data.rarest is {config.rarest:g}; set it to at most data.frequency ({config.frequency:g})")
    rank = torch.arange(1, config.features + 1, dtype=torch.float64)
    law = rank**-config.exponent if config.exponent else 1 - rank / config.features
    found = config.rarest + (config.frequency - config.rarest) * (law - law[-1]) / (law[0] - law[-1])
    parents, _ = _tree_sizes(config)
    chances = torch.zeros(parents, config.branching, dtype=torch.float64)
    for parent in range(parents):
        children = slice(config.roots + parent * config.branching, config.roots + (parent + 1) * config.branching)
        share = found[children] / found[parent]
        chances[parent] = share / share.sum().clamp(min=1)
        found[children] = chances[parent] * found[parent]
    return found, chances


def _spread_out(rows: Tensor) -> Tensor:
    """Return vectors [F, d] of norm 1, near `rows`, that have nearly the smallest possible sum of squared cosines; orthogonal if F <= d.

    They are close to a tight frame (Benedetto and Fickus 2003, "Finite Normalized Tight Frames"). Each step normalises the rows, then makes
    the frame tight."""
    for _ in range(FRAME_STEPS):
        rows = rows / rows.norm(dim=1, keepdim=True)
        many = len(rows) >= rows.shape[1]
        values, vectors = torch.linalg.eigh(rows.T @ rows if many else rows @ rows.T)
        root = vectors * values.rsqrt() @ vectors.T
        rows = rows @ root if many else root @ rows
    return rows / rows.norm(dim=1, keepdim=True)
