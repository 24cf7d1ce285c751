"""Metrics of a validation pass, over all samples and processes.

Tokens: `loss` (nats per hidden token), `precision`, `recall` and `f1` at a probability of 0.5, `average_precision`. Tokens that the partial
build shows are left out, because a model can copy them.

Completions, filled in one step by `slot_filling.fill`:

- `slots_K`, `references_K`, `weapon_6`, `gear_6`, `points`: see `answer_scores.py`.
- `ece`: calibration error of the slots' probabilities.
- `legal`, `changed`: shares of answers that are legal, and of answers that change the given gear.

Everything except the loss is an integer count, so the results do not depend on batches and processes. The completion and the loss of each
sample are kept for the comparison with the baselines and for the table `samples` at the end of a run (`comparison.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import SAMPLES, Metrics
from linnaeus.workloads.loadout.builds.build_table import SplitBuilds
from linnaeus.workloads.loadout.builds.partial_builds import ValidationBuilds
from linnaeus.workloads.loadout.completion.slot_filling import Filled, fill
from linnaeus.workloads.loadout.evaluation.answer_scores import Scores, answer_metrics, decided_by_weapon, mean, reference_pool, score
from linnaeus.workloads.loadout.evaluation.baselines import Baselines
from linnaeus.workloads.loadout.evaluation.comparison import Comparison
from linnaeus.workloads.loadout.game.abilities import ITEM_PIECE, ITEMS, MAIN_ITEMS, MAIN_SLOTS, PIECES, SLOTS, SUB_SLOTS
from linnaeus.workloads.loadout.game.token_code import TokenCode

BINS = 1000  # of token probabilities; 0.5 is an edge
SLOT_BINS = 15  # of slot probabilities, as usual for a calibration error
FIXED = 1_000_000  # a probability as an integer


class CompletionMetrics(Metrics):
    """Metrics of one validation pass over N partial builds: the token and completion metrics that the module describes."""

    width = 2

    def __init__(self, code: TokenCode, split: SplitBuilds, dataset: ValidationBuilds, baselines: Baselines, device: torch.device) -> None:
        self.code, self.split, self.dataset, self.baselines = code, split, dataset, baselines
        self._frequency = torch.from_numpy(baselines.frequency).to(device)
        self._pool = reference_pool(dataset.builds, len(split.weapons)).to(device)
        shapes = {"tokens": (2, BINS), "slot_bins": (3, SLOT_BINS), "legal": (), "changed": ()}
        shapes |= {name: (len(dataset),) for name in ("seen", *Scores._fields, "decided")}
        shapes |= {"filled": (len(dataset), SLOTS), "losses": (len(dataset), 2)}  # losses: bits of the sum, and number of tokens
        self.counts = {name: torch.zeros(shape, dtype=torch.int64, device=device) for name, shape in shapes.items()}
        self._comparison: Comparison | None = None

    def sums(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 [2]: the sum of the losses of the scored tokens in nats, and the number of scored tokens (`batch["scored"]`)."""
        return torch.stack([token_losses(outputs.double(), batch).sum(), batch["scored"].sum(dtype=torch.float64)])

    def count(self, outputs: Tensor, batch: Batch) -> None:
        # 0 in place of NaN, which has no bin: the loss of a model that has diverged shows the NaN
        probabilities, real = outputs.double().sigmoid().nan_to_num(0.0), batch["weight"] > 0
        scored = batch["scored"]
        bins = (probabilities[scored] * BINS).long().clamp(max=BINS - 1)
        self.counts["tokens"] += torch.stack([bins.bincount(minlength=BINS), bins[batch["target"][scored]].bincount(minlength=BINS)])
        sample, observed, complete = batch["sample"][real], batch["observed"][real].long(), batch["complete"][real].long()
        losses = torch.stack([token_losses(outputs.double(), batch).sum(1).view(torch.int64), scored.sum(1)], 1)
        self.counts["losses"][sample] += losses[real]
        filled = fill(self.code.tails(probabilities[real], observed), observed)
        self._count_completions(filled, observed, complete, batch["weapon"][real], sample)

    def _count_completions(self, filled: Filled, observed: Tensor, complete: Tensor, weapon: Tensor, sample: Tensor) -> None:
        missing, answer = complete - observed, observed + filled.items
        self.counts["seen"][sample] += 1
        self.counts["filled"][sample] += filled.item + 1
        by_weapon = fill(self.baselines.code.tails(self._frequency[weapon], observed), observed).items
        self.counts["decided"][sample] += decided_by_weapon(by_weapon, missing).sum(1)
        scores = score(filled.items[None], observed, complete, by_weapon, weapon, self._pool)
        for name, value in scores._asdict().items():
            self.counts[name][sample] += value[0]
        self.counts["changed"] += (answer < observed).any(1).sum()
        self.counts["legal"] += legal(answer).sum()
        known = filled.item >= 0
        copies = F.one_hot(filled.item.clamp(min=0), len(ITEMS)) * known.unsqueeze(2)
        copy = copies.cumsum(1).gather(2, filled.item.clamp(min=0).unsqueeze(2)).squeeze(2)  # 1 for the first of its item
        hit = (copy <= missing.gather(1, filled.item.clamp(min=0)))[known]
        probability = filled.probability[known].double().clamp(0, 1)
        bins = (probability * SLOT_BINS).long().clamp(max=SLOT_BINS - 1)
        rows = (torch.ones_like(bins), hit.long(), (probability * FIXED).round().long())
        self.counts["slot_bins"] += torch.stack([torch.zeros_like(self.counts["slot_bins"][0]).index_add_(0, bins, row) for row in rows])

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        arrays = {name: count.cpu().numpy() for name, count in counts.items()}
        loss, tokens = sums.tolist()
        number = arrays["seen"].sum()
        return {"loss": mean(loss, tokens), **_token_results(*arrays["tokens"]), **answer_metrics(arrays)} | {
            "ece": calibration_error(*arrays["slot_bins"]),
            "legal": mean(arrays["legal"], number),
            "changed": mean(arrays["changed"], number),
        }

    def compute_at_end(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        """Return {name: value} of the comparison with the baselines and the optimum (see `comparison.py`)."""
        return self._compared(counts).metrics()

    def tables(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, Iterable[dict[str, Any]]]:
        """Return the table `samples`, with a row for each partial build."""
        return {SAMPLES: self._rows(counts)}

    def _rows(self, counts: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
        yield from self._compared(counts).rows()  # only when they are written: the comparison takes seconds

    def _compared(self, counts: Mapping[str, Tensor]) -> Comparison:
        """Return the comparison with the baselines and the optimum. It is computed at the first call, with the counts of a whole pass."""
        if self._comparison is None:
            arrays = {name: counts[name].cpu().numpy() for name in ("seen", "filled", "losses")}
            self._comparison = Comparison(self.split, self.dataset, self.baselines, self._pool.cpu(), **arrays)
        return self._comparison


def token_losses(logits: Tensor, batch: Batch) -> Tensor:
    """Return the binary cross-entropy of each scored token in nats, [B, V]; 0 for tokens that are not scored (`batch["scored"]`).

    The result is float64 for float64 logits, otherwise float32."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    losses = F.binary_cross_entropy_with_logits(wide, batch["target"].to(wide.dtype), reduction="none")
    return losses * batch["scored"]


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
    return mean(np.abs(right - probability / FIXED).sum(), number.sum())


def _token_results(number: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    """Return precision, recall and F1 at a probability of 0.5, and average precision; NaN for a metric that is undefined.

    number: int64 [BINS], tokens in each bin of predicted probability. positive: int64 [BINS], tokens in each bin that the build has."""
    taken, found = number[::-1].cumsum(), positive[::-1].cumsum()  # with at least the probability of the bin, from the highest
    half, total = BINS // 2 - 1, found[-1]
    precision, recall = mean(found[half], taken[half]), mean(found[half], total)
    gain = positive[::-1] / total if total else np.full(BINS, math.nan)
    return {
        "precision": precision,
        "recall": recall,
        "f1": mean(2 * found[half], taken[half] + total),
        "average_precision": float((gain * found / np.maximum(taken, 1)).sum()),
    }
