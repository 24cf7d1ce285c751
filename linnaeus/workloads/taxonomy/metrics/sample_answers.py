"""Record the answer to each validation sample: the tables `samples` and `confusions` of the last validation of a run.

The record has five integers per sample. Two are nodes: of the deepest label and of the deepest predicted class, each plus 1 (0: none).
Three are the most probable finest classes, each packed together with its probability. Every sample is in one batch of one process, so the
sum over the processes is the record."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView
from linnaeus.workloads.taxonomy.metrics.sample_record import RECORD, Samples
from linnaeus.workloads.taxonomy.metrics.training_metrics import zero_counts
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables

ANSWERS = "answers"  # name of the counts, int64 [N, 2 + SHOWN]
SHOWN = 3  # most probable finest classes that are recorded
WORD = 2**32  # a class and its probability share an integer: class x 2^32 + bits of the probability


class Answers:
    """Part of `TaxonomyMetrics` that records the answer to each sample and adds no metric. `names()` returns the names of the samples in
    order; `names` None: samples are named by their numbers."""

    def __init__(self, tables: TreeTables, device: torch.device, size: int, names: Callable[[], Sequence[str]] | None) -> None:
        self.tables, self.names = tables, names
        self.counts = {ANSWERS: zero_counts(device, size, 2 + SHOWN)}

    def count(self, view: BatchView) -> None:
        chosen = view.decisions.most_probable[:, :SHOWN]
        bits = view.log_probs[-1].gather(1, chosen).exp().nan_to_num(nan=0.0).float().view(torch.int32).long()
        packed = torch.zeros(len(chosen), SHOWN, dtype=torch.int64, device=chosen.device)
        packed[:, : chosen.shape[1]] = chosen * WORD + bits
        nodes = torch.stack([view.truth, view.predicted], 1)
        nodes = torch.where(nodes < self.tables.taxa, nodes + 1, 0)
        rows = torch.cat([nodes, packed], 1)
        self.counts[ANSWERS].index_add_(0, view.sample, torch.where(view.real.unsqueeze(1), rows, 0))

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        return {}

    def sample_rows(
        self, counts: Mapping[str, Tensor], groups: np.ndarray | None, metadata: Mapping[str, np.ndarray]
    ) -> Iterator[dict[str, Any]]:
        """Yield a table row for each sample, in dataset order: its name, group and known metadata, the lineages of its label and of its
        prediction, the confidence of the prediction, and the most probable finest classes. The last columns are the values of this sample
        for `<rank>/top1`, `chain` and `hd1`, None where the sample lacks the label for the metric. `groups` and `metadata`: as for
        `TaxonomyMetrics`."""
        ranks, answers = self.tables.ranks, counts[ANSWERS].cpu().numpy()
        samples, lineages = Samples(counts[RECORD], len(ranks)), self._lineages()
        finest = self.tables.tree.lineage_ids(len(ranks) - 1)
        probability = (answers[:, 2:] % WORD).astype(np.uint32).view(np.float32)
        names: Sequence[str] | range = range(len(answers)) if self.names is None else self.names()
        for i, (truth, predicted, *best) in enumerate(answers.tolist()):
            known, right = samples.known[i].tolist(), samples.right[i].tolist()
            row: dict[str, Any] = {"sample": names[i]}
            row |= {} if groups is None else {"group": int(groups[i])}
            row["metadata"] = " ".join(name for name, own in metadata.items() if own[i])
            row |= {"label": lineages[truth], "predicted": lineages[predicted], "confidence": _short(samples.confidence[i])}
            for k, packed in enumerate(best):
                some = probability[i, k] > 0
                row |= {f"answer_{k + 1}": finest[packed // WORD] if some else "", f"probability_{k + 1}": _short(probability[i, k])}
            row |= {f"{rank}/top1": int(right[r]) if known[r] else None for r, rank in enumerate(ranks)}
            row["chain"] = int(all(right)) if all(known) else None
            row["hd1"] = int(samples.height[i]) if known[-1] else None
            yield row

    def confusion_rows(self, counts: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return a table row for each pair (label, prediction) of different finest classes, the most frequent pair first: the lineages of
        both classes, the number of samples, their share of the samples with this label, and the lowest taxon above both classes with its
        height (counted as in `hd1`)."""
        answers, tree = counts[ANSWERS][:, :2].cpu() - 1, self.tables.tree
        first = tree.offsets[-2]
        truth, predicted = answers[(answers >= first).all(1)].T.numpy()
        labelled = Counter((answers[:, 0][answers[:, 0] >= first]).tolist())
        pairs = Counter((t, p) for t, p in zip(truth.tolist(), predicted.tolist(), strict=True) if t != p)
        lineages, paths = self._lineages(), tree.paths
        found = []
        for (t, p), count in sorted(pairs.items(), key=lambda item: (-item[1], item[0])):
            shared = np.flatnonzero((paths[t] == paths[p]) & (paths[t] >= 0))
            r = int(shared[-1]) if len(shared) else -1
            common = lineages[tree.offsets[r] + int(paths[t][r]) + 1] if r >= 0 else ""
            row = {"label": lineages[t + 1], "predicted": lineages[p + 1], "count": count, "share": round(count / labelled[t], 6)}
            found.append(row | {"common": common, "height": len(tree.ranks) - 1 - r})
        return found

    def _lineages(self) -> list[str]:
        """Return the lineage ids in a list with index node + 1: first "" for no node, then the id of each node."""
        return ["", *(lineage for r in range(len(self.tables.ranks)) for lineage in self.tables.tree.lineage_ids(r))]


def _short(value: float) -> float:
    """Return a probability rounded to six significant digits."""
    return float(f"{value:.6g}")
