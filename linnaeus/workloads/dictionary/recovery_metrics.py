"""Metrics of dictionaries on planted activations, in addition to the metrics of `dictionary_metrics.py`; `recovery.py` defines them:

mcc, uniqueness, precision, recall, f1, shrinkage, and true_l0, the number of active planted features per activation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.dictionary.activation_record import ActivationRecord
from linnaeus.workloads.dictionary.dictionary_metrics import DictionaryMetrics, prefix
from linnaeus.workloads.dictionary.planted import PlantedDictionary
from linnaeus.workloads.dictionary.recovery import SMALLEST_NORM, matched_mean
from linnaeus.workloads.dictionary.splicing import Spliced

OWN = 4  # sums of each dictionary: mcc and uniqueness times the number of activations, sum of the shrinkages, number of them


class RecoveryMetrics(DictionaryMetrics):
    """Metrics of one validation pass on planted activations: the metrics of `DictionaryMetrics` and of `recovery.py`.

    planted: generator of the activations. Other arguments: as for `DictionaryMetrics`."""

    def __init__(
        self,
        names: Sequence[str],
        features: Sequence[int],
        device: torch.device,
        model: Any,
        planted: PlantedDictionary,
        record: ActivationRecord | None = None,
    ) -> None:
        super().__init__(names, features, planted.width, device, None, model, record)
        self.planted, self._first = planted, self.width
        self.width += OWN * len(self.names)
        for name, size in zip(names, features, strict=True):
            self.counts |= {f"{kind}/{name}": torch.zeros(size, dtype=torch.int64, device=device) for kind in ("both", "present")}
        self.counts["true"] = torch.zeros((), dtype=torch.int64, device=device)
        self._nearest: list[Tensor] = []
        self._matched: list[tuple[float, float]] = []

    def sums(self, outputs: Spliced, batch: Batch) -> Tensor:
        """Return float64 [K]: the sums of `DictionaryMetrics`, then four values for each dictionary.

        The four values: mcc x number of activations; uniqueness x number of activations; the sum of |reconstruction| / |activation|; and
        the number of activations in this sum."""
        self._compare()
        number, norm = outputs.weight.double().sum(), outputs.activation.norm(dim=1).double()
        real = (outputs.weight > 0) & (norm > SMALLEST_NORM)
        parts = [super().sums(outputs, batch)]
        for one, (mcc, uniqueness) in zip(outputs.reconstructions, self._matched, strict=True):
            ratio = one.reconstruction.norm(dim=1).double() / norm.clamp(min=SMALLEST_NORM)
            parts.append(torch.stack([number * mcc, number * uniqueness, (ratio * real).sum(), real.sum().double()]))
        return torch.cat(parts)

    def count(self, outputs: Spliced, batch: Batch) -> None:
        super().count(outputs, batch)
        real = (outputs.weight > 0).unsqueeze(1)
        present = (batch["codes"] > 0) & real
        self.counts["true"] += present.sum()
        for name, one, nearest in zip(self.names, outputs.reconstructions, self._nearest, strict=True):
            there = present.index_select(1, nearest)
            self.counts[f"present/{name}"] += there.sum(0)
            assert one.activities is not None
            self.counts[f"both/{name}"] += (there & (one.activities > 0)).sum(0)

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        results, number = super().compute(sums[: self._first], counts), float(sums[0]) or float("nan")
        results["true_l0"] = float(counts["true"]) / number
        for name, (mcc, uniqueness, ratio, real) in zip(self.names, sums[self._first :].view(-1, OWN).tolist(), strict=True):
            both, active, present = (counts[f"{kind}/{name}"].cpu().double() for kind in ("both", "active", "present"))
            precision, recall = both / active.clamp(min=1), both / present.clamp(min=1)
            f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
            found = {"mcc": mcc / number, "uniqueness": uniqueness / number, "shrinkage": ratio / (real or float("nan"))}
            found |= {"precision": float(precision.mean()), "recall": float(recall.mean()), "f1": float(f1.mean())}
            results |= {f"{prefix(name, self.names)}{key}": value for key, value in found.items()}
        return results

    @torch.no_grad()
    def _compare(self) -> None:
        """Compute the nearest planted feature of each decoder vector, and mcc and uniqueness of each dictionary. Later calls do nothing.

        Called at the first batch of the pass, because after the pass the model may have other weights."""
        if self._nearest:
            return
        planted = F.normalize(self.planted.features, dim=1)
        for number in range(len(self.names)):
            decoder = self.model[number].decoder.float()
            cosines = (F.normalize(decoder, dim=1) @ planted.to(decoder.device).T).abs()
            nearest = cosines.argmax(1)
            self._nearest.append(nearest)
            self._matched.append((matched_mean(cosines), len(nearest.unique()) / len(nearest)))
