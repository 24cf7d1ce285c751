"""Slow reference losses as in their papers: dense targets [C, C], walks from node to node, one sample and one label at a time, float64.

Also random trees and labels.
"""

import math

import numpy as np
import torch

from linnaeus.workloads.taxonomy.heads import Priors
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.heads.marginal import MarginalScores
from linnaeus.workloads.taxonomy.loss_config import (
    ConditionalConfig,
    CrossEntropyConfig,
    LossConfig,
    SoftLabelsConfig,
    TaxonomicSmoothingConfig,
)
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests.workloads.taxonomy import trees

RANKS = ("order", "family", "genus", "species")
BALANCE = {"class_weights": "none", "effective_beta": None, "class_weight_cap": None, "coarser_share": None, "logit_adjustment": 0.0}
SETTINGS = {  # loss -> schema and its own settings
    "cross_entropy": (CrossEntropyConfig, {"label_smoothing": 0.0}),
    "label_smoothing": (CrossEntropyConfig, {"label_smoothing": 0.2}),
    "taxonomic_smoothing": (TaxonomicSmoothingConfig, {"label_smoothing": 0.3, "beta": 0.4}),
    "soft_labels": (SoftLabelsConfig, {"beta": 3.0}),
    "conditional": (ConditionalConfig, {"alpha": 0.3}),
    "marginal": (LossConfig, {"coarser_share": 0.0}),
    "marginal_and_coarser": (LossConfig, {"name": "marginal", "coarser_share": 0.4}),
    "smoothing_and_coarser": (CrossEntropyConfig, {"label_smoothing": 0.2, "coarser_share": 0.4}),
    "conditional_and_coarser": (ConditionalConfig, {"name": "conditional", "alpha": 0.3, "coarser_share": 0.4}),
}
LOSSES = list(SETTINGS)
INVERSE = {"class_weights": "inverse", "class_weight_cap": 1.5, "logit_adjustment": 0.7}
EFFECTIVE = {"class_weights": "effective", "effective_beta": 0.8}


def loss_config(name, **balance):
    schema, own = SETTINGS[name]
    return schema(**{"name": name, **BALANCE, **own, **balance})


def random_tree(seed: int, rows: int = 60) -> tuple[TaxonomyTree, np.ndarray]:
    """Return a tree with several roots, holes, homonyms and short lineages, and the labels of its `rows`, int64 [rows, R]."""
    tree, labels = trees.random_tree(seed, 4, rows, 0.1, 0.25, 0.1)
    return tree, labels.numpy()


def random_batch(tree, labels, seed=0, count=10, nulls=False, mixed=False):
    """Return labels of random rows, a few removed, some converted to the null class, with placeholders and weights; `mixed`: with pairs."""
    rng = np.random.default_rng(seed)

    def some():
        label = labels[rng.integers(len(labels), size=count)].copy()
        label[rng.random(label.shape) < 0.1] = -1
        learnt = nulls & (label < 0) & (rng.random(label.shape) < 0.6)
        return torch.from_numpy(np.where(learnt, np.array(tree.sizes), label))

    weight = torch.from_numpy(rng.choice([0.0, 1.0, 1.0, 0.25], size=count)).float()
    batch = {"label": some(), "weight": weight}
    return batch | ({"label2": some(), "share": torch.from_numpy(rng.choice([1.0, 0.3, 0.8], size=count)).float()} if mixed else {})


def height(tree, rank, a, b):
    """Return the number of ranks between `rank` and the lowest common ancestor of two of its classes; `rank` + 1 if there is none."""
    common = trees.common_ancestor(tree, tree.offsets[rank] + a, tree.offsets[rank] + b)
    return rank - int(tree.node_rank[common]) if common >= 0 else rank + 1


def dense_target(config, tree, rank):
    """Return the target of each label, float64 [C, C]."""
    classes = tree.sizes[rank]
    heights = np.array([[height(tree, rank, y, c) for c in range(classes)] for y in range(classes)])
    own = np.eye(classes)
    if isinstance(config, TaxonomicSmoothingConfig):
        spread = np.exp(-config.beta * 2 * heights) * (1 - own)
        share = config.label_smoothing if classes > 1 else 0.0
        target = (1 - share) * own + share * spread / np.maximum(spread.sum(1, keepdims=True), 1e-300)
    elif isinstance(config, SoftLabelsConfig):
        closeness = np.exp(-config.beta * heights / (heights.max() or 1))
        target = closeness / closeness.sum(1, keepdims=True)
    else:
        smoothing = getattr(config, "label_smoothing", 0.0)
        target = (1 - smoothing) * own + smoothing / classes
    return torch.from_numpy(target)


def slow_weights(config, counts):
    """Return class weights, by bisection on their common factor."""
    labels = sum(counts)
    if config.class_weights == "none" or labels == 0:
        return [1.0] * len(counts)
    effective = lambda n: sum(config.effective_beta**i for i in range(n))
    raw = [1 / max(n, 1) if config.class_weights == "inverse" else 1 / effective(max(n, 1)) for n in counts]
    cap = config.class_weight_cap or math.inf
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        too_much = sum(n * min(middle * w, cap) for n, w in zip(counts, raw, strict=True)) > labels
        low, high = (low, middle) if too_much else (middle, high)
    return [min(low * w, cap) for w in raw]


# -- slow scores of both kinds: log_p(b, r) [C_r or C_r + 1] and conditional(b, r, labels of the sample) --


class SlowLinear:
    def __init__(self, tree, logits):
        self.tree, self.logits = tree, logits

    def log_p(self, b, r):
        z = self.logits[r][b].double()
        return z - (z - z.max()).exp().sum().log() - z.max()

    def conditional(self, b, r, labels):
        return self.log_p(b, r)[labels[r]]


def leaves_of(tree):
    return [node for node in range(tree.offsets[-1]) if node not in tree.node_parent]


class SlowLeaves:
    def __init__(self, tree, z):
        self.tree, self.z, self.paths = tree, z, tree.paths[leaves_of(tree)]

    def mass(self, b, keep):
        z = self.z[b].double()
        chosen = [z[i] - z.max() for i, path in enumerate(self.paths) if keep(path)]
        return sum(x.exp() for x in chosen).log() + z.max() - (z - z.max()).exp().sum().log() - z.max()

    def log_p(self, b, r):
        return torch.stack([self.mass(b, lambda path, c=c: path[r] == c) for c in range(self.tree.sizes[r])])

    def conditional(self, b, r, labels):
        known = [q for q in range(r) if labels[q] >= 0]
        below = (lambda path: path[known[-1]] == labels[known[-1]]) if known else (lambda path: True)
        return self.mass(b, lambda path: path[r] == labels[r] and below(path)) - self.mass(b, below)


def marginal_scores(tree, z):
    """Return the scores of the marginal head for `z` [B, L], in the order of `leaves_of`."""
    layout, leaves = Layout(tree, null=False), leaves_of(tree)
    return MarginalScores(layout, z[:, [leaves.index(node) for node in layout.leaf_node.tolist()]])


def leaf_priors(tree, priors):
    """Return the log prior of each leaf, [L]: of its taxon at its rank."""
    ranks = [(path >= 0).nonzero()[0].max() for path in tree.paths[leaves_of(tree)]]
    return torch.stack([priors.ranks[r][path[r]] for r, path in zip(ranks, tree.paths[leaves_of(tree)], strict=True)])


# -- the losses --


def slow_sums(config, tree, train_labels, scores, batch, nulls, power=1):
    """Return sums [R] and denominators [R]. `power`: exponent of the class weights in the loss; not 1 for negative controls."""
    counting = train_labels.copy()
    if config.coarser_share == 0:
        for row in counting:
            known = [r for r, c in enumerate(row) if c >= 0]
            row[: known[-1] if known else 0] = -1
    counts = [[int((counting[:, r] == c).sum()) for c in range(size)] for r, size in enumerate(tree.sizes)]
    missing = [int((train_labels[:, r] < 0).sum()) if nulls else 0 for r in range(len(tree.sizes))]
    weights = [slow_weights(config, [*c, m]) for c, m in zip(counts, missing, strict=True)]
    targets = [dense_target(config, tree, r) for r in range(len(tree.sizes))]
    sums, denominators = (torch.zeros(len(tree.sizes), dtype=torch.float64) for _ in range(2))
    pairs = [("label", batch.get("share"))] + ([("label2", 1 - batch["share"].double())] if "label2" in batch else [])
    for key, share in pairs:
        for b, labels in enumerate(batch[key].tolist()):
            for r, y in enumerate(labels):
                part = slow_share(config, labels, r)
                if part == 0:
                    continue
                weight = part * batch["weight"][b].double() * (1.0 if share is None else share[b].double())
                log_p = scores.log_p(b, r)
                target = torch.zeros_like(log_p)
                if y == tree.sizes[r]:
                    target[y] = 1.0
                else:
                    target[: tree.sizes[r]] = targets[r][y]
                loss = -(target * log_p).sum()
                if isinstance(config, ConditionalConfig):
                    loss = -math.exp(-config.alpha * r) * scores.conditional(b, r, labels)
                one = torch.zeros(len(tree.sizes), dtype=torch.float64)
                one[r] = 1.0
                sums = sums + one * weight * weights[r][y] ** power * loss
                denominators = denominators + one * weight * weights[r][y]
    if config.coarser_share is not None:
        denominators[:] = denominators.sum()
    return sums, denominators


def slow_share(config, labels, r):
    """Return the share of the label at rank `r` in the weight of a sample with `labels`."""
    if labels[r] < 0:
        return 0.0
    if config.coarser_share is None:
        return 1.0
    coarser = [rank for rank, y in enumerate(labels) if y >= 0 and any(finer >= 0 for finer in labels[rank + 1 :])]
    if r in coarser:
        return config.coarser_share / len(coarser)
    return 1 - config.coarser_share if coarser else 1.0


def slow_priors(tree, train_labels):
    """Return `Priors` by counting rows."""
    rows = len(train_labels)
    log_share = lambda values: torch.tensor([math.log(max(n, 1) / rows) for n in values], dtype=torch.float64)
    ranks = [[sum(row[r] == c for row in train_labels) for c in [*range(size), -1]] for r, size in enumerate(tree.sizes)]
    finest = [0] * (tree.offsets[-1] + 1)
    for row in train_labels:
        known = [r for r, c in enumerate(row) if c >= 0]
        finest[tree.offsets[known[-1]] + row[known[-1]] if known else -1] += 1
    return Priors(tuple(log_share(values) for values in ranks), log_share(finest))
