"""Measure distances between prediction and truth in the tree: heights of common ancestors, and hierarchical precision and recall.

`Distance` (Bertinetto et al., CVPR 2020, "Making better mistakes"), for the predicted path and for conditional risk minimisation (CRM). The
height of lca(y, p) is counted in taxonomic ranks: 0 for a taxon of the finest rank (a right prediction), 1 for a taxon one rank above, R
for the virtual root above all roots. Over samples labelled at the finest rank:

    hd<k>       mean over the samples, and over their min(k, C) most probable finest classes; hd1 of the deepest predicted class
    severity    mean over the samples whose finest class is not predicted

so that hd1 = (1 - top1 of the finest rank) x severity exactly, since heights are counted as integers.

`HierarchicalF1` (Valmadre, NeurIPS 2022, "Hierarchical classification at multiple operating points"), with truth at any rank. With y the
deepest label and p the deepest predicted class, precision is v(lca(y, p)) / v(p), recall is v(lca(y, p)) / v(y), and F1 is 2 v(lca(y, p)) /
(v(y) + v(p)); each is averaged over the samples. v is one of

    depth          taxa on the path to the root; holes in a lineage do not count
    information    -log2 of the share of all leaves that are at or below the taxon, in bits

A prediction finer than the label loses precision, because the label does not confirm it. Samples whose label has v = 0 (information in a
tree with a single leaf) are left out, since their recall is not defined.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.training_metrics import UNIT, ratio, to_fixed_point, zero_counts
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

LARGE_K = (5, 20)


class Distance:
    """Metrics `hd1`, `hd5`, `hd20`, `severity`; for conditional risk minimisation (CRM) also the metrics with the prefix `crm_` and
    `crm_top1`."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.tables = tables
        self.widths = [min(k, tables.sizes[-1]) for k in LARGE_K]
        self.counts = {f"{rule}/{name}": zero_counts(device) for rule in ("path", "crm") for name in ("right", "height")}
        self.counts |= {f"{rule}/heights": zero_counts(device, len(LARGE_K)) for rule in ("path", "crm")}
        self.counts["distance/n"] = zero_counts(device)

    def count(self, view: BatchView) -> None:
        self.counts["distance/n"] += view.finest_known.sum()
        by_probability, by_risk = self._heights(view, view.decisions.most_probable), self._heights(view, view.decisions.least_risk)
        self._add(view, "path", view.height, view.finest_right, by_probability)
        self._add(view, "crm", by_risk[:, 0], by_risk[:, 0] == 0, by_risk)

    def _heights(self, view: BatchView, classes: Tensor) -> Tensor:
        """Return the height of lca(y, c) for k finest classes c of each sample, int64 [B, k]; R where scores are NaN. `classes`: int64 [B,
        k], the classes c. y is the sample's deepest label."""
        undefined = view.best_log_p[:, -1:].isnan()
        height = self.tables.height(classes + self.tables.slices[-1].start, view.truth.unsqueeze(1))
        return height.masked_fill(undefined, len(self.tables.ranks))

    def _add(self, view: BatchView, rule: str, height: Tensor, right: Tensor, heights: Tensor) -> None:
        known = view.finest_known
        self.counts[f"{rule}/right"] += (right & known).sum()
        self.counts[f"{rule}/height"] += torch.where(known, height, 0).sum()
        within = torch.stack([heights[:, :width].sum(1) for width in self.widths], 1)
        self.counts[f"{rule}/heights"] += torch.where(known.unsqueeze(1), within, 0).sum(0)

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        n = counts["distance/n"]
        results = self._results("path", "", counts) | self._results("crm", "crm_", counts)
        return results | {"crm_top1": ratio(counts["crm/right"], n).item()}

    def _results(self, rule: str, prefix: str, counts: Mapping[str, Tensor]) -> dict[str, float]:
        n, height = counts["distance/n"], counts[f"{rule}/height"]
        results = {f"{prefix}hd1": ratio(height, n).item()}
        for k, width, total in zip(LARGE_K, self.widths, counts[f"{rule}/heights"], strict=True):
            results[f"{prefix}hd{k}"] = ratio(total, n * width).item()
        return results | {f"{prefix}severity": ratio(height, n - counts[f"{rule}/right"]).item()}


class HierarchicalF1:
    """Metrics `depth_precision`, `depth_recall`, `depth_f1`, `info_precision`, `info_recall`, `info_f1`."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.tables = tables
        # float64 [T + 1]: taxa on the path of each node, and its information; 0 for the virtual root
        values = {"depth": (tables.tree.paths >= 0).sum(1).astype(np.float64), "info": np.append(information(tables.tree), 0.0)}
        self.values = {name: torch.as_tensor(value, device=device) for name, value in values.items()}
        self.counts = {
            f"{name}/{count}": zero_counts(device, *shape) for name in self.values for count, shape in (("scores", (3,)), ("n", ()))
        }

    def count(self, view: BatchView) -> None:
        common = self.tables.lca(view.truth, view.predicted)
        for name, value in self.values.items():
            y, p, both = value[view.truth], value[view.predicted], value[common]
            scored = view.known.any(1) & (y > 0)
            scores = torch.stack([both / p, both / y, 2 * both / (p + y)])
            scores = torch.where(scored & (p > 0), scores, 0.0)
            self.counts[f"{name}/scores"] += to_fixed_point(scores).sum(1)
            self.counts[f"{name}/n"] += scored.sum()

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        means = {name: (ratio(counts[f"{name}/scores"], counts[f"{name}/n"]) / UNIT).tolist() for name in self.values}
        return {f"{name}_{key}": mean for name, row in means.items() for key, mean in zip(("precision", "recall", "f1"), row, strict=True)}


def information(tree: TaxonomyTree) -> np.ndarray:
    """Return -log2 of the share of all leaves that are at or below each taxon, in bits, float64 [T]; exactly 0 for a taxon above all
    leaves."""
    leaves = tree.leaf_count
    return np.log2(leaves[tree.node_parent < 0].sum()) - np.log2(leaves)
