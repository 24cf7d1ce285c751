"""Precision, recall and F1 of a prediction in the tree, with truth at any rank (Valmadre, NeurIPS 2022, "Hierarchical classification at
multiple operating points").

What y (the deepest label) and p (the deepest predicted class) have in common is v(lca(y, p)). Precision is its share of v(p), recall
of v(y), F1 twice the common over the sum of both; each averaged over the samples. v is

    depth          taxa on the path, so what is missing in a lineage does not count
    information    -log2 of the share of all leaves that lie at or below, in bits

A prediction finer than the label loses precision, for nothing says that it is right. A label with v = 0 (information in a tree with
a single leaf) cannot be recalled: such samples are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.counting import fixed, mean_fixed, zeros
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

SCORES = ("precision", "recall", "f1")


class Hierarchy:
    """`depth_precision`, `depth_recall`, `depth_f1`, `info_precision`, `info_recall`, `info_f1`."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.tables = tables
        self.values = {"depth": torch.as_tensor(_depth(tables.tree), device=device)}
        self.values["info"] = torch.as_tensor(np.append(information(tables.tree), 0.0), device=device)
        self.counts = {f"{name}/{what}": zeros(device, *shape) for name in self.values for what, shape in (("scores", (3,)), ("n", ()))}

    def count(self, view: BatchView) -> None:
        common = self.tables.operations.lca(view.truth, view.predicted)
        for name, value in self.values.items():
            y, p, both = value[view.truth], value[view.predicted], value[common]
            scored = view.known.any(1) & (y > 0)
            scores = torch.stack([both / p, both / y, 2 * both / (p + y)])
            scores = torch.where(scored & (p > 0), scores, 0.0)
            self.counts[f"{name}/scores"] += fixed(scores).sum(1)
            self.counts[f"{name}/n"] += scored.sum()

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        means = {name: mean_fixed(counts[f"{name}/scores"], counts[f"{name}/n"]).tolist() for name in self.values}
        return {f"{name}_{score}": mean for name, row in means.items() for score, mean in zip(SCORES, row, strict=True)}


def _depth(tree: TaxonomyTree) -> np.ndarray:
    """float64 [T + 1]: taxa on the path of each node, 0 for the virtual root."""
    return np.append((tree.paths >= 0).sum(1), 0).astype(np.float64)


def information(tree: TaxonomyTree) -> np.ndarray:
    """float64 [T]: -log2 of the share of the leaves at or below each taxon, in bits; exactly 0 where that is all of them."""
    leaves = tree.leaf_count
    return np.log2(leaves[tree.node_parent < 0].sum()) - np.log2(leaves)
