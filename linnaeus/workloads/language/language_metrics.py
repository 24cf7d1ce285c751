"""Metrics of next-token prediction, and tables of their final values.

The metrics are `loss` in nats per token, `perplexity`, `bits_per_byte`, and in validation `top1`. `bits_per_byte` is the loss in bits
divided by the UTF-8 bytes of the predicted tokens, so that models with different tokenizers can be compared. The end marker has no bytes,
but its loss counts.

With named sources of text, validation adds `source/NAME/loss`, the loss of that source's tokens. If the model has D dimensions (named
adapters), validation adds `dimension/NAME/score`: the loss in nats per token without that dimension, minus the loss with it. Each score is
measured on every D-th window, where the loss without that dimension is computed as well."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import SAMPLES, Metrics, TrainingMetrics
from linnaeus.workloads.language.model.dimensions import ablation_mask
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.window_record import WindowRecord

COLUMNS = {"loss": "nats/token", "perplexity": "perplexity", "bits_per_byte": "bits/byte", "top1": "top-1 %"}


class LanguageTrainingMetrics(TrainingMetrics):
    """Metrics of the training rows of metrics.jsonl: `loss`, `perplexity` and `bits_per_byte`. `top1` is not computed: the argmax over
    50,257 logits costs 1 % of a step."""

    def __init__(self, byte_lengths: np.ndarray | None, device: torch.device) -> None:
        """`byte_lengths` int64 [V]: number of bytes of each token; None: unknown, so `bits_per_byte` is NaN."""
        super().__init__(("tokens",))
        self._byte_lengths = torch.as_tensor(byte_lengths, device=device) if byte_lengths is not None else None
        self.counts = {"bytes": torch.zeros((), dtype=torch.int64, device=device)}

    def count(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        _count_bytes(self.counts["bytes"], self._byte_lengths, batch["target"])

    def compute(self, loss_sums: Tensor, valid: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        return _loss_results(loss_sums.item(), valid.item(), counts)


class LanguageMetrics(Metrics):
    """Metrics of next-token prediction in one validation pass, as the module lists them."""

    def __init__(
        self,
        byte_lengths: np.ndarray | None,
        device: torch.device,
        dimensions: Sequence[str] = (),
        sources: Sequence[str] = (),
        record: WindowRecord | None = None,
        baselines: Callable[[], list[dict[str, Any]]] | None = None,
    ) -> None:
        """`byte_lengths`: as for `LanguageTrainingMetrics`. `dimensions`: names of the model's D dimensions (named adapters). `sources`:
        names of the text's S sources. `record`: record of the windows; None: no table of samples. `baselines()`: rows of the table
        `baselines`; None: no such table."""
        self.record, self.baselines = record, baselines
        self.dimensions, self.sources = tuple(dimensions), tuple(sources)
        self.width = 2 + 2 * len(self.sources) + 2 * len(self.dimensions)
        self._byte_lengths = torch.as_tensor(byte_lengths, device=device) if byte_lengths is not None else None
        self.counts = {name: torch.zeros((), dtype=torch.int64, device=device) for name in ("bytes", "correct")}
        self.counts |= record.counts if record is not None else {}

    def sums(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return float64 [2 + 2 S + 2 D], in this order:

        2    sum of the losses, and number of tokens
        S    sum of the losses of each source
        S    number of tokens of each source
        D    for each dimension: sum of (loss without the dimension - loss with it)
        D    for each dimension: number of tokens in this sum"""
        losses, known = outputs["losses"].double(), (batch["target"] != IGNORED).double()
        parts = [torch.stack([losses.sum(), known.sum()])]
        if self.sources:
            member = (batch["source"][:, None] == torch.arange(len(self.sources), device=losses.device)).double()
            parts += [(each.sum(1, keepdim=True) * member).sum(0) for each in (losses, known)]
        if self.dimensions:
            ablated = ablation_mask(batch["sample"], len(self.dimensions)).double()
            increase = outputs["ablated_losses"].double() - losses
            parts += [(each.sum(1, keepdim=True) * ablated).sum(0) for each in (increase, known)]
        return torch.cat(parts)

    def count(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        self.counts["correct"] += (outputs["predictions"] == batch["target"]).sum()  # no prediction equals IGNORED
        _count_bytes(self.counts["bytes"], self._byte_lengths, batch["target"])
        if self.record is not None:
            self.record.count(outputs, batch)

    def tables(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, Iterable[dict[str, Any]]]:
        """Return the tables `samples`, with a row for each window, and `baselines`."""
        found: dict[str, Iterable[dict[str, Any]]] = {} if self.record is None else {SAMPLES: self.record.rows(counts)}
        return found | ({} if self.baselines is None else {"baselines": self.baselines()})

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        losses, targets, *more = sums.tolist()
        results = _loss_results(losses, targets, counts) | {"top1": _mean(int(counts["correct"]), targets)}
        for kind, names, metric in (("source", self.sources, "loss"), ("dimension", self.dimensions, "score")):
            totals, numbers, more = more[: len(names)], more[len(names) : 2 * len(names)], more[2 * len(names) :]
            results |= {f"{kind}/{name}/{metric}": _mean(total, n) for name, total, n in zip(names, totals, numbers)}
        return results


def _count_bytes(total: Tensor, byte_lengths: Tensor | None, target: Tensor) -> None:
    """Add the number of bytes of the tokens in `target`, int64 [B, T], to `total`. Do nothing if the lengths are unknown."""
    if byte_lengths is not None:
        total += (byte_lengths[target.clamp(min=0)] * (target != IGNORED)).sum()


def _loss_results(losses: float, targets: float, counts: Mapping[str, Tensor]) -> dict[str, float]:
    loss = _mean(losses, targets)
    perplexity = math.exp(loss) if not loss > 700 else math.inf  # exp(710) overflows a float
    return {"loss": loss, "perplexity": perplexity, "bits_per_byte": _mean(losses / math.log(2), int(counts["bytes"]))}


def _mean(total: float, number: float) -> float:
    return total / number if number else math.nan


def result_tables(final: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the tables of a run's results, {title: lines}: a table of the validation passes and, if the run has them, a table of the text
    sources and a table of the dimensions (named adapters).

    `final`: the newest result of each validation metric. `weights`: dimension -> its weight in the last update."""
    tables = {"Prediction of the next token": [f"{'':12s}" + "".join(f"{column:>12s}" for column in COLUMNS.values())]}
    for key in dict.fromkeys(name.partition("/")[0] for name in final):
        values = [final.get(f"{key}/{name}", math.nan) * (100 if name == "top1" else 1) for name in COLUMNS]
        tables["Prediction of the next token"].append(f"{key:12s}" + "".join(f"{_number(value):>12s}" for value in values))
    parts = [(key.split("/"), value) for key, value in final.items()]
    sources = [f"{key[2]:24s}{_number(value):>12s}" for key, value in parts if key[1] == "source"]
    if sources:
        tables["Sources"] = [f"{'source':24s}{'nats/token':>12s}", *sources]
    if weights:
        scores = {key[2]: value for key, value in parts if key[1] == "dimension"}
        rows = [f"{name:24s}{weight:>12.4f}{_number(scores.get(name, math.nan), '+.5f'):>12s}" for name, weight in weights.items()]
        tables["Dimensions"] = [f"{'dimension':24s}{'weight':>12s}{'score':>12s}  (nats/token lost without it)", *rows]
    return tables


def _number(value: float, form: str = ".4f") -> str:
    return "-" if math.isnan(value) else format(value, form)
