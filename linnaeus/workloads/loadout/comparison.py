"""Compare a model with the baselines and the optimum on the same partial builds, at the end of a run.

`baseline/NAME/slots_K` and, for generated builds, `optimum/slots_K` are shares of right slots like the model's `slots_K`. `of_optimum_K` is
the model's share of the optimum. `margin_K` is the model's share minus that of the best baseline for K, with the standard error
`margin_K_error` and the 95 % interval `margin_K_low` to `margin_K_high` of a paired bootstrap over the builds of validation.
"""

from __future__ import annotations

import numpy as np
import torch

from linnaeus.randomness import BOOTSTRAP, key, uniforms
from linnaeus.workloads.loadout.abilities import SLOTS
from linnaeus.workloads.loadout.baselines import BASELINES, Baselines
from linnaeus.workloads.loadout.build_table import SplitBuilds
from linnaeus.workloads.loadout.gear import count_items
from linnaeus.workloads.loadout.partial_builds import ValidationBuilds
from linnaeus.workloads.loadout.slot_filling import fill

COMPARED = (1, 2, 3, 4, 5, 6)  # numbers of removed slots
RESAMPLES = 1000
BATCH = 6000  # partial builds at once


def compare(split: SplitBuilds, dataset: ValidationBuilds, baselines: Baselines, seen: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Return the results by name. seen, right: int64 [N] of the model, partial builds that were answered and their right slots."""
    results: dict[str, float] = {}
    sample = np.flatnonzero(seen)
    if not len(sample):
        return results
    sample = sample[np.isin(sample % SLOTS + 1, COMPARED)]
    others = answers(split, dataset, baselines, sample)
    for k in COMPARED:
        rows = sample % SLOTS + 1 == k
        own = right[sample[rows]] / k
        shares = {name: found[rows] / k for name, found in others.items()}
        results |= {f"{'' if name == 'optimum' else 'baseline/'}{name}/slots_{k}": float(share.mean()) for name, share in shares.items()}
        if "optimum" in shares:
            results[f"of_optimum_{k}"] = float(own.mean() / shares["optimum"].mean())
        best = max(BASELINES, key=lambda name: float(shares[name].mean()))
        results |= {f"margin_{k}{name}": value for name, value in paired_bootstrap(own - shares[best]).items()}
    return results


def answers(split: SplitBuilds, dataset: ValidationBuilds, baselines: Baselines, sample: np.ndarray) -> dict[str, np.ndarray]:
    """Return name -> right slots, int64 [N], of the baselines and the optimum (if it is known) on the partial builds `sample` int64 [N]."""
    found: dict[str, list[np.ndarray]] = {}
    for start in range(0, len(sample), BATCH):
        build, kept = dataset.parts(sample[start : start + BATCH])
        observed, weapon = count_items(dataset.slots[build], kept), dataset.builds.weapon[build]
        given = torch.from_numpy(observed)
        tails = {
            name: baselines.code.tails(torch.from_numpy(values), given)
            for name, values in baselines.probabilities(observed, weapon).items()
        }
        if split.optimum is not None:
            tails["optimum"] = torch.from_numpy(split.optimum(observed, weapon))
        missing = dataset.builds.items[build] - observed
        for name, values in tails.items():
            found.setdefault(name, []).append(np.minimum(fill(values, given).items.numpy(), missing).sum(1))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def paired_bootstrap(differences: np.ndarray) -> dict[str, float]:
    """Return the mean of differences [N] with its standard error and 95 % interval, over resamples of the rows."""
    number = len(differences)
    draws = uniforms(key(0, BOOTSTRAP, number), np.arange(RESAMPLES * number)).reshape(RESAMPLES, number)
    means = differences[(draws * number).astype(np.int64)].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return {"": float(differences.mean()), "_error": float(means.std()), "_low": float(low), "_high": float(high)}
