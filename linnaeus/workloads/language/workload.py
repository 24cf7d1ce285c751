"""The language workload, with one task, `tokens`: predict the next token of a text. It implements `workloads.base.Workload`."""

import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.checkpoint.format import step_name
from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.config.schema import Config
from linnaeus.data.samples import Batch
from linnaeus.distributed import DistributedContext
from linnaeus.files import to_json, write_atomic
from linnaeus.schedule import OpsSchedule
from linnaeus.workloads.base import Model, Workload
from linnaeus.workloads.language.config import TextConfig, TokensConfig
from linnaeus.workloads.language.corpus import scan_texts
from linnaeus.workloads.language.language_metrics import LanguageMetrics, LanguageTrainingMetrics, result_tables
from linnaeus.workloads.language.model.gpt import GPT, build_gpt
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.pretrained import adapt_weights
from linnaeus.workloads.language.text_samples import save_texts
from linnaeus.workloads.language.text_view import TextView
from linnaeus.workloads.language.text_windows import TextWindows
from linnaeus.workloads.language.token_array import token_counts
from linnaeus.workloads.language.token_files import check_token_files, open_token_files
from linnaeus.workloads.language.token_store import TokenStore, open_store, text_store
from linnaeus.workloads.language.unigram import baseline_rows, unigram
from linnaeus.workloads.language.window_record import WindowRecord

STORES = "token_stores"  # folder in run.root


class LanguageWorkload(Workload):
    """Tokens, text windows, model and metrics of one configuration."""

    tasks = ("tokens",)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.store = build_store(config)
        self.fingerprint, self.notes, tokens = self.store.fingerprint, self.store.notes, self.store.facts["identity"]
        self.classes = None if tokens.startswith("unknown-") else tokens
        self.sources, self.dimensions = self.store.sources, tuple(config.model.dimensions)
        self.final_dimension_weights: dict[str, float] = {}  # those of the last update; set by `build_datasets`
        data = config.data
        self.units = ("tokens", data.block)
        scores = (f"dimension/{name}/score" for name in self.dimensions)
        self.report_metrics = (*(f"source/{name}/loss" for name in self.sources), *scores)
        self.train_set: TextWindows = self._training_windows(None)
        self.train_size, self.source_sizes = self.train_set.unlimited_size, tuple(self.train_set.window_counts.tolist())
        name = f"{self.fingerprint}/validation"
        self.validation_set: TextWindows = TextWindows(self.store.validation, data.block, config.seed, None, name, self.sources)

    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        """Set `train_set`, the training windows in the mixture of the schedule's phases. Also set `final_dimension_weights`, the weights of
        the dimensions (named adapters) in the last update of the run, and `notes`, messages for the user."""
        self.train_set, resolved = self._training_windows(schedule), schedule.resolved
        if self.dimensions:
            last = np.array([resolved.last_step - 1])
            self.final_dimension_weights = dict(zip(self.dimensions, schedule.get_dimension_weights(last, self.dimensions)[0].tolist()))
        unused = [] if resolved.phases is None else resolved.phases.unused_sources(self.sources, resolved.last_step)
        unscored = self.dimensions[len(self.validation_set) :]  # see `dimensions.ablation_mask`
        self.notes = (
            *self.store.notes,
            *(f"source {name}: no phase uses it; it is validated but not trained on" for name in unused),
            *(f"dimension {name}: validation has too few windows, {len(self.validation_set)}, to score it" for name in unscored),
        )

    def _training_windows(self, schedule: OpsSchedule | None) -> TextWindows:
        config, name = self.config, f"{self.fingerprint}/train"
        named = (config.data.order, name, self.sources, self.dimensions)
        return TextWindows(self.store.train, config.data.block, config.seed, *named, schedule, config.trainer.limit_train_samples)

    def build_model(self) -> Model:
        model = build_gpt(self.config.model, self.config.seed, self.store.vocabulary_size, self.config.data.block)
        if self.dimensions:
            assert self.final_dimension_weights, "call build_datasets first: it sets the dimension weights"
            model.set_dimension_weights(list(self.final_dimension_weights.values()))
        return model

    def adapt_initial_weights(self, weights: InitialWeights, model: Any) -> InitialWeights:
        return adapt_weights(weights, model, self.config, self.store.facts["identity"])

    def reading_set(self) -> TextWindows:
        """Return a dataset of the windows of the training text from its first token on, each window once."""
        return TextWindows(self.store.train, self.config.data.block, self.config.seed, None, f"{self.fingerprint}/train", self.sources)

    def real_positions(self, batch: Batch) -> Tensor:
        return batch["target"] != IGNORED

    def valid_counts(self, batch: Batch) -> Tensor:
        return (batch["target"] != IGNORED).sum(dtype=torch.float64).view(1)

    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        return outputs["loss_sum"].view(1)

    def metrics(self, device: torch.device) -> LanguageMetrics:
        names = partial(window_names, self.validation_set)
        record = WindowRecord(len(self.validation_set), device, self.sources, names)
        more = record, lambda: baseline_rows(self.unigram)
        return LanguageMetrics(self.store.byte_lengths, device, self.dimensions, self.sources, *more)

    @cached_property
    def unigram(self) -> dict[str, float]:
        """Return the results of two predictions that use only the token frequencies of the training text (`unigram.unigram`)."""
        return unigram(self.store)

    def training_metrics(self, device: torch.device) -> LanguageTrainingMetrics:
        return LanguageTrainingMetrics(self.store.byte_lengths, device)

    def label_counts(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return {"tokens": (counts in the training text, counts in the validation text)}, each int64 [vocabulary].

        Of a long text only some stretches are counted (`token_counts`). Return {} if the data have named sources, because phases of the
        schedule change the mixture of the sources."""
        if self.sources:
            return {}
        training, validation = (token_counts(split, self.store.vocabulary_size) for split in (self.store.train, self.store.validation))
        return {"tokens": (training, validation)}

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Return the names of training windows (`window_names`)."""
        return window_names(self.train_set, samples)

    def sample_view(self) -> TextView:
        return TextView(self.store.tokenizer, self.store.vocabulary_size, lambda sample: f"window-{sample}")

    def save_dataset_record(self, directory: Path) -> None:
        """Write dataset.json to the run directory. Also write tokenizer.json and dimensions.json (weights of the dimensions) for text
        generation, if the run has a tokenizer and dimensions."""
        write_atomic(directory / "dataset.json", to_json(self.store.facts))
        if self.store.tokenizer is not None:
            write_atomic(directory / "tokenizer.json", to_json(self.store.tokenizer.to_dict(), None))
        if self.dimensions:
            write_atomic(directory / "dimensions.json", to_json(self.final_dimension_weights))

    def summary(self, final: Mapping[str, float]) -> list[str]:
        """Return the lines of a table with a row for each validation pass, and of tables of the text sources and of the dimensions (named
        adapters)."""
        return "\n\n".join("\n".join(lines) for lines in result_tables(final, self.final_dimension_weights).values()).split("\n")

    def next_commands(self, run: Path) -> list[str]:
        return [f"linnaeus generate {shlex.quote(str(run))}", *super().next_commands(run)]

    def save_examples(self, run: Path, step: int, model: nn.Module) -> None:
        save_texts(run / "validation" / step_name(step), self.store, cast(GPT, model), self.unigram)


def window_names(windows: TextWindows, numbers: Sequence[int]) -> list[str]:
    """Return the names of windows, such as window-17. With named sources a name consists of the source and the number in this source, as in
    notes/window-3."""
    if not windows.sources:
        return [f"window-{number}" for number in numbers]
    sources, firsts = windows.source_of(np.array(numbers, np.int64)), windows.first_windows
    return [f"{windows.sources[source]}/window-{number - firsts[source]}" for number, source in zip(numbers, sources)]


def build_store(config: Config) -> TokenStore:
    """Return the token store of `config.data`. Rank 0 reads, checks and writes the tokens while the other ranks wait; then every rank opens
    the store."""
    data, context = config.data, DistributedContext()
    if isinstance(data, TokensConfig):
        return open_token_files(data, context.from_master("tokens", lambda: check_token_files(data)))
    assert isinstance(data, TextConfig)
    folder = Path(config.run.root) / STORES

    def make() -> dict[str, Any]:
        corpus = scan_texts(data)
        return {"name": text_store(corpus, folder), "notes": corpus.notes, "left_out": corpus.left_out}

    made = context.from_master("token store", make)
    return open_store(folder / made["name"], tuple(made["notes"]), made["left_out"])
