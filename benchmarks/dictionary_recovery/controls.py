"""Dictionaries that are not trained as such, for comparison: random vectors, principal components, k-means, and the planted features.

Each has a fixed set of vectors. Activities are found by matching pursuit with k steps (Mallat and Zhang 1993, "Matching Pursuits with
Time-Frequency Dictionaries"), restricted to positive activities.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.dictionary_recovery.size import Size
from linnaeus.workloads.dictionary.planted import PlantedDictionary
from linnaeus.workloads.dictionary.recovery import Recovery, measure_recovery

FITTED = 20_000  # samples that PCA and k-means are fitted to, at least; k-means has `PER_CENTRE` for each of its vectors
PER_CENTRE = 50
ROUNDS = 15  # of k-means
CHUNK = 8192  # samples at a time: 128 MiB of their products with 4,096 vectors


def measure_control(name: str, planted: PlantedDictionary, size: Size, seed: int, first: int) -> Recovery:
    """Return the measures of the control `name` on `size.tested` samples from number `first` on, with k steps. It has `size.features`
    vectors; PCA has 2 d, with both signs of each component, and the planted features have all. It is fitted to training samples."""
    k, number = int(size.k), min(max(FITTED, PER_CENTRE * size.features), size.samples)
    x = torch.cat([planted.activations(start, min(CHUNK, number - start)) for start in range(0, number, CHUNK)])
    center = x.mean(0)
    vectors = CONTROLS[name](x - center, planted, size.features, torch.Generator().manual_seed(seed))
    vectors = F.normalize(vectors, dim=1)
    encode, decode = (lambda rows: pursue(rows - center, vectors, k)), (lambda f: f @ vectors + center)
    return measure_recovery(encode, decode, vectors, planted, first, size.tested)


def random_vectors(x: Tensor, planted: PlantedDictionary, features: int, generator: torch.Generator) -> Tensor:
    return torch.randn(features, x.shape[1], generator=generator).to(x.device)


def components(x: Tensor, planted: PlantedDictionary, features: int, generator: torch.Generator) -> Tensor:
    vectors = torch.linalg.eigh(x.T @ x)[1].T
    return torch.cat([vectors, -vectors])


def means(x: Tensor, planted: PlantedDictionary, features: int, generator: torch.Generator) -> Tensor:
    """Return the centres of k-means (Lloyd 1982), [features, d]. An empty cluster keeps its centre."""
    centres = x[torch.randperm(len(x), generator=generator)[:features]].clone()
    for _ in range(ROUNDS):
        nearest = torch.cat([(centres.square().sum(1) - 2 * rows @ centres.T).argmin(1) for rows in x.split(CHUNK)])
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        number = torch.bincount(nearest, minlength=len(centres)).unsqueeze(1)
        centres = torch.where(number > 0, sums / number.clamp(min=1), centres)
    return centres


def planted_features(x: Tensor, planted: PlantedDictionary, features: int, generator: torch.Generator) -> Tensor:
    return planted.features


CONTROLS: dict[str, Callable[[Tensor, PlantedDictionary, int, torch.Generator], Tensor]] = {
    "random vectors": random_vectors,
    "PCA": components,
    "k-means": means,
    "planted features": planted_features,
}


def pursue(x: Tensor, vectors: Tensor, k: int) -> Tensor:
    """Return activities [N, L] of `vectors` [L, d] of norm 1: k times, the vector with the largest product with the rest is added."""
    rest, cosines = x @ vectors.T, vectors @ vectors.T
    found = torch.zeros_like(rest)
    for _ in range(k):
        amount, index = rest.max(1, keepdim=True)
        amount = amount.clamp(min=0)
        found.scatter_add_(1, index, amount)
        rest = rest - amount * cosines[index.squeeze(1)]
    return found
