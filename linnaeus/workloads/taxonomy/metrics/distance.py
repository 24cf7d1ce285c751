"""How far off predictions are in the tree (Bertinetto et al., CVPR 2020, "Making better mistakes"), of the predicted path and of CRM.

The height of lca(y, p), in taxonomic ranks: 0 for a taxon of the finest rank (the prediction is right), 1 for a rank above, R for
the virtual root above all roots. Over samples labelled at the finest rank:

    hd<k>       mean over the samples, and over their min(k, C) likeliest finest classes; hd1 of the deepest predicted class
    severity    mean over the samples whose finest class is not predicted

so that hd1 = (1 - top1 of the finest rank) x severity, exactly: heights are counted as integers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.counting import ratio, zeros
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables

LARGE_K = (5, 20)


class Distance:
    """`hd1`, `hd5`, `hd20`, `severity`; the same under `crm_`, with `crm_top1`."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.tables = tables
        self.widths = [min(k, tables.sizes[-1]) for k in LARGE_K]
        self.counts = {f"{rule}/{name}": zeros(device) for rule in ("path", "crm") for name in ("right", "height")}
        self.counts |= {f"{rule}/heights": zeros(device, len(LARGE_K)) for rule in ("path", "crm")}
        self.counts["distance/n"] = zeros(device)

    def count(self, view: BatchView) -> None:
        self.counts["distance/n"] += view.finest_known.sum()
        likeliest, safest = self._heights(view, view.decisions.likeliest), self._heights(view, view.decisions.safest)
        self._add(view, "path", view.height, view.finest_right, likeliest)
        self._add(view, "crm", safest[:, 0], safest[:, 0] == 0, safest)

    def _heights(self, view: BatchView, classes: Tensor) -> Tensor:
        """int64 [B, k] of finest classes [B, k]; the virtual root's where scores are no numbers."""
        nothing = view.best_log_p[:, -1:].isnan()
        height = self.tables.height(classes + self.tables.slices[-1].start, view.truth.unsqueeze(1))
        return height.masked_fill(nothing, len(self.tables.ranks))

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
