"""The language workload: a text in, the next token out. Implements `workloads.base.Workload`; its one task is `tokens`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.config.schema import Config
from linnaeus.data.samples import Batch
from linnaeus.distributed import DistributedContext
from linnaeus.files import write_atomic
from linnaeus.schedule import OpsSchedule
from linnaeus.workloads.base import Workload
from linnaeus.workloads.language.config import TextConfig, TokensConfig
from linnaeus.workloads.language.dataset import TextWindows
from linnaeus.workloads.language.initial import adopted
from linnaeus.workloads.language.metrics import LanguageMetrics
from linnaeus.workloads.language.model import build_gpt
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.ready_tokens import open_tokens, survey_tokens
from linnaeus.workloads.language.results import DIMENSION, SOURCE, sections, summary_lines
from linnaeus.workloads.language.sources import survey
from linnaeus.workloads.language.store import TokenStore, open_store, text_store

STORES = "token_stores"  # below run.root


class LanguageWorkload(Workload):
    """Tokens, windows, model and metrics of one configuration."""

    tasks = ("tokens",)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.store = build_store(config)
        self.fingerprint, self.notes = self.store.fingerprint, self.store.notes
        self.sources, self.dimensions = self.store.sources, tuple(config.model.dimensions)
        self.final_weights: list[float] | None = None  # of the dimensions in the last update; known once `build_datasets` is
        data = config.data
        self.units = ("tokens", data.block)
        losses = (f"{SOURCE}/{name}/loss" for name in self.sources)
        self.report_metrics = (*losses, *(f"{DIMENSION}/{name}/score" for name in self.dimensions))
        self.train_set: TextWindows = self._training_windows(None)
        self.train_size, self.source_sizes = len(self.train_set), tuple(self.train_set.windows.tolist())
        name = f"{self.fingerprint}/validation"
        self.validation_set = TextWindows(self.store.validation, data.block, config.seed, None, name, self.sources)

    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        """Training windows that follow the phases of the schedule, and the weights of dimensions that the last update has."""
        self.train_set, resolved = self._training_windows(schedule), schedule.resolved
        if self.dimensions:
            last = np.array([resolved.last_step - 1])
            self.final_weights = schedule.get_dimension_weights(last, self.dimensions)[0].tolist()
        undrawn = [] if resolved.phases is None else resolved.phases.unused_sources(self.sources, resolved.last_step)
        unscored = self.dimensions[len(self.validation_set) :]  # see `dimensions.switched_off`
        self.notes = (
            *self.store.notes,
            *(f"source {name}: no phase draws from it, so it validates and never trains" for name in undrawn),
            *(f"dimension {name}: validation has too few windows, {len(self.validation_set)}, to score it" for name in unscored),
        )

    def _training_windows(self, schedule: OpsSchedule | None) -> TextWindows:
        data, name = self.config.data, f"{self.fingerprint}/train"
        return TextWindows(self.store.train, data.block, self.config.seed, data.order, name, self.sources, self.dimensions, schedule)

    def build_model(self) -> nn.Module:
        assert self.final_weights is not None or not self.dimensions, "build_datasets comes first: the schedule says what dimensions weigh"
        model = build_gpt(self.config.model, self.config.seed, self.store.size, self.config.data.block)
        if self.final_weights is not None:
            model.weigh(self.final_weights)
        return model

    def adapt_initial_weights(self, weights: InitialWeights, model: Any) -> InitialWeights:
        """Of `run.init_from`; see `initial.py`."""
        return adopted(weights, model, self.config, self.store.facts["identity"])

    def valid_counts(self, batch: Batch) -> Tensor:
        return (batch["target"] != IGNORED).sum(dtype=torch.float64).view(1)

    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        return outputs["loss_sum"].view(1)

    def metrics(self, training: bool, device: torch.device) -> LanguageMetrics:
        return LanguageMetrics(training, self.store.lengths, device, self.dimensions, self.sources)

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Windows by their number in an epoch, with named sources in that of the source."""
        if not self.sources:
            return [f"window-{sample}" for sample in samples]
        sources, firsts = self.train_set.source_of(np.array(samples, np.int64)), self.train_set.firsts
        return [f"{self.sources[source]}/window-{sample - firsts[source]}" for sample, source in zip(samples, sources)]

    def save_dataset_record(self, directory: Path) -> None:
        """dataset.json; tokenizer.json and dimensions.json, with which a run's model is asked for text."""
        write_atomic(directory / "dataset.json", json.dumps(self.store.facts, ensure_ascii=False, indent=2) + "\n")
        if self.store.tokenizer is not None:
            write_atomic(directory / "tokenizer.json", json.dumps(self.store.tokenizer.to_dict(), ensure_ascii=False) + "\n")
        if self.dimensions:
            write_atomic(directory / "dimensions.json", json.dumps(self._weights_by_name(), indent=2) + "\n")

    def summary(self, final: Mapping[str, float]) -> list[str]:
        """A line per validation pass, then the sources and the dimensions where there are any."""
        return summary_lines(final, self._weights_by_name())

    def report_sections(self, final: Mapping[str, float]) -> list[tuple[str, str]]:
        return sections(self.notes, final, self._weights_by_name())

    def _weights_by_name(self) -> dict[str, float]:
        """Of the dimensions in the last update."""
        return dict(zip(self.dimensions, self.final_weights or (), strict=True))


def build_store(config: Config) -> TokenStore:
    """The tokens of `config.data`. Rank 0 reads, checks and writes while the others wait, then each opens what there is."""
    data, context = config.data, DistributedContext()
    if isinstance(data, TokensConfig):
        return open_tokens(data, context.from_master("tokens", lambda: survey_tokens(data)))
    assert isinstance(data, TextConfig)
    folder = Path(config.run.root) / STORES

    def make() -> dict[str, Any]:
        corpus = survey(data)
        return {"name": text_store(data, corpus, folder), "notes": corpus.notes, "left_out": corpus.left_out}

    made = context.from_master("token store", make)
    return open_store(folder / made["name"], tuple(made["notes"]), made["left_out"])
