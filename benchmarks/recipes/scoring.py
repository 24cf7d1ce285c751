"""Compute measures from the scores of a plain script, by the metrics of linnaeus on the same samples.

For a flat classifier, the probability of a taxon is the sum of the probabilities of the finest classes below it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.config import compose
from linnaeus.workloads.taxonomy.heads.head import LinearScores
from linnaeus.workloads.taxonomy.manifest import build_source
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics
from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

BATCH = 256
COMPOSING = threading.Lock()  # Hydra composes one configuration at a time; with --parallel several trials end in threads


def score_logits(settings: Sequence[str], scores: Mapping[str, np.ndarray], ranks: Sequence[str], split: str) -> dict[str, float]:
    """Return the measures of the samples of `split`. `settings`: settings with which linnaeus reads the manifest.

    `scores`: the file that the script has written. `ranks`: the ranks that it has classified."""
    with COMPOSING:
        config = compose([*settings])
    source = build_source(config.data, split == "test")
    rows = np.flatnonzero(source.split == VALIDATION)
    place = {path: i for i, path in enumerate(scores[f"{split}/paths"].tolist())}
    order = np.array([place[name] for name in source.ids[rows].tolist()])
    logits = {rank: torch.from_numpy(scores[f"{split}/{rank}"][order]).double().log_softmax(1) for rank in ranks}
    logits = {rank: z[:, columns_of(source.tree, rank, scores[f"classes/{rank}"].tolist())] for rank, z in logits.items()}
    every = [logits[rank] for rank in source.tree.ranks] if len(ranks) > 1 else summed_upwards(source.tree, logits[ranks[0]])
    training = source.labels[source.split == TRAIN]
    counts = [np.bincount(own[own >= 0], minlength=size) for own, size in zip(training.T, source.tree.sizes, strict=True)]
    metrics = TaxonomyMetrics(source.tree, torch.device("cpu"), counts, None, len(rows))
    for own in torch.arange(len(rows)).split(BATCH):
        label = torch.from_numpy(source.labels[rows][own.numpy()]).long()
        batch = {"label": label, "weight": torch.ones(len(own)), "sample": own}
        view = BatchView(metrics.tree_tables, LinearScores(source.tree, [z[own] for z in every]), batch)
        for part in metrics.parts:
            part.count(view)
    found = {name: value for part in metrics.parts for name, value in part.compute(metrics.counts).items()}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def columns_of(tree: TaxonomyTree, rank: str, names: Sequence[str]) -> list[int]:
    """Return, for each class of the tree at `rank`, its index in `names`."""
    place = {name: i for i, name in enumerate(names)}
    return [place[name] for name in tree.names[tree.ranks.index(rank)]]


def summed_upwards(tree: TaxonomyTree, finest: Tensor) -> list[Tensor]:
    """Return the log-probabilities of every rank, [B, C_r], from those of the finest rank, [B, C]."""
    first = tree.offsets[len(tree.sizes) - 1]
    paths = torch.from_numpy(tree.paths[first : first + tree.sizes[-1]])
    result = []
    for r, size in enumerate(tree.sizes):
        sums = torch.zeros(len(finest), size, dtype=torch.float64).index_add_(1, paths[:, r], finest.exp())
        result.append(sums.clamp(min=1e-300).log())
    return result
