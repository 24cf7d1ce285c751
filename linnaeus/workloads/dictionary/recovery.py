"""Measure how well a dictionary recovers planted (known) features: their directions, when they are active, and the reconstruction.

mcc                 mean |cosine| between decoder vectors and planted features, matched one to one so that their sum is largest
                    (mean correlation coefficient; the assignment problem, Kuhn 1955, "The Hungarian Method")
uniqueness          number of planted features that are nearest to at least one decoder vector, divided by the number of decoder vectors
precision, recall,  each decoder vector is a detector of its nearest planted feature; mean over the vectors, with 0 for a vector that is
f1                  never active or whose planted feature is never active
dead                share of the vectors that are never active
shrinkage           mean of |reconstruction| / |activation|
l0, true_l0         mean number of active vectors per activation; mean number of active planted features
explained_variance  1 - squared error / squared distance from the mean

The definitions are from SynthSAEBench (arXiv 2602.14687), except that `dead` is a share. `benchmarks.dictionary_recovery` compares the
numbers with the evaluator of SAELens. MCC alone allows several vectors for one feature, so it is read together with uniqueness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.workloads.dictionary.planted import PlantedDictionary

SMALLEST_NORM = 1e-6  # of an activation that counts for the shrinkage


@dataclass(frozen=True)
class Recovery:
    """Measures of how well one dictionary recovers planted features; the module docstring defines them."""

    mcc: float
    uniqueness: float
    precision: float
    recall: float
    f1: float
    dead: float
    shrinkage: float
    l0: float
    true_l0: float
    explained_variance: float


@torch.no_grad()
def measure_recovery(
    encode: Callable[[Tensor], Tensor],
    decode: Callable[[Tensor], Tensor],
    decoder: Tensor,
    planted: PlantedDictionary,
    first: int,
    count: int,
    batch: int = 2048,
) -> Recovery:
    """Return the measures of a dictionary on the planted samples `first` to `first + count - 1`.

    encode: activations [N, d] -> activities [N, L]. decode: activities -> reconstructions [N, d]. decoder: the L decoder vectors, [L,
    d]."""
    cosines = F.normalize(decoder.float(), dim=1) @ F.normalize(planted.features, dim=1).T
    cosines = cosines.abs()
    nearest = cosines.argmax(1)
    both, active, present = (torch.zeros(len(decoder), dtype=torch.float64, device=decoder.device) for _ in range(3))
    total, square, error, shrinkage, counted, true = torch.zeros(planted.width, dtype=torch.float64), 0.0, 0.0, 0.0, 0, 0
    for start in range(first, first + count, batch):
        x, codes = planted.sample(start, min(batch, first + count - start))
        activities = encode(x)
        found = decode(activities)
        on, there = activities != 0, codes.index_select(1, nearest) > 0
        both += (on & there).sum(0)
        active += on.sum(0)
        present += there.sum(0)
        true += int((codes > 0).sum())
        total += x.double().sum(0).cpu()
        square += float(x.double().square().sum())
        error += float((x - found).double().square().sum())
        norm = x.norm(dim=1)
        real = norm > SMALLEST_NORM
        shrinkage += float((found.norm(dim=1)[real] / norm[real]).double().sum())
        counted += int(real.sum())
    precision, recall = both / active.clamp(min=1), both / present.clamp(min=1)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    variance = square / count - float((total / count).square().sum())
    return Recovery(
        mcc=matched_mean(cosines),
        uniqueness=len(nearest.unique()) / len(nearest),
        precision=float(precision.mean()),
        recall=float(recall.mean()),
        f1=float(f1.mean()),
        dead=float((active == 0).double().mean()),
        shrinkage=shrinkage / max(counted, 1),
        l0=float(active.sum()) / count,
        true_l0=true / count,
        explained_variance=1 - error / count / variance,
    )


def matched_mean(similarity: Tensor) -> float:
    """Match rows and columns of `similarity` [L, F] one to one so that the sum of their similarities is largest; return the mean of the
    pairs. Return NaN if a similarity is NaN or infinite."""
    values = similarity.cpu().numpy()
    if not np.isfinite(values).all():
        return math.nan
    values = values if values.shape[0] <= values.shape[1] else values.T
    return float(values[np.arange(len(values)), assign(values)].astype(np.float64).mean())


def assign(value: np.ndarray) -> np.ndarray:
    """Assign a different column to each row so that the sum of the values is largest; return the columns, int64 [n]. value: finite, [n, m],
    n <= m. It is not copied: that of 16,384 rows and columns has 1 GiB in float32.

    Rows are assigned one after another, each along the shortest augmenting path of reduced costs (Jonker and Volgenant 1987, "A Shortest
    Augmenting Path Algorithm for Dense and Sparse Linear Assignment Problems"): at most n^2 operations on vectors of length m. With m = 4 n
    it was 1.2 n for random vectors and 2.3 n if half of the vectors were near the same eighth of n features, for n of 128 to 1,024. With m
    = n it was 9 n to 19 n and 13 n to 29 n."""
    rows, columns = value.shape
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    row_of = np.full(columns, -1)
    for first in range(rows):
        distance, previous = np.full(columns, np.inf), np.full(columns, -1)
        done = np.zeros(columns, dtype=bool)
        row, last, reached = first, -1, 0.0
        while True:
            through = reached - row_price[row] - column_price - value[row]  # in float64, as the prices are
            shorter = ~done & (through < distance)
            distance[shorter], previous[shorter] = through[shorter], last
            last = int(np.where(done, np.inf, distance).argmin())
            reached = distance[last]
            if row_of[last] < 0:
                break
            done[last] = True
            row = row_of[last]
        row_price[first] += reached
        row_price[row_of[done]] += reached - distance[done]
        column_price[done] -= reached - distance[done]
        while last >= 0:  # from the free column back to the first row
            before = previous[last]
            row_of[last] = first if before < 0 else row_of[before]
            last = before
    found = np.empty(rows, dtype=np.int64)
    used = np.flatnonzero(row_of >= 0)
    found[row_of[used]] = used
    return found
