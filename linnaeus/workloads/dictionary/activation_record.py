"""Record how well dictionaries reconstruct the activations of each validation sample: the table `samples` of the last validation of a run.

The record has integers for each sample: its number of activations, then for each dictionary the bits of three float64 sums over these
activations (loss, squared error, cosine) and the number of active features. Every sample is in one batch of one process, so the sum over
the processes is the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import SAMPLES, Metrics
from linnaeus.workloads.dictionary.splicing import Spliced

RECORD = "samples"  # name of the counts, int64 [S, 1 + 4 D]
EACH = 4  # columns of each dictionary


class ActivationRecord:
    """Record of the S = `size` samples of a validation set, for D = `dictionaries` dictionaries of activations with `width` dimensions.

    names: function that returns the names of the samples with given numbers. It is used if the model that is read has no table of samples,
    which has names and groups."""

    def __init__(self, size: int, width: int, dictionaries: int, device: torch.device, names: Callable[[Sequence[int]], list[str]]) -> None:
        self.counts = {RECORD: torch.zeros(size, 1 + EACH * dictionaries, dtype=torch.int64, device=device)}
        self.width, self.names = width, names

    def count(self, values: Sequence[Tensor], outputs: Spliced, batch: Batch) -> None:
        """Add the samples of a batch. values: for each dictionary the loss, squared error and cosine of each of N activations, float64 [3,
        N]."""
        real = outputs.weight > 0
        parts: list[Tensor] = [real.long().unsqueeze(1)]
        floats = torch.cat(list(values)).T * real.unsqueeze(1)  # [N, 3 D]
        active = torch.stack([one.active for one in outputs.reconstructions], 1).long() * real.unsqueeze(1)  # [N, D]
        samples = len(batch["sample"])
        number, actives, sums = (
            part.new_zeros(samples, part.shape[1]).index_add_(0, outputs.place, part) for part in (parts[0], active, floats)
        )
        bits = sums.view(torch.int64).view(samples, -1, 3)
        rows = torch.cat([number, torch.cat([bits, actives.unsqueeze(2)], 2).flatten(1)], 1)
        self.counts[RECORD].index_add_(0, batch["sample"], torch.where(number > 0, rows, 0))  # 0 for placeholders

    def rows(
        self,
        counts: Mapping[str, Tensor],
        results: Mapping[str, float],
        prefixes: Sequence[str],
        inner: Mapping[str, Metrics],
        sums: Mapping[str, Tensor],
    ) -> Iterator[dict[str, Any]]:
        """Yield a table row for each sample: its name, its group if there are groups, its number of activations, and its values of the
        metrics of which the mean over the samples is the metric.

        results: results of the pass. prefixes: beginning of the names of the metrics of each dictionary. inner: metrics of the model that
        is read, `original`, `zero` and `spliced` for each dictionary. sums: their sums by the same names."""
        record = counts[RECORD].cpu().numpy()
        numbers = np.flatnonzero(record[:, 0])
        activations = record[numbers, 0]
        columns: dict[str, np.ndarray] = {}
        for position, first in enumerate(prefixes):
            start = 1 + EACH * position
            own = [record[numbers, start + column].copy().view(np.float64) for column in range(EACH - 1)]
            columns |= {f"{first}{name}": value for name, value in _columns(own, activations, results, first).items()}
            columns[f"{first}l0"] = record[numbers, start + EACH - 1] / activations.mean()
            columns[f"{first}sparse_gain"] = columns[f"{first}explained_variance"] - columns[f"{first}l0"] / self.width
        columns |= {name: np.mean([columns[f"{first}{name}"] for first in prefixes], axis=0) for name in ("loss", "sparse_gain")}
        tables = {run: _table(metrics, sums[run], counts, run) for run, metrics in inner.items()}
        known = bool(tables) and all(len(rows) == len(numbers) for rows in tables.values())
        names = self.names(numbers.tolist())
        for i in range(len(numbers)):
            there = {run: rows[i] for run, rows in tables.items()} if known else {}
            first_row = there.get("original", {})
            row = {"sample": first_row.get("sample", names[i])} | ({"group": first_row["group"]} if "group" in first_row else {})
            row |= {"activations": int(activations[i])} | {name: float(values[i]) for name, values in columns.items()}
            yield row | _of_model(there, results, prefixes)


def _columns(own: Sequence[np.ndarray], activations: np.ndarray, results: Mapping[str, float], first: str) -> dict[str, np.ndarray]:
    """Return {metric: value of each sample} of one dictionary. own: sums of the loss, squared error and cosine of each sample."""
    loss, error, cosine = own
    share = error / error.mean() if error.any() else np.ones(len(error))
    unexplained = 1 - results[f"{first}explained_variance"]
    return {
        "loss": loss / activations.mean(),
        "explained_variance": 1 - unexplained * share,
        "nmse": results[f"{first}nmse"] * share,
        "cosine": cosine / activations.mean(),
    }


def _table(metrics: Metrics, sums: Tensor, counts: Mapping[str, Tensor], run: str) -> list[dict[str, Any]]:
    """Return the rows of the table of samples of the model that is read; [] if its workload has none."""
    own = {name: counts[f"{run}/{name}"] for name in metrics.counts}
    return list(metrics.tables(sums, own).get(SAMPLES, ()))


def _of_model(rows: Mapping[str, Mapping[str, Any]], results: Mapping[str, float], prefixes: Sequence[str]) -> dict[str, Any]:
    """Return {metric: value} of one sample: `spliced/...` for each metric in the table of the model that is read, and `loss_recovered` if
    the table has the loss. rows: the row of the sample in each run of the model."""
    found: dict[str, Any] = {}
    for first in prefixes:
        spliced = rows.get(f"{first}spliced", {})
        found |= {f"{first}spliced/{name}": value for name, value in spliced.items() if f"{first}spliced/{name}" in results}
        if "loss" in spliced:
            gap = results["zero/loss"] - results["original/loss"]
            found[f"{first}loss_recovered"] = (rows["zero"]["loss"] - spliced["loss"]) / gap if gap else math.nan
    return found
