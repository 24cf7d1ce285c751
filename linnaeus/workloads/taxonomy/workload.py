"""`TaxonomyWorkload`: train a classifier that predicts a class per taxonomic rank from photographs and metadata. Ranks are its tasks."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.checkpoint.format import step_name
from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.config.choices import choice_lines
from linnaeus.config.registry import registered
from linnaeus.config.schema import Config
from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError, list_some, shorten
from linnaeus.files import read_json
from linnaeus.metrics.streaming import Metrics
from linnaeus.schedule import OpsSchedule
from linnaeus.schedule.resolved import RAMPS
from linnaeus.workloads.base import Workload
from linnaeus.workloads.taxonomy.automatic import notes_of_defaults
from linnaeus.workloads.taxonomy.config import RecordsConfig, StoreConfig
from linnaeus.workloads.taxonomy.data_source import build_data_source
from linnaeus.workloads.taxonomy.heads import is_hierarchical
from linnaeus.workloads.taxonomy.heads.sharded import ShardedHead, check_sharded
from linnaeus.workloads.taxonomy.images.quarantine import Quarantine
from linnaeus.workloads.taxonomy.inputs.image_dataset import TaxonomyDataset, epoch_weights
from linnaeus.workloads.taxonomy.inputs.masking import NullPolicy, can_mask_partly, never_absent, ramp_used
from linnaeus.workloads.taxonomy.inputs.preparation import BatchPreparation
from linnaeus.workloads.taxonomy.inputs.transforms import could_use_device
from linnaeus.workloads.taxonomy.losses import LabelCounts, TaxonomyLoss, weighted_hierarchical_loss
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics, TaxonomyTrainingMetrics
from linnaeus.workloads.taxonomy.metrics.accuracy_table import accuracy_headline, accuracy_table
from linnaeus.workloads.taxonomy.metrics.sample_record import MOST_RANKS
from linnaeus.workloads.taxonomy.models import build_classifier
from linnaeus.workloads.taxonomy.models.classifier import Classifier
from linnaeus.workloads.taxonomy.models.initial_taxa import adapt_weights
from linnaeus.workloads.taxonomy.models.place_quantiles import fit_places
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION
from linnaeus.workloads.taxonomy.observations.components import PARTS, column_slices, part_columns, presence
from linnaeus.workloads.taxonomy.observations.dataset_record import known_metadata, process_and_save_dataset_metadata
from linnaeus.workloads.taxonomy.plugin_checks import check_parts
from linnaeus.workloads.taxonomy.report.example_photographs import save_examples
from linnaeus.workloads.taxonomy.report.photograph_view import PhotographView

log = logging.getLogger("linnaeus")


class TaxonomyWorkload(Workload):
    """Workload that classifies photographs by taxon: data source, datasets, model, losses and metrics of a configuration."""

    def __init__(self, config: Config) -> None:
        check_sharded(config)
        self.config = config
        self.data_source, self.ceilings = build_data_source(config)
        self.tasks = self.data_source.tree.ranks
        if len(self.tasks) > MOST_RANKS:
            shown = f"such as [{','.join(self.tasks[-3:])}]"
            raise ConfigError(f"data.ranks: {len(self.tasks)} ranks to predict; set at most {MOST_RANKS} of them, {shown}")
        self.inputs = tuple(config.data.components)  # metadata components that the network reads
        columns = column_slices(self.inputs)  # raises `ConfigError` for an unknown component
        self.fingerprint, self.classes = self.data_source.fingerprint, self.data_source.tree.fingerprint()
        self.pairs_samples = ramp_used(config.schedule.mixup_prob)
        self._choose_rows()
        self.train_size = len(self.train_rows)
        masked = {"meta_mask_prob": self.known, "partial_meta_mask_prob": self.known and can_mask_partly(config.schedule, self.inputs)}
        self.schedule_probabilities = tuple(name for name in RAMPS if masked.get(name, True))
        dtype = torch.float64 if config.trainer.precision == "float64" else torch.float32
        labels = self.data_source.labels[self.train_rows]
        self.nulls = NullPolicy.from_config(config, self.data_source.tree)
        learnable = None if self.nulls is None else self.nulls.learnable(labels)
        self.counts = LabelCounts.from_labels(self.data_source.tree, labels, learnable=learnable)
        self.notes = (*choice_lines(config), *self.data_source.notes, *notes_of_defaults(config))
        weights = epoch_weights(config, self.data_source, self.train_rows)
        weighted = self.counts if weights is None else LabelCounts.from_labels(self.data_source.tree, labels, weights, learnable)
        self.loss = TaxonomyLoss(config.loss, self.data_source.tree, weighted, self.nulls is not None, dtype)
        self.preparation = BatchPreparation(self.inputs, columns, dtype)
        self._compiled = False

    def _choose_rows(self) -> None:
        """Set the training and validation rows of the source. Also set the metadata components that are known in some training row
        (`known`) and in some validation row (`components`)."""
        self.train_rows = np.flatnonzero(self.data_source.split == TRAIN)
        self.validation_rows = np.flatnonzero(self.data_source.split == VALIDATION)
        present = presence(self.data_source.metadata, self.inputs)
        self.known = self._present(present[self.train_rows])
        self._warnings = never_absent(self.config, self.inputs, present[self.train_rows])
        self.validation_metadata = dict(zip(self.inputs, present[self.validation_rows].T, strict=True))  # component -> bool [N]
        self.components = self._present(present[self.validation_rows])  # that validation passes can mask

    def prepare_evaluation(self, run: Path, split: str) -> None:
        if split == "test":
            self.data_source, self.ceilings = build_data_source(self.config, test=True)[0], None
            self._choose_rows()
        saved = read_json(run / "dataset.json") or {}
        if saved.get("taxonomy_fingerprint") != self.data_source.tree.fingerprint():
            raise ConfigError(f"RUN: the training rows of the data give other taxa than {run} has learnt; use the data of the run")

    def build_datasets(self, schedule: OpsSchedule, directory: Path) -> None:
        """Build the training and the validation dataset. `directory` is the run directory; photographs that a file there lists as
        undecodable are not read again."""
        for line in (*self._missing_components(), *self._warnings):
            log.warning(line)
        self.quarantine = Quarantine(directory, self.data_source, self.config.data.max_bad_fraction)
        self._schedule, bad = schedule, self.quarantine.samples
        self.train_set = TaxonomyDataset(self.data_source, self.train_rows, self.config, schedule, True, bad)
        self.validation_set = TaxonomyDataset(self.data_source, self.validation_rows, self.config, schedule, False, bad)
        if self.config.run.init_from is None:  # otherwise the weights may have learnt metadata that no row has
            self._hide_untrained(self.validation_set)
        nulls = () if self.nulls is None else self.nulls.notes(self.tasks, [int(rank[-1]) for rank in self.counts.ranks])
        self.notes = (*self.notes, *self.train_set.notes, *nulls)

    def _hide_untrained(self, dataset: TaxonomyDataset) -> None:
        """Make metadata absent in `dataset` that no training row has: the weights that would read them are random."""
        known = known_metadata(self.data_source.metadata)
        absent = [name for name in (*self.inputs, *PARTS) if not known[name][self.train_rows].any()]
        dataset.present[:, [name in absent for name in self.inputs]] = False
        for columns in part_columns(self.inputs, absent):
            dataset.meta[:, columns] = 0

    def reading_set(self) -> TaxonomyDataset:
        """Return a dataset of the training rows without augmentation, mixing and masking, as validation reads its rows."""
        return TaxonomyDataset(self.data_source, self.train_rows, self.config, self._schedule, False, self.quarantine.samples)

    def _present(self, present: np.ndarray) -> tuple[str, ...]:
        """Return the metadata components that are known in at least one row. `present`: bool [N, M], True where a component is known."""
        return tuple(name for name, column in zip(self.inputs, present.T, strict=True) if column.any())

    def _missing_components(self) -> list[str]:
        """Return lines about components that are known in no training row or in no validation row, and about validation passes that are
        left out because of this."""
        untrained = [name for name in self.inputs if name not in self.known]
        absent = [name for name in self.inputs if name not in self.components]
        unused, unmasked = "no effect on the model", "masked by no validation pass"
        found = {
            f"no row has %s: {unused}, {unmasked}": [name for name in untrained if name in absent],
            f"no training row has %s: {unused}": [name for name in untrained if name not in absent],
            f"no validation row has %s: {unmasked}": [name for name in absent if name not in untrained],
        }
        lines = [f"data.components: {text % ' or '.join(names)}" for text, names in found.items() if names]
        combinations = ["+".join(n) for n in self.config.schedule.partial_combinations or () if len(n) > 1 and set(n) & set(absent)]
        return lines + [f"schedule.partial_combinations: left out for this reason: {list_some(combinations, 3)}"] * bool(combinations)

    def build_model(self) -> Classifier:
        model = build_classifier(self.config, self.data_source.tree, self.inputs)
        fit_places(model, self.data_source.metadata.take(self.train_rows))
        return model

    def check_model(self, model: nn.Module) -> None:
        parts = (registered(group, getattr(self.config, group).name) for group in ("model", "head", "loss"))
        if any(part is not None for part in parts):
            check_parts(cast(Classifier, model), self.loss, self.data_source.tree, self.inputs, self.config)

    def adapt_initial_weights(self, weights: InitialWeights, model: nn.Module) -> InitialWeights:
        return adapt_weights(weights, cast(Classifier, model), self.data_source.tree, self.config.run.init_skip)

    def prepare(self, batch: Batch, masked: tuple[str, ...] = ()) -> Batch:
        return self.preparation(batch, masked)

    def compile(self, device: torch.device) -> None:
        """Compile the loss, the preparation of training batches, and the training metrics: hundreds of small operations for a tree of seven
        ranks, which take longer to start than a GPU takes to compute them. With `head.sharded`, compile only the preparation, because the
        others contain collectives."""
        self.preparation.compile(device)
        if not getattr(self.config.head, "sharded", False):  # its loss and accuracy contain collectives
            self._compiled = True
            self.loss.compile(device)

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the outputs of `model`. With augment.tta, the probabilities in `scores` are means over the image and its mirror image."""
        outputs = model(batch)
        scores = outputs["scores"].gathered()
        if self.config.augment.tta != "none":
            scores = scores.mean([model(batch | {"image": batch["image"].flip(3)})["scores"].gathered()])
        return outputs | {"scores": scores}

    def join_prediction(self, model: nn.Module) -> None:
        head = cast(Classifier, model).head
        if isinstance(head, ShardedHead):
            for _ in range(1 if self.config.augment.tta == "none" else 2):
                head.join().gathered()

    def valid_counts(self, batch: Batch) -> Tensor:
        return self.loss.valid_counts(batch)

    def check_batch(self, batch: Batch) -> None:
        """Record the undecodable photographs of a host batch in the quarantine (the run's list of photographs not to read), and log each
        new one.

        Raise `ConfigError` if more than `data.max_bad_fraction` of all photographs are unreadable."""
        if (batch["bad"] >= 0).any():
            for line in self.quarantine.report(batch["bad"]):
                log.warning(line)

    def loss_sums(self, outputs: Any, batch: Batch) -> Tensor:
        return self.loss.sums(outputs, batch)

    def separate_loss_sums(self, outputs: Any) -> list[Tensor]:
        return outputs["losses"]

    def denominators(self, valid: Tensor) -> Tensor:
        return self.loss.denominators(valid)

    def total_loss(self, sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
        return weighted_hierarchical_loss(sums, weights, denominators)

    def training_metrics(self, device: torch.device) -> TaxonomyTrainingMetrics:
        return TaxonomyTrainingMetrics(self.data_source.tree, device, self.inputs if self.known else (), self._compiled)

    def metrics(self, device: torch.device) -> Metrics:
        groups = None if self.data_source.group is None else self.data_source.group[self.validation_rows]
        classes = [rank[:-1] for rank in self.counts.ranks]
        return TaxonomyMetrics(
            self.data_source.tree,
            device,
            classes,
            groups,
            len(self.validation_rows),
            is_hierarchical(self.config.head),
            self.nulls is not None,
            self.validation_metadata,
            names=lambda: self.data_source.ids[self.validation_rows].tolist(),
        )

    def label_counts(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return rank -> (training counts, validation counts): number of labels of each class, without the null label.

        If the data have groups, such as the photographs of one individual, the counts of each split are multiplied by (groups in the split)
        / (photographs in the split)."""
        source, found = self.data_source, list[list[np.ndarray]]()
        for rows in (self.train_rows, self.validation_rows):
            scale = 1.0 if source.group is None else len(np.unique(source.group[rows])) / max(len(rows), 1)
            found.append([scale * rank[:-1] for rank in LabelCounts.from_labels(source.tree, source.labels[rows]).ranks])
        return dict(zip(self.tasks, zip(*found, strict=True), strict=True))

    def sample_names(self, samples: Sequence[int]) -> list[str]:
        """Return the names of training samples, such as paths of photographs. `samples`: their indices in the training dataset."""
        return self.data_source.ids[self.train_rows[list(samples)]].tolist()

    def sample_view(self) -> PhotographView:
        ids, rows = self.data_source.ids, self.validation_rows
        return PhotographView(self.data_source.tree, lambda sample: str(ids[rows[sample]]), len(self.inputs))

    def save_dataset_record(self, directory: Path) -> None:
        resampling = self.train_set.resampling()
        process_and_save_dataset_metadata(self.data_source, directory, None if resampling is None else resampling.draws)
        self.quarantine.record_unreadable()

    def finish(self) -> None:
        self.quarantine.sort()

    def faster_data(self, slow_disk: bool) -> str | None:
        data = self.config.data
        if isinstance(data, RecordsConfig) and not isinstance(data, StoreConfig):
            return f"`linnaeus prepare {data.name} STORE data.path={shorten(data.path)}` decodes once; then data=store data.path=STORE"
        if (
            slow_disk
            and isinstance(data, StoreConfig)
            and data.order == "shuffle"
            and data.sampling == "natural"
            and not self.pairs_samples
        ):
            return "data.order=blocks reads neighbouring records together"
        if not slow_disk and could_use_device(self.config):
            return "augment.place=device augments on the GPU, so that the loader has a fraction of the work"
        return f"a smaller image (data.image_size={data.image_size} now) takes less time"

    def summary(self, final: Mapping[str, float]) -> list[str]:
        ceilings = {} if self.ceilings is None else self.ceilings(self.config.data)
        return accuracy_table(self.tasks, self.components, final, ceilings)

    def headline(self, final: Mapping[str, float]) -> list[str]:
        return accuracy_headline(self.tasks, final, {} if self.ceilings is None else self.ceilings(self.config.data))

    def save_examples(self, run: Path, step: int, model: nn.Module) -> None:
        ceilings = {} if self.ceilings is None else self.ceilings(self.config.data)
        save_examples(run / "validation" / step_name(step), self.data_source, self.train_rows, self.validation_rows, ceilings)
