"""The taxonomy workload: photographs and metadata in, a class per taxonomic rank out. Implements `workloads.base.Workload`."""

from __future__ import annotations

import html
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.config.registry import registered
from linnaeus.config.schema import Config
from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import Metrics
from linnaeus.schedule import OpsSchedule
from linnaeus.schedule.resolved import RAMPS
from linnaeus.workloads.base import Workload
from linnaeus.workloads.taxonomy.components import column_slices, encode
from linnaeus.workloads.taxonomy.dataset import TaxonomyDataset, label_mass
from linnaeus.workloads.taxonomy.dataset_record import process_and_save_dataset_metadata
from linnaeus.workloads.taxonomy.losses import LabelCounts, TaxonomyLoss, weighted_hierarchical_loss
from linnaeus.workloads.taxonomy.manifest.quarantine import Quarantine
from linnaeus.workloads.taxonomy.masking import ramp_used
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics, TrainingMetrics
from linnaeus.workloads.taxonomy.models import build_classifier
from linnaeus.workloads.taxonomy.nulls import NullPolicy
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Source
from linnaeus.workloads.taxonomy.preparation import BatchPreparation
from linnaeus.workloads.taxonomy.results import accuracy_table

log = logging.getLogger("linnaeus")

Ceilings = Callable[[Any], dict[str, float]]


def build_data_source(config: Config) -> tuple[Source, Ceilings | None]:
    """Return the source of `config.data`, and the function of its best possible accuracies where they are known."""
    part = registered("data", config.data.name)
    if part is not None:
        return part.build(config.data), None
    module = importlib.import_module(f"linnaeus.workloads.taxonomy.{config.data.name}")
    return module.build_source(config.data), getattr(module, "ceilings", None)


class TaxonomyWorkload(Workload):
    """Source, datasets, model, losses and metrics of one configuration."""

    schedule_probabilities = RAMPS

    def __init__(self, config: Config) -> None:
        self.config = config
        self.data_source, self.ceilings = build_data_source(config)
        self.tasks = self.data_source.tree.ranks
        self.inputs = tuple(config.data.components)  # of the network
        known = encode(self.data_source.metadata, self.inputs)[1].any()
        self.components = self.inputs if known else ()  # that validation passes can mask
        self.fingerprint = self.data_source.fingerprint
        self.pairs_samples = ramp_used(config.schedule.mixup_prob)
        self.train_rows = np.flatnonzero(self.data_source.split == TRAIN)
        self.train_size = len(self.train_rows)
        self.validation_rows = np.flatnonzero(self.data_source.split == VALIDATION)
        dtype = torch.float64 if config.trainer.precision == "float64" else torch.float32
        labels = self.data_source.labels[self.train_rows]
        self.nulls = NullPolicy.of(config, self.data_source.tree)
        learnt = None if self.nulls is None else self.nulls.learnt(labels)
        self.counts = LabelCounts.of(self.data_source.tree, labels, learnable=learnt)
        self.notes = self.data_source.notes
        counts = LabelCounts.of(self.data_source.tree, labels, label_mass(config, self.data_source, self.train_rows), learnt)
        self.loss = TaxonomyLoss(config.loss, self.data_source.tree, counts, self.nulls is not None, dtype)
        self.preparation = BatchPreparation(self.inputs, column_slices(self.inputs), dtype)

    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        """`directory` is the run's: photographs an earlier launch could not decode are named there and not read again."""
        self.quarantine = Quarantine(directory, self.data_source, self.config.data.max_bad_fraction)
        bad = self.quarantine.samples
        self.train_set = TaxonomyDataset(self.data_source, self.train_rows, self.config, schedule, True, bad)
        self.validation_set = TaxonomyDataset(self.data_source, self.validation_rows, self.config, schedule, False, bad)
        nulls = () if self.nulls is None else self.nulls.notes(self.tasks, [int(rank[-1]) for rank in self.counts.ranks])
        self.notes = (*self.data_source.notes, *self.train_set.notes, *nulls)

    def build_model(self) -> nn.Module:
        return build_classifier(self.config, self.data_source.tree, self.inputs)

    def prepare(self, batch: Batch, masked: tuple[str, ...] = ()) -> Batch:
        return self.preparation(batch, masked)

    def valid_counts(self, batch: Batch) -> Tensor:
        return self.loss.valid_counts(batch)

    def check_batch(self, batch: Batch) -> None:
        """Name the photographs of a host batch that could not be decoded."""
        if (batch["bad"] >= 0).any():
            for line in self.quarantine.report(batch["bad"]):
                log.warning(line)

    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        return self.loss.sums(outputs, batch)

    def separate_loss_sums(self, outputs: Any) -> list[Tensor]:
        return outputs["losses"]

    def total_loss(self, sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
        return weighted_hierarchical_loss(sums, weights, denominators)

    def metrics(self, training: bool, device: torch.device) -> Metrics:
        if training:
            return TrainingMetrics(self.data_source.tree, device, self.components)
        groups = None if self.data_source.group is None else self.data_source.group[self.validation_rows]
        classes = [rank[:-1] for rank in self.counts.ranks]
        consistent = self.config.head.name != "linear"
        return TaxonomyMetrics(
            self.data_source.tree, device, classes, groups, len(self.validation_rows), consistent, self.nulls is not None
        )

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Stable names of training samples by dataset index."""
        return self.data_source.ids[self.train_rows[list(samples)]].tolist()

    def save_dataset_record(self, directory: Path) -> None:
        resampling = self.train_set.resampling()
        process_and_save_dataset_metadata(self.data_source, directory, None if resampling is None else resampling.draws)
        self.quarantine.record_unreadable()

    def best_possible(self) -> dict[str, float]:
        """Ceilings by metric name, where the source knows them."""
        return self.ceilings(self.config.data) if self.ceilings is not None else {}

    def summary(self, final: Mapping[str, float]) -> list[str]:
        return accuracy_table(self.tasks, self.components, final, self.best_possible())

    def report_sections(self, final: Mapping[str, float]) -> list[tuple[str, str]]:
        table = "\n".join(self.summary(final))
        return [("Accuracy by taxonomic rank", f"<pre>{html.escape(table)}</pre>")]
