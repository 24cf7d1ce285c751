"""Metrics of a validation pass, over all samples and processes.

Tokens: `loss` (nats per hidden token), `precision`, `recall` and `f1` at a probability of 0.5, `average_precision`. Tokens that the partial
build shows are left out, because a model can copy them.

Completions, filled in one step by `slot_filling.fill`:

- `slots_K`: share of K removed slots that are right, compared as multisets of items.
- `references_K`: the same share, compared with the best matching of several builds that contain the given gear: the whole build of the
  sample, and the first `REFERENCES` validation builds of the weapon.
- `weapon_6`: of the slots that the token frequencies of the weapon alone fill rightly, the share that the model fills rightly (6 removed).
- `gear_6`: of the other slots, which need the given gear, the share that the model fills rightly (6 removed).
- `points`: 1 - (sum of absolute differences of the ability points) / (2 x 57).
- `ece`: calibration error of the slots' probabilities.
- `legal`, `changed`: shares of answers that are legal, and of answers that change the given gear.

Everything except the loss is an integer count, so the results do not depend on batches and processes. The completion of each sample is kept
for the paired comparison at the end of a run (`comparison.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import Metrics
from linnaeus.workloads.loadout.abilities import (
    ABILITIES,
    FULL_POINTS,
    ITEM_ABILITY,
    ITEM_PIECE,
    ITEM_POINTS,
    ITEMS,
    MAIN_ITEMS,
    MAIN_SLOTS,
    PIECES,
    SLOTS,
    SUB_SLOTS,
)
from linnaeus.workloads.loadout.baselines import Baselines
from linnaeus.workloads.loadout.build_table import Builds, SplitBuilds, content_hashes
from linnaeus.workloads.loadout.comparison import COMPARED, compare
from linnaeus.workloads.loadout.partial_builds import ValidationBuilds
from linnaeus.workloads.loadout.slot_filling import Filled, fill
from linnaeus.workloads.loadout.token_code import TokenCode

BINS = 1000  # of token probabilities; 0.5 is an edge
SLOT_BINS = 15  # of slot probabilities, as usual for a calibration error
FIXED = 1_000_000  # a probability as an integer
REFERENCES = 256  # builds of a weapon that an answer is compared with, at most


class CompletionMetrics(Metrics):
    """Metrics of one validation pass over N partial builds: the token and completion metrics that the module describes."""

    width = 2

    def __init__(self, code: TokenCode, split: SplitBuilds, dataset: ValidationBuilds, baselines: Baselines, device: torch.device) -> None:
        self.code, self.split, self.dataset, self.baselines = code, split, dataset, baselines
        self._frequency = torch.from_numpy(baselines.frequency).to(device)
        self._pool = reference_pool(dataset.builds, len(split.weapons)).to(device)
        shapes = {"tokens": (2, BINS), "slot_bins": (3, SLOT_BINS), "legal": (), "changed": ()}
        shapes |= {name: (len(dataset),) for name in ("seen", "right", "references", "points", "decided", "decided_right")}
        shapes["filled"] = (len(dataset), SLOTS)
        self.counts = {name: torch.zeros(shape, dtype=torch.int64, device=device) for name, shape in shapes.items()}

    def sums(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 [2]: the sum of the losses of the scored tokens in nats, and the number of scored tokens (`batch["scored"]`)."""
        losses = torch.nn.functional.binary_cross_entropy_with_logits(outputs.double(), batch["target"].double(), reduction="none")
        return torch.stack([(losses * batch["scored"]).sum(), batch["scored"].sum(dtype=torch.float64)])

    def count(self, outputs: Tensor, batch: Batch) -> None:
        # 0 in place of NaN, which has no bin: the loss of a model that has diverged shows the NaN
        probabilities, real = outputs.double().sigmoid().nan_to_num(0.0), batch["weight"] > 0
        scored = batch["scored"]
        bins = (probabilities[scored] * BINS).long().clamp(max=BINS - 1)
        self.counts["tokens"] += torch.stack([bins.bincount(minlength=BINS), bins[batch["target"][scored]].bincount(minlength=BINS)])
        observed, complete = batch["observed"][real].long(), batch["complete"][real].long()
        filled = fill(self.code.tails(probabilities[real], observed), observed)
        self._count_completions(filled, observed, complete, batch["weapon"][real], batch["sample"][real])

    def _count_completions(self, filled: Filled, observed: Tensor, complete: Tensor, weapon: Tensor, sample: Tensor) -> None:
        missing, answer = complete - observed, observed + filled.items
        self.counts["seen"][sample] += 1
        self.counts["filled"][sample] += filled.item + 1
        right = torch.minimum(filled.items, missing).sum(1)
        self.counts["right"][sample] += right
        self.counts["points"][sample] += (to_points(answer) - to_points(complete)).abs().sum(1)
        self.counts["references"][sample] += torch.maximum(right, best_reference(filled.items, observed, self._pool[weapon]))
        by_weapon = fill(self.baselines.code.tails(self._frequency[weapon], observed), observed).items
        decided = torch.minimum(by_weapon, missing)
        self.counts["decided"][sample] += decided.sum(1)
        self.counts["decided_right"][sample] += torch.minimum(decided, filled.items).sum(1)
        self.counts["changed"] += (answer < observed).any(1).sum()
        self.counts["legal"] += legal(answer).sum()
        known = filled.item >= 0
        copies = torch.nn.functional.one_hot(filled.item.clamp(min=0), len(ITEMS)) * known.unsqueeze(2)
        copy = copies.cumsum(1).gather(2, filled.item.clamp(min=0).unsqueeze(2)).squeeze(2)  # 1 for the first of its item
        hit = (copy <= missing.gather(1, filled.item.clamp(min=0)))[known]
        probability = filled.probability[known].double().clamp(0, 1)
        bins = (probability * SLOT_BINS).long().clamp(max=SLOT_BINS - 1)
        rows = (torch.ones_like(bins), hit.long(), (probability * FIXED).round().long())
        self.counts["slot_bins"] += torch.stack([torch.zeros_like(self.counts["slot_bins"][0]).index_add_(0, bins, row) for row in rows])

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        arrays = {name: count.cpu().numpy() for name, count in counts.items()}
        loss, tokens = sums.tolist()
        seen, removed = arrays["seen"], np.arange(len(arrays["seen"])) % SLOTS + 1
        results = {"loss": _mean(loss, tokens), **_token_results(*arrays["tokens"])}
        for k in (1, 2, 3, 4, 5, 6, 9, SLOTS):
            rows = removed == k
            results[f"slots_{k}"] = _mean(arrays["right"][rows].sum(), k * seen[rows].sum())
        for k in COMPARED:
            rows = removed == k
            results[f"references_{k}"] = _mean(arrays["references"][rows].sum(), k * seen[rows].sum())
        number, six = seen.sum(), removed == 6
        decided, decided_right = arrays["decided"][six].sum(), arrays["decided_right"][six].sum()
        return results | {
            "weapon_6": _mean(decided_right, decided),
            "gear_6": _mean(arrays["right"][six].sum() - decided_right, 6 * seen[six].sum() - decided),
            "points": 1 - _mean(arrays["points"].sum(), 2 * FULL_POINTS * number),
            "ece": calibration_error(*arrays["slot_bins"]),
            "legal": _mean(arrays["legal"], number),
            "changed": _mean(arrays["changed"], number),
        }

    def compute_at_end(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return {name: value} of the comparison with the baselines and the optimum (see `comparison.py`)."""
        return compare(self.split, self.dataset, self.baselines, counts["seen"].cpu().numpy(), counts["filled"].cpu().numpy())


def reference_pool(builds: Builds, weapons: int) -> Tensor:
    """Return the first different builds of each weapon in `builds`, at most `REFERENCES`: int8 [W, R, 40].

    R is the largest of these numbers. Rows beyond a weapon's builds are -1, so that they contain no gear. weapons: W."""
    first = np.sort(np.unique(content_hashes(builds, 0), return_index=True)[1])
    own = [builds.items[first[builds.weapon[first] == weapon][:REFERENCES]] for weapon in range(weapons)]
    found = np.full((weapons, max(1, *map(len, own)), len(ITEMS)), -1, np.int8)
    for weapon, rows in enumerate(own):
        found[weapon, : len(rows)] = rows
    return torch.from_numpy(found)


def best_reference(added: Tensor, observed: Tensor, pool: Tensor) -> Tensor:
    """Return the largest number of right slots, int64 [B], over the reference builds that contain the given gear; 0 if none contains it.

    added: int [B, 40], the slots that a completion adds. observed: int [B, 40], the given gear. pool: int8 [B, R, 40], reference builds."""
    rest = pool - observed.to(pool.dtype).unsqueeze(1)
    contains = (rest >= 0).all(2)
    right = torch.minimum(rest, added.to(pool.dtype).unsqueeze(1)).sum(2, dtype=torch.int64)
    return torch.where(contains, right, 0).amax(1)


def to_points(builds: Tensor) -> Tensor:
    """Return the ability points, int64 [B, 26], of builds int64 [B, 40]."""
    ability = torch.from_numpy(ITEM_ABILITY).to(builds.device)
    points = builds * torch.from_numpy(ITEM_POINTS).to(builds.device)
    return builds.new_zeros(len(builds), len(ABILITIES)).index_add_(1, ability, points)


def legal(builds: Tensor) -> Tensor:
    """Return bool [B], True for each build that is legal and has no free slot. builds: int64 [B, 40]."""
    piece = torch.from_numpy(ITEM_PIECE).to(builds.device)
    found = (builds[:, :MAIN_ITEMS].sum(1) == MAIN_SLOTS) & (builds[:, MAIN_ITEMS:].sum(1) == SUB_SLOTS) & (builds >= 0).all(1)
    for number in range(len(PIECES)):
        found &= builds[:, :MAIN_ITEMS][:, piece == number].sum(1) <= 1
    return found


def calibration_error(number: np.ndarray, right: np.ndarray, probability: np.ndarray) -> float:
    """Return the expected calibration error, 0 to 1, of slots that are sorted into bins by their probability; NaN without slots.

    number: int64 [bins], slots in each bin. right: int64 [bins], right slots in each bin. probability: int64 [bins], sum of the
    probabilities in each bin, in units of 1 / `FIXED`."""
    return _mean(np.abs(right - probability / FIXED).sum(), number.sum())


def _token_results(number: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    """Return precision, recall and F1 at a probability of 0.5, and average precision; NaN for a metric that is undefined.

    number: int64 [BINS], tokens in each bin of predicted probability. positive: int64 [BINS], tokens in each bin that the build has."""
    taken, found = number[::-1].cumsum(), positive[::-1].cumsum()  # with at least the probability of the bin, from the highest
    half, total = BINS // 2 - 1, found[-1]
    precision, recall = _mean(found[half], taken[half]), _mean(found[half], total)
    gain = positive[::-1] / total if total else np.full(BINS, math.nan)
    return {
        "precision": precision,
        "recall": recall,
        "f1": _mean(2 * found[half], taken[half] + total),
        "average_precision": float((gain * found / np.maximum(taken, 1)).sum()),
    }


def _mean(total: Any, number: Any) -> float:
    return float(total) / float(number) if number else math.nan
