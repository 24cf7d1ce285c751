"""Compare a model with the baselines and the optimum on the same partial builds, at the end of a run.

The optimum is the best possible completion, computed from the exact posterior; it is known for generated builds only. K is the number of
removed slots.

- `baseline/NAME/slots_K` and `optimum/slots_K`: share of right slots, like the model's `slots_K`.
- `of_optimum_K`: expected number of right slots of the model's completions, divided by the expected number of the optimum, under the exact
  posterior. It has less noise than the ratio of the two `slots_K`, in which the drawn builds add 1.5 % (3,000 builds, K = 1).
- `margin_K`: share of the model minus share of the best baseline for K. `margin_K_error` is its standard error, `margin_K_low` to
  `margin_K_high` its 95 % interval, from a paired bootstrap over the builds of validation, the copies of a build together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from linnaeus.randomness import BOOTSTRAP, key, uniforms
from linnaeus.workloads.loadout.abilities import SLOTS
from linnaeus.workloads.loadout.baselines import BASELINES, Baselines
from linnaeus.workloads.loadout.build_table import SplitBuilds, content_hashes
from linnaeus.workloads.loadout.gear import count_items
from linnaeus.workloads.loadout.partial_builds import ValidationBuilds
from linnaeus.workloads.loadout.slot_filling import fill

COMPARED = (1, 2, 3, 4, 5, 6)  # numbers of removed slots
RESAMPLES = 1000
CHUNK = 1 << 18  # rows drawn at once: 100,000 rows x `RESAMPLES` would need several GB
BATCH = 6000  # partial builds at once
MODEL = "model"


class Completions(NamedTuple):
    """Results of one method on N partial builds.

    right: number of right slots, int64 [N]. expected: expected number of right slots under the exact posterior, float64 [N]; NaN if the
    posterior is unknown."""

    right: np.ndarray
    expected: np.ndarray


def compare(split: SplitBuilds, dataset: ValidationBuilds, baselines: Baselines, seen: np.ndarray, filled: np.ndarray) -> dict[str, float]:
    """Return {name: value} of the results that the module describes; {} if `seen` is 0 everywhere.

    seen: int64 [N], above 0 for the samples of `dataset` that the model completed. filled: int64 [N, 12], 1 + the item that the model added
    in each slot; 0 for a slot in which it added nothing."""
    results: dict[str, float] = {}
    sample = np.flatnonzero(seen)
    if not len(sample):
        return results
    sample = sample[np.isin(sample % SLOTS + 1, COMPARED)]
    others = completions(split, dataset, baselines, sample, filled[sample])
    own, groups = others.pop(MODEL), content_hashes(dataset.builds, 0)[sample // SLOTS]
    for k in COMPARED:
        rows = sample % SLOTS + 1 == k
        if not rows.any():  # few validation samples
            continue
        shares = {name: found.right[rows] / k for name, found in others.items()}
        results |= {f"{'' if name == 'optimum' else 'baseline/'}{name}/slots_{k}": float(share.mean()) for name, share in shares.items()}
        if "optimum" in others:
            results[f"of_optimum_{k}"] = float(own.expected[rows].mean() / others["optimum"].expected[rows].mean())
        best = max(BASELINES, key=lambda name: float(shares[name].mean()))
        margin = paired_bootstrap(own.right[rows] / k - shares[best], groups[rows])
        results |= {f"margin_{k}{name}": value for name, value in margin.items()}
    return results


def completions(
    split: SplitBuilds, dataset: ValidationBuilds, baselines: Baselines, sample: np.ndarray, filled: np.ndarray
) -> dict[str, Completions]:
    """Return {method: results} on some samples of `dataset`. The methods are the model, each baseline and, if it is known, the optimum.

    sample: int64 [N], the samples. filled: int64 [N, 12], the slots that the model added to these samples, as in `compare`."""
    found: dict[str, list[Completions]] = {}
    for start in range(0, len(sample), BATCH):
        build, kept = dataset.parts(sample[start : start + BATCH])
        observed, weapon = count_items(dataset.slots[build], kept), dataset.builds.weapon[build]
        missing = dataset.builds.items[build] - observed
        exact = None if split.optimum is None else split.optimum(observed, weapon)
        added = {MODEL: count_items(filled[start : start + BATCH] - 1, filled[start : start + BATCH] > 0)}
        given = torch.from_numpy(observed)
        for name, values in baselines.probabilities(observed, weapon).items():
            added[name] = fill(baselines.code.tails(torch.from_numpy(values), given), given).items.numpy()
        if exact is not None:
            added["optimum"] = fill(torch.from_numpy(exact), given).items.numpy()
        for name, items in added.items():
            right = np.minimum(items, missing).sum(1, dtype=np.int64)
            found.setdefault(name, []).append(Completions(right, expected_right(exact, items)))
    return {name: Completions(*(np.concatenate(parts) for parts in zip(*rows, strict=True))) for name, rows in found.items()}


def expected_right(tails: np.ndarray | None, added: np.ndarray) -> np.ndarray:
    """Return the expected number of right slots of each of N completions, float64 [N].

    tails: [N, 40, 9], the probability of at least j = 1 to 9 more of each item; None: return NaN. added: int [N, 40], the items that the
    completion adds."""
    if tails is None:
        return np.full(len(added), np.nan)
    found: np.ndarray = np.where(np.arange(1, tails.shape[2] + 1) <= added[:, :, None], tails, 0.0).sum((1, 2))
    return found


def paired_bootstrap(differences: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """Return mean, standard error and 95 % interval of `differences` [N]: {"": mean, "_error": ..., "_low": ..., "_high": ...}.

    The error and the interval are computed from `RESAMPLES` bootstrap resamples of whole groups, because the copies of a build are not
    independent. groups: [N], equal for the rows of one group."""
    place = np.unique(groups, return_inverse=True)[1]
    sums, sizes = np.bincount(place, weights=differences), np.bincount(place)
    number = len(sums)
    stream, size = key(0, BOOTSTRAP, number), max(1, CHUNK // number)
    parts = []
    for first in range(0, RESAMPLES, size):
        places = np.arange(first * number, min(first + size, RESAMPLES) * number).reshape(-1, number)
        drawn = (uniforms(stream, places) * number).astype(np.int64)
        parts.append(sums[drawn].sum(1) / sizes[drawn].sum(1))
    means = np.concatenate(parts)
    low, high = np.quantile(means, (0.025, 0.975))
    return {"": float(differences.mean()), "_error": float(means.std()), "_low": float(low), "_high": float(high)}
