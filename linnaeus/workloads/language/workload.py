"""The language workload: a text in, the next token out. Implements `workloads.base.Workload`; its one task is `tokens`."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.checkpoint.files import write_atomic
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.schedule import OpsSchedule
from linnaeus.workloads.base import Batch
from linnaeus.workloads.language.config import TextConfig, TokensConfig
from linnaeus.workloads.language.dataset import TextWindows
from linnaeus.workloads.language.metrics import LanguageMetrics
from linnaeus.workloads.language.model import build_gpt
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.ready_tokens import open_tokens, survey_tokens
from linnaeus.workloads.language.sources import survey
from linnaeus.workloads.language.store import TokenStore, open_store, text_store

STORES = "token_stores"  # below run.root
COLUMNS = {"loss": "nats/token", "perplexity": "perplexity", "bits_per_byte": "bits/byte", "top1": "top-1 %"}


class LanguageWorkload:
    """Tokens, windows, model and metrics of one configuration."""

    tasks = ("tokens",)
    components: tuple[str, ...] = ()
    groups_of_two = False

    def __init__(self, config: Config) -> None:
        self.config = config
        self.store = build_store(config)
        self.fingerprint, self.notes = self.store.fingerprint, self.store.notes
        data = config.data
        self.units = ("tokens", data.block)
        self.train_set = TextWindows(self.store.train, data.block, config.seed, data.order, f"{self.fingerprint}/train")
        self.validation_set = TextWindows(self.store.validation, data.block, config.seed, None, f"{self.fingerprint}/validation")

    @property
    def train_size(self) -> int:
        return len(self.train_set)

    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        """They are there: a window depends on nothing that the schedule knows."""

    def build_model(self) -> nn.Module:
        return build_gpt(self.config.model, self.config.seed, self.store.size, self.config.data.block)

    def prepare(self, batch: Batch, masked: tuple[str, ...] = ()) -> Batch:
        return batch

    def notice(self, batch: Batch) -> None:
        """Every window is sound: the text was checked as it was tokenized."""

    def valid_counts(self, batch: Batch) -> Tensor:
        return (batch["target"] != IGNORED).sum(dtype=torch.float64).view(1)

    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        return outputs["losses"].sum().view(1)

    def total_loss(self, sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
        return (weights * sums / denominators.clamp(min=1)).sum()

    def metrics(self, training: bool, device: torch.device) -> LanguageMetrics:
        return LanguageMetrics(training, self.store.lengths, device)

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Windows by their number in an epoch."""
        return [f"window-{sample}" for sample in samples]

    def save_record(self, directory: Path) -> None:
        """dataset.json; and tokenizer.json, with which a run's model is asked for text."""
        write_atomic(directory / "dataset.json", json.dumps(self.store.facts, ensure_ascii=False, indent=2) + "\n")
        if self.store.tokenizer is not None:
            write_atomic(directory / "tokenizer.json", json.dumps(self.store.tokenizer.to_dict(), ensure_ascii=False) + "\n")

    def summary(self, final: Mapping[str, float]) -> list[str]:
        """One line per validation pass."""
        lines = [f"{'':12s}" + "".join(f"{name:>12s}" for name in COLUMNS.values())]
        for key in dict.fromkeys(name.partition("/")[0] for name in final):
            values = [final.get(f"{key}/{name}", math.nan) * (100 if name == "top1" else 1) for name in COLUMNS]
            lines.append(f"{key:12s}" + "".join(f"{'-' if math.isnan(value) else f'{value:.4f}':>12s}" for value in values))
        return lines

    def report_sections(self, final: Mapping[str, float]) -> list[tuple[str, str]]:
        text = "\n".join([*self.notes, "", *self.summary(final)])
        return [("Prediction of the next token", f"<pre>{html.escape(text)}</pre>")]


def build_store(config: Config) -> TokenStore:
    """The tokens of `config.data`. Rank 0 reads, checks and writes while the others wait, then each opens what there is."""
    data, context = config.data, DistributedContext()
    if isinstance(data, TokensConfig):
        return open_tokens(data, context.from_master("tokens", lambda: survey_tokens(data)))
    assert isinstance(data, TextConfig)
    folder = Path(config.run.root) / STORES

    def make() -> dict[str, Any]:
        corpus = survey(data)
        return {"name": text_store(data, corpus, folder), "notes": corpus.notes}

    made = context.from_master("token store", make)
    return open_store(folder / made["name"], tuple(made["notes"]))
