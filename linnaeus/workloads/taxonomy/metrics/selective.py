"""What a run would get wrong if it answered only where it is sure, or as precisely as it is sure.

`aurc`: area under the risk-coverage curve (Geifman et al., ICLR 2019), the mean over n = 1..N of the share of errors among the n samples
of highest confidence, at the finest rank; samples of equal confidence in random order, on average. 0 is best; without any
use in the confidence it is 1 - top1.

`hierarchical_aurc` (after Goren et al., NeurIPS 2024, "Hierarchical selective classification"): instead of not answering, answer with the
deepest taxon on the predicted path whose probability is at least a threshold. An answer is wrong when it is neither the truth nor
above it; its coverage is 1 - log2(leaves at or below) / log2(leaves), 1 for a leaf and 0 for the virtual root, which is never
wrong. With the threshold, the mean coverage runs over all of 0..1, and the area under the risk (trapezoids) needs no normalising: it is
the mean risk over coverages. Probabilities are those of the finest rank summed up the tree (`decisions.py`), over samples labelled there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.counting import UNIT, fixed, zeros
from linnaeus.workloads.taxonomy.metrics.hierarchy import information
from linnaeus.workloads.taxonomy.metrics.sample_record import Samples
from linnaeus.workloads.taxonomy.metrics.tables import TreeTables

THRESHOLDS = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-16, 16, 129))), [2.0]])  # dense at both ends, where probabilities are


class HierarchicalRisk:
    """`hierarchical_aurc`: errors and coverage at each threshold."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        bits = information(tables.tree)
        self.defined = bool(len(bits)) and bits.max() > 0
        share = bits / bits.max() if self.defined else np.zeros_like(bits)
        self.tables, self.thresholds = tables, torch.as_tensor(THRESHOLDS, device=device)
        self.coverage = fixed(torch.as_tensor(np.append(share, 0.0), device=device))  # int64 [T + 1]
        self.counts = {"risk": zeros(device, 2, len(THRESHOLDS)), "risk/n": zeros(device)}  # errors, coverage

    def count(self, view: BatchView) -> None:
        path, known = view.predicted_path, view.finest_known
        sure = (path >= 0).unsqueeze(1) & (view.decisions.belief.unsqueeze(1) >= self.thresholds.view(1, -1, 1))
        sure[:, 0] = path >= 0  # at threshold 0 also what has no probability at all
        answer = self.tables.deepest(torch.where(sure, path.unsqueeze(1), -1))
        answered_rank = self.tables.rank_number[answer]
        agreed = len(self.tables.ranks) - view.height  # number of the rank of the lowest common ancestor
        wrong = (answered_rank > agreed.unsqueeze(1)) & known.unsqueeze(1)
        covered = torch.where(known.unsqueeze(1), self.coverage[answer], 0)
        self.counts["risk"] += torch.stack([wrong.sum(0), covered.sum(0)])
        self.counts["risk/n"] += known.sum()

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        n = int(counts["risk/n"])
        if not n or not self.defined:
            return {"hierarchical_aurc": float("nan")}
        errors, coverage = counts["risk"].double().numpy()
        risk, coverage = errors / n, coverage / (UNIT * n)
        return {"hierarchical_aurc": float(((risk[:-1] + risk[1:]) / 2 * (coverage[:-1] - coverage[1:])).sum())}


class RiskCoverage:
    """`aurc`, of the record."""

    def compute(self, samples: Samples) -> dict[str, float]:
        known = samples.known[:, -1]
        return {"aurc": area_under_risk_coverage(~samples.right[known, -1], samples.confidence[known])}


def area_under_risk_coverage(wrong: np.ndarray, confidence: np.ndarray) -> float:
    """bool [N] and float [N]; NaN for no samples."""
    if not len(wrong):
        return float("nan")
    order = np.argsort(-confidence, kind="stable")
    ordered = confidence[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))  # of each block of equal confidence
    size = np.diff(np.append(first, len(ordered)))
    errors = np.add.reduceat(wrong[order].astype(np.int64), first)
    before = np.cumsum(errors) - errors
    block = np.repeat(np.arange(len(first)), size)
    number = np.arange(1, len(ordered) + 1)
    expected = before[block] + errors[block] * (number - first[block]) / size[block]
    return float((expected / number).mean())
