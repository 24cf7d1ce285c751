"""`BatchView`: quantities of one validation batch that several metrics need, each computed once.

A head that learns null labels, or a tree with holes, gives some probability to "no class at this rank". Labels are compared with classes
only, so probabilities are conditional on a class: divided by their sum over the classes of the rank. Scores of NaN predict nothing.

`Decisions`: the best finest classes by probability, and by conditional risk (Karthik et al., ICLR 2021, "No cost likelihood manipulation
at test time for making better mistakes in deep networks").

Conditional risk minimisation (CRM) predicts the finest class c with the least expected height of lca(c, y),

    E(c) = sum_y p(y) height(lca(c, y)) = R - sum over the taxa a on the path of c of (rank(a) - rank(parent(a))) p(a),

with R the number of ranks, ranks counted from 1 to R and 0 for the virtual root, and p(a) the sum of p over the finest classes below a.
Both sums run over the tree once, so the classes x classes matrix of heights is never needed. For every head, p(y) is the probability at the
finest rank, conditional on a class there.

Sums are float64: with a million taxa, probabilities of 1e-9 are normal and determine the order of rare siblings.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.metrics.training_metrics import main_labels
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables

CHOSEN = 20  # classes that are chosen by each rule, for `hd20`
WORKSPACE = 2**23  # elements of a float64 table [samples, T + 1]; for a large tree, only a few samples are processed at a time


class BatchView:
    """Quantities of a prepared validation batch and its scores that several metrics need, each computed once. B samples, R ranks."""

    label: Tensor  # int64 [B, R], -1 where missing
    known: Tensor  # bool [B, R]: the sample has a label at the rank
    real: Tensor  # bool [B]: not a placeholder, and decodable
    sample: Tensor  # int64 [B]: index into the dataset
    log_probs: list[Tensor]  # per rank [B, C_r], conditional on a class
    best_log_p: Tensor  # [B, R]: log-probability of the most probable class of each rank
    best: Tensor  # int64 [B, R]: that class, ties to the lower index
    path: Tensor  # int64 [B, R]: the predicted class of each rank, -1 for none
    path_log_p: Tensor  # [B, R]: its log-probability; NaN for none
    right: Tensor  # bool [B, R]: the label is known and predicted
    predicted: Tensor  # int64 [B]: node of the deepest predicted class; T if nothing is predicted
    predicted_path: Tensor  # int64 [B, R]: path of `predicted`, which differs from `path` where predictions contradict the tree
    truth: Tensor  # int64 [B]: node of the deepest label; T without labels
    height: Tensor  # int64 [B]: height of the lowest common ancestor of prediction and truth
    decisions: Decisions  # the best finest classes by probability and by risk
    finest_known: Tensor  # bool [B]: labelled at the finest rank
    finest_right: Tensor  # bool [B]: the label at the finest rank is predicted

    def __init__(self, tables: TreeTables, scores: Scores, batch: Batch) -> None:
        self.tables, self.scores = tables, scores
        self.label, self.known = main_labels(batch, tables.sizes_tensor)
        self.real, self.sample = batch["weight"] > 0, batch["sample"]
        self.log_probs = _class_log_probs(scores, tables.sizes)
        best = [log_p.max(1) for log_p in self.log_probs]
        self.best_log_p, self.best = torch.stack([b.values for b in best], 1), torch.stack([b.indices for b in best], 1)
        self.path = torch.where(self.best_log_p.isnan(), -1, scores.path())
        own = [log_p.gather(1, self.path[:, r : r + 1].clamp(min=0))[:, 0] for r, log_p in enumerate(self.log_probs)]
        self.path_log_p = torch.where(self.path >= 0, torch.stack(own, 1), torch.nan)
        self.right = (self.path == self.label) & self.known
        self.finest_known, self.finest_right = self.known[:, -1], self.right[:, -1]
        self.predicted, self.truth = tables.deepest(self.path), tables.deepest(self.label)
        self.predicted_path = tables.paths[self.predicted]
        self.height = tables.height(self.predicted, self.truth)
        self.decisions = decide(tables, self.log_probs[-1], self.predicted_path)


def _class_log_probs(scores: Scores, sizes: tuple[int, ...]) -> list[Tensor]:
    """Return the log-probabilities of the classes of each rank, conditional on a class at the rank, per rank [B, C_r]. The result of a
    log-softmax over exactly the classes of a rank is conditional already."""
    parts = []
    for log_p, size in zip(scores.log_probs(), sizes, strict=True):
        classes = log_p[:, :size].contiguous()  # contiguous by sample, for reductions over classes
        normalised = not scores.consistent and log_p.shape[1] == size
        parts.append(classes if normalised else classes - classes.logsumexp(1, keepdim=True))
    return parts


class Decisions(NamedTuple):
    """Finest classes chosen for each of B samples by two rules (most probable, least risk; see module), and the probabilities of the taxa
    on a path."""

    most_probable: Tensor  # int64 [B, min(CHOSEN, C)]: finest classes by descending probability
    least_risk: Tensor  # int64 [B, min(CHOSEN, C)]: finest classes by ascending expected height
    path_probability: Tensor  # float64 [B, R]: probability of each taxon on the given paths, 0 where a path has none


def decide(tables: TreeTables, log_p: Tensor, path: Tensor) -> Decisions:
    """Return the decisions for a batch. `log_p`: log-probabilities of the finest rank, [B, C]. `path`: int64 [B, R], for each sample a path
    of classes, whose probabilities are returned as `path_probability`."""
    rows = max(WORKSPACE // (tables.taxa + 1), 1)
    parts = [_decide_rows(tables, *part) for part in zip(log_p.split(rows), path.split(rows), strict=True)]
    return Decisions(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _decide_rows(tables: TreeTables, log_p: Tensor, path: Tensor) -> Decisions:
    own = F.pad(log_p.exp().double(), (tables.slices[-1].start, 0))
    probability = F.pad(tables.sums(own), (0, 1))  # of every taxon, [B, T + 1]; 0 for node T
    on_path = torch.where(path >= 0, probability.gather(1, tables.nodes(path)), 0.0)
    most_probable = top_k(log_p, CHOSEN)
    return Decisions(most_probable, top_k(_risk_reduction(tables, probability), CHOSEN), on_path)


def _risk_reduction(tables: TreeTables, probability: Tensor) -> Tensor:
    """Return R minus the expected height E(c) (see module) of each finest class c, float64 [B, C]. `probability`, [B, T + 1], is
    overwritten."""
    for r, own in enumerate(tables.slices):
        parent = tables.parent[own]
        step = r + 1 - tables.rank_number[parent]
        probability[:, own].mul_(step).add_(probability.index_select(1, parent))
    return probability[:, tables.slices[-1]]


def top_k(values: Tensor, k: int) -> Tensor:
    """Return the columns of the k largest `values` [B, C] of each row, largest first, int64 [B, min(k, C)]. Of equal values the lower
    column comes first.

    The order of `Tensor.topk` for equal values depends on the device. So the columns equal to the smallest of the k values are chosen again
    by index, and the k columns are sorted. Rows with NaN have any order."""
    k = min(k, values.shape[1])
    index = values.topk(k).indices.sort(1).values
    own = values.gather(1, index)
    least = own.amin(1, keepdim=True)
    downwards = torch.arange(values.shape[1], 0, -1, dtype=torch.int32, device=values.device)
    equal = torch.where(values == least, downwards, 0).topk(k).indices  # the lowest index first
    surplus = (own == least).cumsum(1) - 1
    index = torch.where(own == least, equal.gather(1, surplus.clamp(min=0)), index)
    index = index.sort(1).values
    order = values.gather(1, index).sort(stable=True, dim=1, descending=True).indices
    return index.gather(1, order)
