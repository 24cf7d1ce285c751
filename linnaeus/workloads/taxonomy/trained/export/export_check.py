"""Check an exported model: compare its results on photographs and metadata with the results of the original model, in several batch
sizes.

Largest differences of a probability, measured with torch 2.15, ONNX Runtime 1.32 and 300 species on a CPU: with torch.export 0. With ONNX
2e-7 to 2e-6 for four trained networks (demo and plants480); for random networks (mformer micro, resnet10t, vit_tiny, convnext_atto) up to
7e-7 with scores of a standard deviation of about 1, 4e-6 with one of 7, and 2e-5 with one of 20. Rounding in float32 grows with the scores.
Therefore the limit of 1e-5 grows, too, if the least probability is below 1e-14 (`limit`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, one_line
from linnaeus.workloads.taxonomy.observations import VALIDATION, Metadata, UndecodableImage
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import configuration_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.export.exported_network import input_names
from linnaeus.workloads.taxonomy.trained.probabilities.answers import Scored

BATCHES = (1, 7, 64)
LIMIT = 1e-5  # largest accepted difference of a probability
NATS = 32.0  # of the log-probability of the least probable class, from which on `LIMIT` grows
TIE = 1e-6  # if the probabilities of two classes differ by less, rounding may change which one is predicted
RANGES = {"latitude": (-90, 90), "longitude": (-180, 180), "uncertainty": (1, 1e5), "day": (0, 1), "hour": (0, 24), "elevation": (0, 3000)}
Inputs = dict[str, np.ndarray]
Runner = Callable[[Inputs], Sequence[np.ndarray]]  # returns the probabilities of each rank, then the path


@dataclass(frozen=True)
class Examples:
    """Batches of inputs with the results of the original model. `origin`: source of the images, such as "79 validation photographs"."""

    batches: list[tuple[Inputs, Scored]]
    origin: str


def examples(classifier: TrainedClassifier, run: Path | None) -> Examples:
    """Return batches of 1, 7 and 64 photographs, and the results of the model for each batch.

    There is one batch of size 1 for each combination of masked metadata components. The batches of 7 and 64 mix all combinations. The
    photographs are validation photographs of `run`; synthetic images if `run` is None or its photographs cannot be read."""
    components = classifier.components
    masks = np.array(list(itertools.product([True, False], repeat=len(components))), dtype=bool)  # [2^M, M]
    sizes = [BATCHES[0]] * len(masks) + list(BATCHES[1:])
    images, metadata, origin = photographs(classifier, run, sum(sizes))
    pixels = classifier.pipeline(images, np.empty(0)).numpy()
    meta, _ = encode(metadata, components)
    present = np.resize(masks, (sum(sizes), len(components)))  # repeats the combinations
    batches, names = [], input_names(components)
    for last, size in zip(itertools.accumulate(sizes), sizes, strict=True):
        rows = slice(last - size, last)
        expected = classifier.scored(images[rows], meta[rows], present[rows])
        inputs = {"image": pixels[rows], "meta": meta[rows], "present": present[rows]}
        batches.append(({name: inputs[name] for name in names}, expected))
    return Examples(batches, origin)


def photographs(classifier: TrainedClassifier, run: Path | None, count: int) -> tuple[list[np.ndarray], Metadata, str]:
    """Return `count` images, uint8 [H, W, 3], their metadata, and a phrase that describes the origin of the images.

    The images are validation photographs of `run`, repeated if there are fewer than `count`. They are synthetic if `run` is None (for a
    bundle) or if no photograph of the run can be read. Unknown metadata of a photograph are replaced by random values."""
    draws = np.random.default_rng(0)
    drawn = {name: draws.uniform(low, high, count).astype(np.float32) for name, (low, high) in RANGES.items()}
    images, known, reason = ([], None, "a bundle has no photographs") if run is None else validation_photographs(run, count)
    if not images or known is None:
        sides = 2 + np.arange(count) % classifier.image_size  # from smooth to noisy
        images = [draws.integers(0, 256, (side, side, 3), dtype=np.uint8) for side in sides]
        return images, Metadata(**drawn), f"{counted(count, 'synthetic image')} ({reason})"
    repeated = np.resize(np.arange(len(images)), count)
    real = vars(known.take(repeated))
    metadata = Metadata(**{name: np.where(np.isnan(real[name]), values, real[name]) for name, values in drawn.items()})
    return [images[i] for i in repeated], metadata, counted(len(images), "validation photograph")


def validation_photographs(run: Path, most: int) -> tuple[list[np.ndarray], Metadata | None, str]:
    """Return up to `most` evenly spaced validation photographs of a run, uint8 [H, W, 3], and their metadata.

    Also return a text that states why the list of photographs is empty; ignore it if the list is not empty. Photographs that cannot be read
    are left out. The metadata are None if the data of the run cannot be read."""
    from linnaeus.workloads.taxonomy.data_source import build_data_source

    images, read, reason = [], [], "the run has no validation photographs"
    try:
        source = build_data_source(configuration_of(run))[0]
    except (ConfigError, OSError) as error:
        return [], None, f"the data of the run cannot be read: {one_line(error)}"
    rows = np.flatnonzero(source.split == VALIDATION)
    for row in rows[np.unique(np.linspace(0, max(len(rows) - 1, 0), min(most, len(rows))).astype(int))]:
        try:
            images += source.images.read(np.array([row]))
            read.append(row)
        except (UndecodableImage, OSError) as error:
            reason = f"the photographs of the run cannot be read: {one_line(error)}"
    return images, source.metadata.take(np.array(read, dtype=np.int64)), reason


def largest_difference(form: str, run: Runner, checked: Examples) -> float:
    """Return the largest difference between a probability of the exported model and the same probability of the original model.

    `form`: name of the format, for messages. `run`: function that runs the exported model. Raise `ConfigError` if the difference is above
    `limit`, or if the exported model predicts another taxon."""
    largest = 0.0
    for inputs, expected in checked.batches:
        *probabilities, path = run(inputs)
        for rank, (own, other) in enumerate(zip(expected.probabilities, probabilities, strict=True)):
            difference = float(np.abs(own - other).max(initial=0)) if own.shape == other.shape else math.inf
            if not difference <= limit(own):  # also if it is NaN
                raise ConfigError(_refusal(form, f"a probability differs by {difference:.1e} in a batch of {len(own)}"))
            if own.size:
                _check_same(form, own, own.argmax(1), other.argmax(1))
            _check_same(form, own, expected.path[:, rank], path[:, rank])
            largest = max(largest, difference)
    return largest


def limit(probabilities: np.ndarray) -> float:
    """Return the largest accepted difference from `probabilities` of the original model, float [B, C]."""
    least = probabilities.min(initial=1.0, where=probabilities > 0)
    return LIMIT * max(1.0, -math.log(least) / NATS)


def _check_same(form: str, probabilities: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """Raise `ConfigError` if the predicted classes of two models differ. Classes of almost equal probability (`TIE`) count as equal.

    `first`, `second`: int64 [B], predicted classes, -1 where no class is predicted. `probabilities`: float [B, C], of the first model.
    `form`: name of the format, for messages."""
    for row in np.flatnonzero(first != second):
        a, b = first[row], second[row]
        if min(a, b) < 0 or abs(probabilities[row, a] - probabilities[row, b]) > TIE:
            raise ConfigError(_refusal(form, "it predicts another taxon"))


def _refusal(form: str, reason: str) -> str:
    return (
        f"--form: {form} disagrees with the model, so nothing is written: {reason}; try another form, or other versions of torch and onnx"
    )
