"""Record 24 bytes for each validation sample, and compute the metrics that cannot be computed from sums.

Every sample is in one batch of one process. So each process adds its rows to zeros, and the sum over the processes is the record.

`aurc`: area under the risk-coverage curve (Geifman et al., ICLR 2019), the mean over n = 1..N of the share of errors among the n samples of
highest confidence, at the finest rank. If samples have equal confidence, the mean over their possible orders is taken. 0 is best; a
confidence without information gives 1 - top1.

`with_<components>_top1`: top-1 over the samples for which one of the components is known, or any metadata (`with_meta_top1`). This metric
is computed in the passes that mask these components and in the normal pass. The difference between the passes is the cost of the masking,
without the samples that the masking does not change. At a rank where all labelled samples have the metadata, the metric is NaN, since its
value would equal `top1`.

`<name>_low`, `<name>_high`: percentile intervals of the cluster bootstrap (`linnaeus/metrics/bootstrap.py`) over groups of samples, such as
photographs of one observation. Without groups, every sample is a group."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.metrics.bootstrap import group_sums, intervals
from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.training_metrics import zero_counts
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables

MOST_RANKS = 31  # each rank has two bits of the flags, an int64
RECORD = "record"  # name of the counts: int64 [N, 3] of flags, height, confidence


class SampleRecord:
    """Metrics `aurc` and `<rank>/with_<components>_top1`. `counts` is the record of all samples, which `Samples` decodes.

    rows: name of some components, such as SPATIAL_TEMPORAL -> bool [N], True for the samples for which one of these components is known;
    set before a pass."""

    def __init__(self, tables: TreeTables, device: torch.device, size: int) -> None:
        assert len(tables.ranks) <= MOST_RANKS, "the workload has checked it"
        self.ranks = tables.ranks
        self.rows: Mapping[str, np.ndarray] = {}
        self.counts = {RECORD: zero_counts(device, size, 3)}
        self._bits = 1 << torch.arange(2 * len(tables.ranks), device=device)

    def count(self, view: BatchView) -> None:
        flags = (torch.cat([view.known, view.right], 1) * self._bits).sum(1)
        height = torch.where(view.finest_known, view.height, 0)
        rows = torch.stack([flags, height, _confidence(view).view(torch.int32).long()], 1)
        self.counts[RECORD].index_add_(0, view.sample, torch.where(view.real.unsqueeze(1), rows, 0))

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        samples = Samples(counts[RECORD], len(self.ranks))
        known = samples.known[:, -1]
        parts = _fractions_of_rows(self.ranks, samples, self.rows)
        shares = {name: hits.sum() / total.sum() if total.any() else math.nan for name, (hits, total) in parts.items()}
        aurc = area_under_risk_coverage(~samples.right[known, -1], samples.confidence[known])
        return {"aurc": aurc} | {name: float(share) for name, share in shares.items()}

    def intervals(self, counts: Mapping[str, Tensor], groups: np.ndarray | None) -> dict[str, float]:
        """Return the confidence intervals of a complete record. `groups`: as in `confidence_intervals`."""
        return confidence_intervals(self.ranks, Samples(counts[RECORD], len(self.ranks)), groups, self.rows)


class Samples:
    """Complete record (of all processes) as arrays on the host, N samples in dataset order."""

    def __init__(self, record: Tensor, ranks: int) -> None:
        flags, height, bits = record.cpu().numpy().T
        columns = (flags[:, None] >> np.arange(2 * ranks)) & 1
        self.known = columns[:, :ranks].astype(bool)  # [N, R]
        self.right = columns[:, ranks:].astype(bool)  # [N, R]
        self.height = height  # int64 [N]: height of lca(y, p), 0 without a label at the finest rank
        self.confidence = bits.astype(np.int32).view(np.float32)  # [N]: probability of the deepest predicted class


def _confidence(view: BatchView) -> Tensor:
    """Return the probability of the deepest predicted class at its rank, float32 [B]; 0 if nothing is predicted."""
    deepest = (view.path == view.predicted_path) & (view.tables.rank_number[view.predicted].unsqueeze(1) == view.tables.numbers)
    return torch.where(deepest, view.path_log_p.exp().nan_to_num(nan=0.0), 0.0).sum(1).clamp(max=1).float()


def area_under_risk_coverage(wrong: np.ndarray, confidence: np.ndarray) -> float:
    """Return the area under the risk-coverage curve; NaN for no samples. `wrong`: bool [N], True if the prediction is wrong. `confidence`:
    float [N]."""
    if not len(wrong):
        return float("nan")
    order = np.argsort(-confidence, kind="stable")
    ordered = confidence[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))  # first sample of each block of equal confidence
    size = np.diff(np.append(first, len(ordered)))
    errors = np.add.reduceat(wrong[order].astype(np.int64), first)
    before = np.cumsum(errors) - errors
    block = np.repeat(np.arange(len(first)), size)
    number = np.arange(1, len(ordered) + 1)
    expected = before[block] + errors[block] * (number - first[block]) / size[block]
    return float((expected / number).mean())


def confidence_intervals(
    ranks: Sequence[str], samples: Samples, groups: np.ndarray | None, rows: Mapping[str, np.ndarray] | None = None
) -> dict[str, float]:
    """Return `<name>_low` and `<name>_high` of `<rank>/top1`, `chain`, `hd1`, `severity` and `<rank>/with_<components>_top1`; NaN if fewer
    than two groups have a sample.

    `groups` int64 [N]: the group of each sample; None: every sample is a group. `rows`: as in `SampleRecord`."""
    size = len(samples.known)
    assert groups is None or len(groups) == size, "one group per validation sample"
    parts = fractions(ranks, samples) | _fractions_of_rows(ranks, samples, rows or {})
    low, high = intervals(*group_sums(parts, groups, size))
    return {f"{name}_{end}": float(values[i]) for i, name in enumerate(parts) for end, values in (("low", low), ("high", high))}


def fractions(ranks: Sequence[str], samples: Samples) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return, for each metric that is a fraction, what each sample adds to the numerator and to the denominator, both [N]."""
    known, right = samples.known, samples.right
    parts = {f"{rank}/top1": (right[:, r], known[:, r]) for r, rank in enumerate(ranks)}
    parts["chain"] = (right.all(1), known.all(1))
    parts["hd1"] = (samples.height, known[:, -1])
    parts["severity"] = (samples.height, known[:, -1] & ~right[:, -1])
    return parts


def _fractions_of_rows(ranks: Sequence[str], samples: Samples, rows: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return what each sample adds to numerator and denominator of `<rank>/with_<name>_top1`, both [N]. `rows`: name -> bool [N], True for
    the samples over which the metric is computed. Both are 0 at a rank where these are all samples with a label."""
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, own in rows.items():
        chosen = samples.known & own[:, None]
        chosen &= (chosen.sum(0) < samples.known.sum(0))[None, :]
        parts |= {f"{rank}/with_{name}_top1": (samples.right[:, r] & chosen[:, r], chosen[:, r]) for r, rank in enumerate(ranks)}
    return parts
