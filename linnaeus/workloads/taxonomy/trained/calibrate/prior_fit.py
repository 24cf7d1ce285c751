"""Fit a `PlacePrior`: train its network on the places and dates of training photographs, and choose its floor (the least weight of a taxon)
on other photographs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.randomness import SPLIT, key, uniforms
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import encode, presence
from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PlacePrior
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

LEAST = 200  # training photographs with a component; fewer tell little about places
HELD = 0.1  # share of the observations that decide when the training ends
BATCH, LR, WEIGHT_DECAY = 512, 2e-3, 1e-2
MOST_UPDATES, CHECK_EVERY, PATIENCE = 4000, 100, 8  # updates; checks without an improvement
DROPPED = 0.2  # probability that a component of a training photograph is hidden, so that each also works alone
FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # 1: no prior
LEAST_GAIN = 1e-3  # in the mean log-likelihood of the labels, of a prior that is kept; rounding alone gives 1e-7


def train_prior(
    tree: TaxonomyTree, labels: np.ndarray, metadata: Metadata, group: np.ndarray | None, components: Sequence[str]
) -> PlacePrior:
    """Return a prior trained on N photographs, with floor 1 (all weights are 1). On one machine the same input gives the same result.

    `labels`: int64 [N, R] for R ranks, -1 for a missing label. `group`: int64 [N], number of the observation of each photograph; None: each
    photograph is an observation of its own. `components`: metadata components that the prior may read. A component that fewer than `LEAST`
    labelled photographs have is not used. Raise `ConfigError` if no component is left."""
    labelled = np.any(labels >= 0, axis=1)
    counts: list[int] = np.sum(presence(metadata, components) & labelled[:, None], axis=0).tolist()
    used = [name for name, count in zip(components, counts, strict=True) if count >= LEAST]
    if not used:
        found = ", ".join(f"{name} {count:,}" for name, count in zip(components, counts, strict=True))
        raise ConfigError(f"--prior needs {LEAST} training photographs with a place or a date; there are: {found}")
    meta, present = encode(metadata, used)
    rows = np.flatnonzero(labelled & present.any(axis=1))
    number = rows if group is None else group[rows]
    held = uniforms(key(0, SPLIT), number) < HELD
    data = [torch.from_numpy(array[rows]) for array in (meta, present, labels)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        prior = PlacePrior(tree, used)
    _standardise(prior, data[0], data[1])
    _train(prior, [one[~held] for one in data], [one[held] for one in data])
    prior.marginal.copy_(_mean_log_probs(prior, data[0], data[1]))
    return prior.eval().requires_grad_(False)


def _standardise(prior: PlacePrior, meta: Tensor, present: Tensor) -> None:
    """Set `prior.mean` and `prior.deviation` to the mean and standard deviation of each input column.

    A column is averaged over the photographs that have the component of the column. The deviation of a constant column is set to 1."""
    columns, known = meta[:, prior.columns].double(), present[:, prior.component]
    count = known.sum(0)
    mean = (columns * known).sum(0) / count
    deviation = (((columns - mean) * known).square().sum(0) / count).sqrt()
    prior.mean.copy_(mean)
    prior.deviation.copy_(torch.where(deviation > 1e-6, deviation, 1.0))  # 6 m on the sphere: a constant


def _train(prior: PlacePrior, data: Sequence[Tensor], held: Sequence[Tensor]) -> None:
    """Train the prior on `data`, then load the weights with the highest log-likelihood of `held`.

    `data`, `held`: (meta, present, labels) of the training photographs and of the held-out photographs. Stop after `PATIENCE` checks in a
    row without an improvement, or after `MOST_UPDATES` updates."""
    optimizer = torch.optim.AdamW(prior.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(0)
    best, kept, bad = np.inf, copy.deepcopy(prior.state_dict()), 0
    for step in range(1, MOST_UPDATES + 1):
        rows = torch.randint(len(data[0]), (BATCH,), generator=generator)
        meta, present, label = (one[rows] for one in data)
        present = present & (torch.rand(present.shape, generator=generator) >= DROPPED)
        loss = -_log_likelihood(prior(meta, present), label) / len(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % CHECK_EVERY == 0:
            with torch.no_grad():
                value = -sum(float(_log_likelihood(prior(m, p), y)) for m, p, y in zip(*(one.split(4 * BATCH) for one in held)))
            bad = 0 if value < best else bad + 1
            if value < best:
                best, kept = value, copy.deepcopy(prior.state_dict())
            if bad == PATIENCE:
                break
    prior.load_state_dict(kept)


def _log_likelihood(scores: Scores, label: Tensor) -> Tensor:
    """Return the log-probability of the finest known label of each sample, summed over the samples. `label`: int64 [B, R], -1 for
    missing."""
    return torch.stack(scores.label_log_probs(label)[1]).sum()


@torch.no_grad()
def _mean_log_probs(prior: PlacePrior, meta: Tensor, present: Tensor) -> Tensor:
    """Return the logarithm of the mean probability of each taxon over the photographs, float [T]."""
    total = torch.zeros(len(prior.marginal), dtype=torch.float64)
    for own, known in zip(meta.split(BATCH), present.split(BATCH), strict=True):
        total += torch.cat(prior(own, known).log_probs(), 1).double().exp().sum(0)
    return (total / len(meta)).clamp(min=1e-30).log()


@torch.inference_mode()
def floor_likelihoods(prior: PlacePrior, batches: Iterable[tuple[Scores, Mapping[str, Tensor], Tensor]]) -> dict[float, float]:
    """Return floor -> mean log-likelihood of the labels, for each floor in `FLOORS`. The prior with this floor weights the scores.

    `batches`: (scores of the network without the prior, inputs of the prior `meta` and `present`, labels int64 [B, R] with -1 for missing).
    The log-likelihood of a photograph is the log-probability of its finest known label. Photographs without a label, and photographs with
    neither place nor date, are left out of the mean."""
    total, count = dict.fromkeys(FLOORS, 0.0), 0
    tried = copy.copy(prior)
    for scores, given, label in batches:
        own = given["present"].any(1) & (label >= 0).any(1)
        finest = (label >= 0).cumsum(1).argmax(1, keepdim=True)  # rank of the finest label
        for floor in FLOORS:
            tried.floor = floor
            weighted = scores.weighted(tried.log_weights(given["meta"], given["present"]))
            marginal = torch.stack(weighted.label_log_probs(label)[0], 1).gather(1, finest)[:, 0]
            total[floor] += float(marginal[own].double().sum())
        count += int(own.sum())
    return {floor: value / max(count, 1) for floor, value in total.items()}
