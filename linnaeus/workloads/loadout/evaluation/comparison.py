"""Compare a model with the baselines and the optimum on the same partial builds, at the end of a run.

The optimum is the best possible completion, computed from the exact posterior; it is known for generated builds only. K is the number of
removed slots.

- `baseline/NAME/METRIC` and `optimum/METRIC`: the metrics of `answer_scores.py` for the other methods. All methods fill slots with the same
  function, so their answers are legal and keep the given gear, too.
- `of_optimum_K`: expected number of right slots of the model's completions, divided by the expected number of the optimum, under the exact
  posterior. It has less noise than the ratio of the two `slots_K`, in which the drawn builds add 1.5 % (3,000 builds, K = 1).
- `margin_K`: share of the model minus share of the best baseline for K. `margin_K_error` is its standard error, `margin_K_low` to
  `margin_K_high` its 95 % interval, from a paired bootstrap over the builds of validation, the copies of a build together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linnaeus.randomness import BOOTSTRAP, key, uniforms
from linnaeus.workloads.loadout.builds.build_table import SplitBuilds
from linnaeus.workloads.loadout.builds.partial_builds import ValidationBuilds
from linnaeus.workloads.loadout.completion.slot_filling import fill
from linnaeus.workloads.loadout.evaluation.answer_scores import COMPARED, SHOWN, Scores, answer_metrics, decided_by_weapon, score
from linnaeus.workloads.loadout.evaluation.baselines import BASELINES, Baselines
from linnaeus.workloads.loadout.game.abilities import FULL_POINTS, SLOTS
from linnaeus.workloads.loadout.game.gear import count_items

RESAMPLES = 1000
CHUNK = 1 << 18  # rows drawn at once: 100,000 rows x `RESAMPLES` would need several GB
BATCH = 6000  # partial builds at once
MODEL, OPTIMUM = "model", "optimum"


class Completions(NamedTuple):
    """Results of one method on N partial builds.

    scores: name of a field of `Scores` -> int64 [N]. expected: expected number of right slots under the exact posterior, float64 [N]; NaN
    if the posterior is unknown."""

    scores: dict[str, np.ndarray]
    expected: np.ndarray


class Comparison:
    """Results of the model, the baselines and, if it is known, the optimum on the N validation samples that the model completed.

    pool: references of each weapon (`reference_pool`). The other arguments are of all samples of `dataset`. seen: int64, above 0 for the
    samples that the model completed. filled: int64 [., 12], 1 + the item that the model added in each slot; 0 for a slot in which it added
    nothing. losses: int64 [., 2], bits of the summed loss (float64) and number of its tokens."""

    def __init__(
        self,
        split: SplitBuilds,
        dataset: ValidationBuilds,
        baselines: Baselines,
        pool: Tensor,
        seen: np.ndarray,
        filled: np.ndarray,
        losses: np.ndarray,
    ) -> None:
        self.dataset, self.sample = dataset, np.flatnonzero(seen)
        self.removed = self.sample % SLOTS + 1
        self.loss, self.tokens = losses[self.sample, 0].copy().view(np.float64), losses[self.sample, 1]
        self.groups = np.unique(dataset.hashes[self.sample // SLOTS], return_inverse=True)[1].reshape(-1)
        self.decided, self.methods = completions(split, dataset, baselines, pool, self.sample, filled[self.sample])

    def metrics(self) -> dict[str, float]:
        """Return {name: value} of the results that the module describes; {} without samples."""
        results: dict[str, float] = {}
        if not len(self.sample):
            return results
        for name in (*BASELINES, OPTIMUM):
            first = name if name == OPTIMUM else f"baseline/{name}"
            found = answer_metrics(self._of_all_samples(name)) if name in self.methods else {}
            results |= {f"{first}/{metric}": value for metric, value in found.items() if not np.isnan(value)}
        for k in COMPARED:
            rows = self.removed == k
            if not rows.any():  # few validation samples
                continue
            if OPTIMUM in self.methods:
                own, best = self.methods[MODEL].expected[rows], self.methods[OPTIMUM].expected[rows]
                results[f"of_optimum_{k}"] = float(own.mean() / best.mean())
            margin = paired_bootstrap(self._margins(k), self.groups[rows])
            results |= {f"margin_{k}{name}": value for name, value in margin.items()}
        return results

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the table `samples`: name of the partial build, number of its group (the copies of a build are one group),
        number of removed slots, and the number of right slots of each method; then the model's value of each metric of which the mean over
        the samples is the metric.

        A value is None for a sample that has no part in the metric. A metric that divides by a sum is divided by the mean number here."""
        columns = self._columns() if len(self.sample) else {}
        right = {name: found.scores["right"] for name, found in self.methods.items()}
        for i, name in enumerate(self.dataset.names(self.sample)):
            row = {"sample": name, "group": int(self.groups[i]), "removed": int(self.removed[i])}
            row |= {f"right {method}": int(values[i]) for method, values in right.items()}
            yield row | {metric: None if np.isnan(values[i]) else float(values[i]) for metric, values in columns.items()}

    def _columns(self) -> dict[str, np.ndarray]:
        """Return {metric: value of each sample, float64 [N]}; NaN for a sample without part in the metric."""
        own, removed = self.methods[MODEL], self.removed
        right, decided, decided_right = own.scores["right"], self.decided, own.scores["decided_right"]
        found = {"loss": self.loss / self.tokens.mean()}
        found |= {f"slots_{k}": np.where(removed == k, right / k, np.nan) for k in SHOWN}
        found |= {f"references_{k}": np.where(removed == k, own.scores["references"] / k, np.nan) for k in COMPARED}
        six = removed == 6
        for name, hits, number in (("weapon_6", decided_right, decided), ("gear_6", right - decided_right, 6 - decided)):
            if number[six].any():
                found[name] = np.where(six, hits / number[six].mean(), np.nan)
        found["points"] = 1 - own.scores["points"] / (2 * FULL_POINTS)
        for k in (k for k in COMPARED if (removed == k).any()):
            rows = removed == k
            if OPTIMUM in self.methods:
                found[f"of_optimum_{k}"] = np.where(rows, own.expected / self.methods[OPTIMUM].expected[rows].mean(), np.nan)
            found[f"margin_{k}"] = np.full(len(removed), np.nan)
            found[f"margin_{k}"][rows] = self._margins(k)
        return found

    def _margins(self, k: int) -> np.ndarray:
        """Return the share of right slots of the model minus that of the best baseline, for each sample with `k` removed slots."""
        rows = self.removed == k
        shares = {name: self.methods[name].scores["right"][rows] / k for name in (MODEL, *BASELINES)}
        best = max(BASELINES, key=lambda name: float(shares[name].mean()))
        margins: np.ndarray = shares[MODEL] - shares[best]
        return margins

    def _of_all_samples(self, name: str) -> dict[str, np.ndarray]:
        """Return the counts of the method `name` for `answer_metrics`."""
        own = {"seen": np.ones_like(self.sample), "decided": self.decided, **self.methods[name].scores}
        found = {field: np.zeros(len(self.dataset), np.int64) for field in own}
        for field, values in own.items():
            found[field][self.sample] = values
        return found


def completions(
    split: SplitBuilds, dataset: ValidationBuilds, baselines: Baselines, pool: Tensor, sample: np.ndarray, filled: np.ndarray
) -> tuple[np.ndarray, dict[str, Completions]]:
    """Return (number of slots that the weapon alone decides, int64 [N]; {method: results}) on some samples of `dataset`. The methods are
    the model, each baseline and, if it is known, the optimum.

    pool: as for `Comparison`. sample: int64 [N], the samples. filled: int64 [N, 12], the slots that the model added to these samples."""
    decided: list[np.ndarray] = [np.zeros(0, np.int64)]
    found: dict[str, list[Completions]] = {}
    for start in range(0, len(sample), BATCH):
        build, kept = dataset.parts(sample[start : start + BATCH])
        observed, weapon = count_items(dataset.slots[build], kept), dataset.builds.weapon[build]
        exact = None if split.optimum is None else split.optimum(observed, weapon)
        added = {MODEL: torch.from_numpy(count_items(filled[start : start + BATCH] - 1, filled[start : start + BATCH] > 0)).long()}
        given, complete = torch.from_numpy(observed).long(), torch.from_numpy(dataset.builds.items[build]).long()
        for name, values in baselines.probabilities(observed, weapon).items():
            added[name] = fill(baselines.code.tails(torch.from_numpy(values), given), given).items
        if exact is not None:
            added[OPTIMUM] = fill(torch.from_numpy(exact), given).items
        by_weapon = fill(baselines.code.tails(torch.from_numpy(baselines.frequency[weapon]), given), given).items
        decided.append(decided_by_weapon(by_weapon, complete - given).sum(1).numpy())
        scores = score(torch.stack(list(added.values())), given, complete, by_weapon, torch.from_numpy(weapon), pool)
        for number, (name, items) in enumerate(added.items()):
            own = {field: values[number].numpy() for field, values in scores._asdict().items()}
            found.setdefault(name, []).append(Completions(own, expected_right(exact, items.numpy())))
    return np.concatenate(decided), {name: _joined(parts) for name, parts in found.items()}


def _joined(parts: list[Completions]) -> Completions:
    scores = {field: np.concatenate([part.scores[field] for part in parts]) for field in Scores._fields}
    return Completions(scores, np.concatenate([part.expected for part in parts]))


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
