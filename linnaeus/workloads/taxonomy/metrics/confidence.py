"""Measure the quality of the confidence of predictions: calibration error, and the error rate among confident predictions.

`<rank>/ece`: expected calibration error (Guo et al., ICML 2017). It is the mean of |share right - mean confidence| over 15 bins of
equal width, weighted by the number of samples in each bin. The confidence is the probability of the rank's most probable class. Bins are
(i/15, (i+1)/15].

`hierarchical_aurc`: area under the curve of risk against coverage (after Goren et al., NeurIPS 2024, "Hierarchical selective
classification"). For a threshold, the answer is the deepest taxon on the predicted path whose probability is at least the threshold. The
risk is the share of wrong answers; an answer is wrong if it is neither the true taxon nor one of its ancestors. The coverage of an answer
is 1 - log2(leaves at or below it) / log2(all leaves): 1 for a leaf, 0 for the virtual root, which is never wrong. Between the lowest and
the highest threshold the mean coverage takes all values from 1 to 0, so the area (by trapezoids) is the mean risk, without normalisation.
The probability of a taxon is the sum of the probabilities of the finest classes below it (`batch_view.py`), for samples labelled at the
finest rank."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.training_metrics import UNIT, ratio, to_fixed_point, zero_counts
from linnaeus.workloads.taxonomy.metrics.tree_distance import information
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables

BINS = 15
THRESHOLDS = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-16, 16, 129))), [2.0]])  # dense near 0 and 1, as probabilities are


class Calibration:
    """Metric `<rank>/ece`: expected calibration error (see module)."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.ranks = tables.ranks
        self.counts = {"calibration": zero_counts(device, 3, len(tables.ranks) * BINS)}  # samples, right, confidence in fixed point
        self._first_bin = torch.arange(len(tables.ranks), device=device) * BINS

    def count(self, view: BatchView) -> None:
        self.add(view.known, view.best == view.label, view.best_log_p)

    def add(self, known: Tensor, best_right: Tensor, best_log_p: Tensor) -> None:
        """Add B samples to the counts. `known`: bool [B, R], True if the sample has a label. `best_right`: bool [B, R], True if the most
        probable class is the label. `best_log_p`: [B, R], log-probability of the most probable class."""
        confidence = best_log_p.double().exp().clamp(max=1)
        known = known & ~confidence.isnan()
        index = (confidence.nan_to_num() * BINS).ceil().long().sub(1).clamp(0, BINS - 1) + self._first_bin
        right = best_right & known
        votes = torch.stack([known.long(), right.long(), torch.where(known, to_fixed_point(confidence), 0)])
        self.counts["calibration"].index_add_(1, index.flatten(), votes.flatten(1))

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        samples, right, confidence = counts["calibration"].double().view(3, -1, BINS)
        error = (right - confidence / UNIT).abs().sum(1)
        return {f"{rank}/ece": v for rank, v in zip(self.ranks, ratio(error, samples.sum(1)).tolist(), strict=True)}

    def rows(self, counts: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return the rows of a reliability diagram: for each rank and bin its number of samples, its mean confidence and its share of right
        predictions; bins without samples are left out."""
        table = counts["calibration"].double().cpu().view(3, len(self.ranks), BINS)
        found = []
        for r, rank in enumerate(self.ranks):
            for b, (samples, right, confidence) in enumerate(table[:, r].T.tolist()):
                if samples:
                    ends = {"rank": rank, "from": round(b / BINS, 4), "to": round((b + 1) / BINS, 4), "samples": int(samples)}
                    found.append(ends | {"confidence": confidence / UNIT / samples, "right": right / samples})
        return found


class HierarchicalRisk:
    """Metric `hierarchical_aurc` (see module), computed from the number of errors and the mean coverage at each threshold."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        bits = information(tables.tree)
        self.defined = bool(len(bits)) and bits.max() > 0
        share = bits / bits.max() if self.defined else np.zeros_like(bits)
        self.tables, self.thresholds = tables, torch.as_tensor(THRESHOLDS, device=device)
        self.coverage = to_fixed_point(torch.as_tensor(np.append(share, 0.0), device=device))  # int64 [T + 1]
        self.counts = {"risk": zero_counts(device, 2, len(THRESHOLDS)), "risk/n": zero_counts(device)}  # errors, coverage

    def count(self, view: BatchView) -> None:
        path, known = view.predicted_path, view.finest_known
        confident = (path >= 0).unsqueeze(1) & (view.decisions.path_probability.unsqueeze(1) >= self.thresholds.view(1, -1, 1))
        confident[:, 0] = path >= 0  # at threshold 0 also taxa of probability NaN
        answer = self.tables.deepest(torch.where(confident, path.unsqueeze(1), -1))
        answered_rank = self.tables.rank_number[answer]
        common_rank = len(self.tables.ranks) - view.height  # rank number of the lowest common ancestor
        wrong = (answered_rank > common_rank.unsqueeze(1)) & known.unsqueeze(1)
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
