"""`Measured`: the validation metrics of a trained classifier on labelled photographs, and its result for each photograph.

`TaxonomyMetrics` computes the metrics. On the validation rows of a run, with the batch size of the run, all metrics equal the metrics of
the run's validation. There are two passes: with metadata, and with all metadata masked. Each photograph is read once for both passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from linnaeus.data.samples import Batch
from linnaeus.progress.stages import validation_passes
from linnaeus.workloads.taxonomy.heads import is_hierarchical
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics
from linnaeus.workloads.taxonomy.metrics.photograph_table import PhotographTable
from linnaeus.workloads.taxonomy.metrics.sample_record import RECORD
from linnaeus.workloads.taxonomy.observations.components import encode, presence
from linnaeus.workloads.taxonomy.trained.batches.reading_ahead import read_batches
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import LabelRows, Matched, among_possible, matched
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.evaluate.tempered import Tempered
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs
from linnaeus.workloads.taxonomy.trained.probabilities.familiarity import familiarity

SHOTS = ("many", "medium", "few")  # metrics of classes by number of training photographs, which must be known


class Settings(NamedTuple):
    """Batch size and number of reading threads for `measure`."""

    batch_size: int
    threads: int  # number of threads that read photographs


@dataclass(frozen=True)
class Measured:
    """Results of a model for N photographs: metrics of each validation pass, rows of classes, and results of each photograph."""

    name: str
    model: TrainedClassifier
    labels: Matched
    metrics: dict[str, float]  # `val/...`, and `val_mask_meta/...` if the model reads metadata that some photographs have
    classes: list[dict[str, Any]]  # rows of classes.csv; metadata are not masked in these results and the next two
    record: torch.Tensor  # rows of `SampleRecord`, int64 [N, 3]
    table: PhotographTable
    training_counts: Sequence[np.ndarray] | None  # per rank int64 [C_r]; None: not recorded
    tempered: Tempered  # without masking
    errors: Mapping[int, str]  # photograph that cannot be read -> reason


def measure(
    name: str, model: TrainedClassifier, rows: LabelRows, training_counts: Sequence[np.ndarray] | None, settings: Settings
) -> Measured:
    """Return the results of a model for the rows of a manifest. Raise `ConfigError` if no label is a taxon of the model.

    `name`: name of the model in tables. `training_counts`: per rank int64 [C_r], number of training photographs of each class; None:
    unknown."""
    records, tree = rows.records, model.tree
    labels = among_possible(matched(records.tree, records.labels, tree), model.restriction)
    size, known = len(records.labels), presence(records.metadata, model.components)
    have = tuple(component for component, column in zip(model.components, known.T, strict=True) if column.any())
    possible = validation_passes([(component,) for component in have], have)
    passes = [pass_ for pass_ in possible if pass_.partial_index is None]
    table, nulls = PhotographTable(size, len(tree.ranks)), model.description.head.nulls != "ignore" and not labels.unscored.any()
    metrics = [
        TaxonomyMetrics(
            tree,
            model.device,
            training_counts or [np.zeros(count, dtype=np.int64) for count in tree.sizes],
            rows.group,
            size,
            is_hierarchical(model.description.head),
            nulls,
            dict(zip(model.components, known.T, strict=True)),
            more=[table] if not pass_.masked else [],
        )
        for pass_ in passes
    ]
    for one, pass_ in zip(metrics, passes, strict=True):
        one.begin(pass_, possible)  # also `with_<component>_top1` of the normal pass
    sums = [torch.zeros(one.width, dtype=torch.float64) for one in metrics]
    errors: dict[int, str] = {}
    tempered = Tempered(size, len(tree.ranks))
    with torch.inference_mode():
        for batch in _batches(model, rows, labels.labels, settings, errors):
            for one, total, pass_ in zip(metrics, sums, passes, strict=True):
                prepared = model.preparation(batch, pass_.masked)
                whole = model.all_scores(prepared)
                scores = whole if model.possible is None else whole.among(model.possible)
                outputs = {"scores": scores}
                if not pass_.masked:
                    probabilities = model.probabilities(whole, model.possible)
                    familiar = familiarity(probabilities if model.possible is None else model.probabilities(whole))
                    tempered.keep(batch["sample"].cpu().numpy(), probabilities, scores.path().cpu().numpy(), familiar)
                total += one.sums(outputs, prepared).cpu()  # batch by batch: float addition depends on the order
                one.count(outputs, prepared)
    found: dict[str, float] = {}
    for one, total, pass_ in zip(metrics, sums, passes, strict=True):
        results = one.compute(total, one.counts) | one.compute_at_end(one.counts)
        found |= {f"{pass_.key}/{key}": value for key, value in results.items() if training_counts or key.split("/")[-1] not in SHOTS}
    classes = metrics[0].class_rows(metrics[0].counts)
    return Measured(name, model, labels, found, classes, metrics[0].counts[RECORD].cpu(), table, training_counts, tempered, errors)


def _batches(model: TrainedClassifier, rows: LabelRows, labels: np.ndarray, settings: Settings, errors: dict[int, str]) -> Iterator[Batch]:
    """Yield batches of the rows on the model's device, before normalisation. `labels`: int64 [N, R], classes of the model.

    A photograph that cannot be read is replaced by a black image without labels and with weight 0. The reason is added to `errors`,
    position of the photograph -> reason."""
    inputs = Inputs(rows.records.files.names.tolist(), rows.records.files, rows.records.metadata)
    black = np.zeros((model.image_size, model.image_size, 3), np.uint8)
    for read in read_batches(model, inputs, settings.batch_size, settings.threads, "evaluating"):
        own = np.arange(read.first, read.first + len(read))
        errors |= {row: error for row, error in zip(own.tolist(), read.errors, strict=True) if error is not None}
        usable = np.array([error is None for error in read.errors])
        images = np.stack([black if isinstance(image, str) else image for image in read.found])
        batch = model.batch(images, *encode(inputs.metadata.take(own), model.components))
        more = {"label": np.where(usable[:, None], labels[own], -1), "weight": usable.astype(np.float32), "sample": own}
        yield batch | {name: torch.from_numpy(value).to(model.device) for name, value in more.items()}
