"""Count accuracy by rank, by class, of whole paths, and of null labels.

The class buckets many, medium and few are the usual ones since Liu et al. (CVPR 2019, "Large-scale long-tailed recognition in an open
world"): more than 100, 20 to 100, and fewer than 20 training labels. A class without training labels belongs to the last bucket."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.training_metrics import ratio, zero_counts
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

TOP_K = 5
MANY, FEW = 100, 20  # classes with more than 100, with fewer than 20 training labels


class Accuracy:
    """Metrics `<rank>/top1`, `<rank>/top5`, and for hierarchical heads `<rank>/marginal_top1`."""

    def __init__(self, tables: TreeTables, device: torch.device, consistent: bool) -> None:
        """`consistent`: True if the head is hierarchical."""
        self.ranks = tables.ranks
        self.shown = {"top1": "top1", "top5": "top5"} | ({"marginal_top1": "marginal"} if consistent else {})
        self.counts = {name: zero_counts(device, len(tables.ranks)) for name in ("n", "top1", "top5", "marginal")}

    def count(self, view: BatchView) -> None:
        numbers = ~view.best_log_p.isnan()
        self.counts["n"] += view.known.sum(0)
        self.counts["top1"] += view.right.sum(0)
        self.counts["top5"] += in_top_k(view).sum(0)
        self.counts["marginal"] += ((view.best == view.label) & view.known & numbers).sum(0)

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        shares = {name: ratio(counts[key], counts["n"]).tolist() for name, key in self.shown.items()}
        return {f"{rank}/{name}": share[r] for r, rank in enumerate(self.ranks) for name, share in shares.items()}


class ClassAccuracy:
    """Metrics `<rank>/macro_top1`, `<rank>/many`, `<rank>/medium`, `<rank>/few`: means over classes, each class with the same weight. Three
    integers per class are counted: right predictions, labels, predictions."""

    def __init__(self, tables: TreeTables, device: torch.device, training_counts: Sequence[np.ndarray]) -> None:
        """`training_counts`: per rank int64 [C_r], the number of training labels of each class."""
        self.ranks = tables.ranks
        self.training_counts = [torch.as_tensor(count) for count in training_counts]
        assert tuple(len(count) for count in self.training_counts) == tables.sizes, "training counts of every class of every rank"
        self.counts = {f"{rank}/classes": zero_counts(device, 3, size) for rank, size in zip(tables.ranks, tables.sizes, strict=True)}

    def count(self, view: BatchView) -> None:
        """Add a batch to the counts. A missing label adds 0 to the counts of class 0: to leave it out would need to wait for the device."""
        for r, rank in enumerate(self.ranks):
            own = self.counts[f"{rank}/classes"]
            votes = torch.stack([view.right[:, r], view.known[:, r]]).long()
            own[:2].index_add_(1, view.label[:, r].clamp(min=0), votes)
            predicted = view.known[:, r] & (view.path[:, r] >= 0)
            own[2].index_add_(0, view.path[:, r].clamp(min=0), predicted.long())

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        results = {}
        for rank, seen in zip(self.ranks, self.training_counts, strict=True):
            share = ratio(*counts[f"{rank}/classes"][:2])
            results[f"{rank}/macro_top1"] = share.nanmean().item()
            buckets = {"many": seen > MANY, "medium": (seen >= FEW) & (seen <= MANY), "few": seen < FEW}
            results |= {f"{rank}/{name}": share[bucket].nanmean().item() for name, bucket in buckets.items()}
        return results

    def rows(self, tree: TaxonomyTree, counts: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return a table row for each class: rank, name and lineage of the class, and four numbers: training labels of the class; samples
        of the pass with this label; those samples that are predicted rightly; labelled samples that are predicted as this class. The last
        column is top-1, None for a class without samples."""
        found = []
        for r, rank in enumerate(self.ranks):
            seen = self.training_counts[r].tolist()
            columns = zip(tree.names[r], tree.lineage_ids(r), seen, *counts[f"{rank}/classes"].tolist(), strict=True)
            for name, lineage, training, right, known, predicted in columns:
                own = {"rank": rank, "class": name, "lineage": lineage, "training_count": training, "count": known, "right": right}
                found.append(own | {"predicted": predicted, "top1": right / known if known else None})
        return found

    def baselines(self, counts: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return a table row for each of the metrics `<rank>/top1` and `<rank>/macro_top1`, with the values that two predictions without
        any skill reach. `constant`: always predict the class with most training labels. `shuffled`: exchange the predictions at random
        among the samples (expected value)."""
        found = []
        for rank, seen in zip(self.ranks, self.training_counts, strict=True):
            _, known, predicted = (row.double() for row in counts[f"{rank}/classes"])
            occurs, total = known > 0, known.sum()
            if not total:
                continue
            # some predicted paths may have no class at this rank, so the sum of `own` may be below 1
            own, constant = predicted / total, int(seen.argmax())
            macro = {"constant": float(occurs[constant]) / float(occurs.sum()), "shuffled": float(own[occurs].mean())}
            top1 = {"constant": float(known[constant] / total), "shuffled": float((own * known).sum() / total)}
            found += [{"metric": f"{rank}/top1"} | top1, {"metric": f"{rank}/macro_top1"} | macro]
        return found


class PathAccuracy:
    """Metrics `chain`, `partial_chain` and `inconsistent`. A prediction is inconsistent if a predicted class differs from the path of the
    deepest predicted class. Ranks at which this path has no class are not compared, since a head without null labels must predict a class
    at every rank."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.counts = {name: zero_counts(device, 2) for name in ("chain", "partial_chain", "inconsistent")}  # hits, samples

    def count(self, view: BatchView) -> None:
        complete, labelled = view.known.all(1), view.known.any(1)
        agrees = (view.right | ~view.known).all(1)
        self.counts["chain"] += torch.stack([agrees & complete, complete]).sum(1)
        self.counts["partial_chain"] += torch.stack([agrees & labelled, labelled]).sum(1)
        scored = view.real & ~view.best_log_p.isnan().any(1)
        contradicts = ((view.predicted_path >= 0) & (view.path != view.predicted_path)).any(1)
        self.counts["inconsistent"] += torch.stack([contradicts & scored, scored]).sum(1)

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        return {name: ratio(*counts[name]).item() for name in ("chain", "partial_chain", "inconsistent")}


class NullAccuracy:
    """Metrics `<rank>/null_recall` and `<rank>/null_precision`, for heads that learn null labels (`head.nulls`).

    The null class of a rank is predicted if it is more probable than every other class of the rank. The prediction is right if the sample
    has no label at the rank."""

    def __init__(self, tables: TreeTables, device: torch.device) -> None:
        self.ranks = tables.ranks
        self.counts = {name: zero_counts(device, len(tables.ranks)) for name in ("null", "null_predicted", "null_right")}

    def count(self, view: BatchView) -> None:
        null = ~view.known & view.real.unsqueeze(1)
        pairs = zip(view.scores.log_probs(), view.tables.sizes, strict=True)
        more_probable = torch.stack([log_p[:, size] > log_p[:, :size].amax(1) for log_p, size in pairs], 1)
        predicted = more_probable & view.real.unsqueeze(1)
        for name, found in zip(self.counts, (null, predicted, null & predicted), strict=True):
            self.counts[name] += found.sum(0)

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        totals = {"null_recall": counts["null"], "null_precision": counts["null_predicted"]}
        shares = {name: ratio(counts["null_right"], total).tolist() for name, total in totals.items()}
        return {f"{rank}/{name}": share[r] for r, rank in enumerate(self.ranks) for name, share in shares.items()}


def in_top_k(view: BatchView) -> Tensor:
    """Return bool [B, R], True where the label is among the TOP_K most probable classes of its rank; False without a label."""
    coarser = [classes_before(log_p, view.label[:, r]) < TOP_K for r, log_p in enumerate(view.log_probs[:-1])]
    finest = (view.decisions.most_probable[:, :TOP_K] == view.label[:, -1:]).any(1)
    return torch.stack([*coarser, finest], 1) & ~view.best_log_p.isnan() & view.known


def classes_before(values: Tensor, label: Tensor) -> Tensor:
    """Return for each sample the number of classes that precede its label when classes are sorted by descending value, then by index, int64
    [B]. `values`: [B, C], `label`: int64 [B]."""
    index = label.clamp(min=0).unsqueeze(1)
    own = values.gather(1, index)
    earlier = torch.arange(values.shape[1], device=values.device) < index
    return ((values > own) | ((values == own) & earlier)).sum(1)
