"""Metrics of dictionaries in a validation pass, over all activations and processes. With several dictionaries, the metric names begin with
the dictionary's name and a slash.

loss                   mean of the training objective, in which the number of active features is limited to k or penalised
l0                     active features per activation, chosen as in evaluation (`encode`)
explained_variance     1 - squared error / squared distance from the mean activation
sparse_gain            explained_variance - l0 / width of the activations; selects the best checkpoint and ranks the trials of a sweep
nmse                   (sum of squared errors) / (sum of squared norms of the activations)
cosine                 mean cosine of activation and reconstruction
dead, dense            share of features that are never active; share of features that are active in more than 10 % of the activations
density/1e-4           share of features whose frequency is from 1e-4 to below 1e-3, and so on; density/0: never active
decoder_cosine         cosine of a decoder vector and the nearest other one: mean, _p90 (90th percentile) and _max
loss_recovered         (zero/loss - spliced/loss) / (zero/loss - original/loss)
original/, zero/, spliced/   metrics of the model that is read, defined by that model's workload; the output of the module is unchanged,
                       replaced by zeros, or replaced by the reconstruction
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import SAMPLES, Metrics, TrainingMetrics
from linnaeus.progress import ValidationPass
from linnaeus.workloads.base import Workload
from linnaeus.workloads.dictionary.activation_record import ActivationRecord
from linnaeus.workloads.dictionary.model.sparse_dictionary import Reconstruction
from linnaeus.workloads.dictionary.splicing import Spliced

DENSE = 0.1
BINS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # lower edges of the frequencies of a bin; the first bin begins above 0
OWN = 3  # sums of each dictionary: loss, squared error, cosine
STRUCTURE = ("decoder_cosine", "decoder_cosine_p90", "decoder_cosine_max")
CHUNK = 4096  # decoder vectors compared with all others at a time


class DictionaryTrainingMetrics(TrainingMetrics):
    """Metrics of the training rows of metrics.jsonl for each dictionary: `loss` per activation, and `l0`, the active features per
    activation."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        super().__init__(names)
        self.counts = {"active": torch.zeros(len(names), dtype=torch.int64, device=device)}

    def count(self, outputs: list[Reconstruction], batch: Batch) -> None:
        real = batch["weight"] > 0
        self.counts["active"] += torch.stack([(one.active * real).sum() for one in outputs])

    def compute(self, loss_sums: Tensor, valid: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        results = super().compute(loss_sums, valid, counts)
        l0 = counts["active"].cpu() / torch.where(valid > 0, valid, torch.nan)
        return results | {f"{prefix(name, self.tasks)}l0": value for name, value in zip(self.tasks, l0.tolist(), strict=True)}


class DictionaryMetrics(Metrics):
    """Metrics of one validation pass; the module docstring defines them.

    inner: workload of the model that is read; None for planted activations, which have no model: `loss_recovered`, `original/`, `zero/` and
    `spliced/` are then left out."""

    def __init__(
        self,
        names: Sequence[str],
        features: Sequence[int],
        width: int,
        device: torch.device,
        inner: Workload | None,
        model: Any,
        record: ActivationRecord | None = None,
    ) -> None:
        """names: name of each dictionary. features: number of features of each dictionary. width: dimensions of the activations. model: the
        `DictionarySet`; None before the model is built. record: record of the validation samples; None: no table of samples."""
        self.names, self.model, self.dimensions, self.record = tuple(names), model, width, record
        runs = ("original", "zero", *(f"{prefix(name, names)}spliced" for name in names)) if inner is not None else ()
        self.inner: dict[str, Metrics] = {run: inner.metrics(device) for run in runs if inner is not None}
        self._inner_start = 2 + width + len(self.names) * (OWN + len(STRUCTURE))
        self.width = self._inner_start + sum(metrics.width for metrics in self.inner.values())
        self._own_counts = {name: torch.zeros(size, dtype=torch.int64, device=device) for name, size in zip(names, features, strict=True)}
        self.counts = {f"active/{name}": count for name, count in self._own_counts.items()} | ({} if record is None else record.counts)
        for run, metrics in self.inner.items():
            self.counts |= {f"{run}/{name}": count for name, count in metrics.counts.items()}
        self._structure: Tensor | None = None

    def begin(self, current: ValidationPass, passes: Sequence[ValidationPass]) -> None:
        for metrics in self.inner.values():
            metrics.begin(current, [current])

    def sums(self, outputs: Spliced, batch: Batch) -> Tensor:
        """Return float64 [K], these sums one after the other: the number of activations, the sum of the activations [d], and the sum of
        their squares; the sums of the `_values` of each dictionary; the decoder cosines of each dictionary, times the number of
        activations; the sums of the metrics in `self.inner`."""
        weight, x = outputs.weight.double(), outputs.activation.double()
        own = [(_values(one, x) * weight).sum(1) for one in outputs.reconstructions]
        if self._structure is None:  # of the weights that are validated, which are swapped back after the pass
            self._structure = torch.cat([decoder_cosines(self.model[number].decoder) for number in range(len(self.names))])
        parts = [weight.sum().view(1), weight @ x, (weight @ x.square().sum(1)).view(1), *own, self._structure * weight.sum()]
        return torch.cat([*parts, *(self.inner[run].sums(result, batch) for run, result in self._results(outputs))])

    def count(self, outputs: Spliced, batch: Batch) -> None:
        real = (outputs.weight > 0).unsqueeze(1)
        for name, one in zip(self.names, outputs.reconstructions, strict=True):
            assert one.activities is not None
            self._own_counts[name] += ((one.activities > 0) & real).sum(0)
        if self.record is not None:
            self.record.count([_values(one, outputs.activation.double()) for one in outputs.reconstructions], outputs, batch)
        for run, result in self._results(outputs):
            self.inner[run].count(result, batch)

    def _results(self, outputs: Spliced) -> list[tuple[str, Any]]:
        return list(zip(self.inner, (outputs.original, outputs.zero, *outputs.spliced), strict=True)) if self.inner else []

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        number, total, squares = float(sums[0]), sums[1 : 1 + self.dimensions], float(sums[1 + self.dimensions])
        each, inner = len(self.names), sums[self._inner_start :]
        own, structure = sums[2 + self.dimensions : self._inner_start].split([OWN * each, len(STRUCTURE) * each])
        variance = squares - float(total.square().sum()) / number if number else math.nan
        results: dict[str, float] = {}
        for name, (loss, error, cosine), shape in zip(self.names, own.view(-1, OWN).tolist(), structure.view(-1, 3).tolist()):
            active = counts[f"active/{name}"].cpu().double()
            found = {"loss": _ratio(loss, number), "l0": _ratio(float(active.sum()), number), "nmse": _ratio(error, squares)}
            found |= {"explained_variance": 1 - _ratio(error, variance), "cosine": _ratio(cosine, number)}
            found |= densities(active, number) | {key: _ratio(value, number) for key, value in zip(STRUCTURE, shape, strict=True)}
            found["sparse_gain"] = found["explained_variance"] - found["l0"] / self.dimensions
            results |= {f"{prefix(name, self.names)}{key}": value for key, value in found.items()}
        results |= self._of_model(inner, counts)
        return results | {key: fmean(results[f"{prefix(name, self.names)}{key}"] for name in self.names) for key in ("loss", "sparse_gain")}

    def tables(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, Iterable[dict[str, Any]]]:
        """Return the table `samples`, with a row for each validation sample of the model that is read, or each planted activation."""
        if self.record is None:
            return {}
        prefixes = [prefix(name, self.names) for name in self.names]
        parts = sums[self._inner_start :].split([metrics.width for metrics in self.inner.values()]) if self.inner else []
        inner_sums = dict(zip(self.inner, parts, strict=True))
        return {SAMPLES: self.record.rows(counts, self.compute(sums, counts), prefixes, self.inner, inner_sums)}

    def _of_model(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return {name: value} of the metrics `original/...`, `zero/...`, `spliced/...` and `loss_recovered`; {} for planted activations.

        sums: float64, the sums of the metrics in `self.inner`, one after the other. counts: all counts of the pass."""
        results: dict[str, float] = {}
        for (run, metrics), part in zip(self.inner.items(), sums.split([metrics.width for metrics in self.inner.values()])):
            own = {name: counts[f"{run}/{name}"] for name in metrics.counts}
            results |= {f"{run}/{name}": value for name, value in metrics.compute(part, own).items()}
        for name in self.names if self.inner else ():
            first = prefix(name, self.names)
            gap = results["zero/loss"] - results["original/loss"]
            results[f"{first}loss_recovered"] = _ratio(results["zero/loss"] - results[f"{first}spliced/loss"], gap)
        return results


def prefix(name: str, names: Sequence[str]) -> str:
    """Return the prefix of the metrics of a dictionary: its name and a slash, or "" if `names` has one name."""
    return f"{name}/" if len(names) > 1 else ""


def densities(active: Tensor, number: float) -> dict[str, float]:
    """Return the metrics `dead`, `dense` and `density/...`; NaN if `number` is 0.

    active: number of activations in which each feature is active, [F]. number: number of all activations."""
    share = active / (number or math.nan)
    dead = float((share == 0).double().mean()) if number else math.nan
    found = {"dead": dead, "dense": float((share > DENSE).double().mean()) if number else math.nan, "density/0": dead}
    for low, high in zip(BINS, (*BINS[1:], 2.0), strict=True):
        inside = (share >= (low if low > BINS[0] else 0.0)) & (share < high) & (share != 0)
        found[f"density/{low:.0e}".replace("e-0", "e-")] = float(inside.double().mean()) if number else math.nan
    return found


@torch.no_grad()
def decoder_cosines(decoder: Tensor) -> Tensor:
    """Return float64 [3]: mean, 90th percentile and maximum over all decoder vectors [F, d] of the cosine with the most similar other
    vector.

    All three are NaN for a single feature."""
    unit = torch.nn.functional.normalize(decoder.float(), dim=1)
    if len(unit) < 2:
        return torch.full((3,), math.nan, dtype=torch.float64, device=decoder.device)
    nearest = []
    for start in range(0, len(unit), CHUNK):
        cosine = unit[start : start + CHUNK] @ unit.T
        at = torch.arange(len(cosine), device=unit.device)
        cosine[at, at + start] = -2
        nearest.append(cosine.max(1).values)
    found = torch.cat(nearest).double().sort().values
    return torch.stack([found.mean(), found[(len(found) - 1) * 9 // 10], found[-1]])


def _values(one: Reconstruction, x: Tensor) -> Tensor:
    """Return float64 [3, N] for one dictionary: the loss, the squared error and the cosine of each activation.

    one: the dictionary's result for `x`. x: activations, float64 [N, d]."""
    loss = torch.stack([part.double() for part in one.losses.values()]).sum(0)
    found = one.reconstruction.double()
    error, square = (found - x).square().sum(1), x.square().sum(1)
    cosine = (found * x).sum(1) / (found.norm(dim=1) * square.sqrt()).clamp(min=1e-30)
    return torch.stack([loss, error, cosine])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
