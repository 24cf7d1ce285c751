"""Check parts that plugins define: a data source, and, on a small batch before training, a model, head and loss."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.config.contracts import check_members, class_name, described
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError, counted, one_line
from linnaeus.schedule.image_sizes import image_sizes
from linnaeus.workloads.taxonomy.arrays.text_arrays import unique_strings
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.losses import TaxonomyLoss
from linnaeus.workloads.taxonomy.models.classifier import Classifier
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, ImageReader, Source
from linnaeus.workloads.taxonomy.observations.components import column_slices
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

RANGES = {  # quantity -> lowest and highest value
    "latitude": (-90.0, 90.0),
    "longitude": (-180.0, 180.0),
    "uncertainty": (0.0, np.inf),
    "day": (0.0, 1.0),
    "hour": (0.0, 24.0),
    "elevation": (-np.inf, np.inf),
}
BATCH = 3  # samples of the trial batch: one with labels, one without, one with a label only at the coarsest rank


def checked_source(source: Source) -> Source:
    """Return the source of a plugin with a reader that also checks the images.

    Raise `ConfigError` for repeated ids, a split that is not 0 or 1, negative or infinite weights, and metadata out of range."""
    check_members(source.images, ImageReader, "Source.images is")
    ids, row = unique_strings(source.ids)
    number = np.bincount(row)
    if (number > 1).any():
        raise ConfigError(f"Source.ids has {str(ids[number.argmax()])!r} {number.max()} times; the ids must be unique")
    other = source.split[~np.isin(source.split, (TRAIN, VALIDATION))]
    if len(other):
        count = (other == other[0]).sum()
        raise ConfigError(
            f"Source.split is {other[0]} in {counted(count, 'row')}; it must be 0 (training) or 1 (validation); leave out other rows"
        )
    if source.weight is not None and not (np.isfinite(source.weight) & (source.weight >= 0)).all():
        raise ConfigError("Source.weight must be finite and at least 0 in every row")
    for name, (low, high) in RANGES.items():
        values = getattr(source.metadata, name)
        wrong = values[(values < low) | (values > high) | np.isinf(values) | ((values == high) & (name in ("day", "hour")))]
        if len(wrong):
            interval = f"[{low:g}, {high:g}{')' if name in ('day', 'hour') else ']'}"
            raise ConfigError(f"Source.metadata.{name} is {wrong[0]:g} in a row; it must be in {interval}, or NaN where it is unknown")
    return replace(source, images=CheckedReader(source.images))


class CheckedReader:
    """Wrapper of a plugin's reader. `read` raises `ConfigError` if the plugin does not return an RGB image for each sample."""

    def __init__(self, reader: ImageReader) -> None:
        self.reader = reader

    def read(self, samples: np.ndarray) -> list[np.ndarray]:
        images, name = self.reader.read(samples), f"{class_name(type(self.reader))}.read returns"
        if not isinstance(images, list):
            raise ConfigError(f"{name} {described(images)}; it must return a list of images uint8 [H, W, 3]")
        if len(images) != len(samples):
            raise ConfigError(f"{name} {counted(len(images), 'image')} for {counted(len(samples), 'sample')}; it must return one for each")
        for image in images:
            if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                found = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else described(image)
                raise ConfigError(f"{name} {found} for an image; it must be an array uint8 [H, W, 3]")
        return images


def check_parts(model: Classifier, loss: TaxonomyLoss, tree: TaxonomyTree, components: tuple[str, ...], config: Config) -> None:
    """Run the trunk, the head and a plugin's loss once on a small batch in evaluation mode. Random state and buffers do not change.

    Raise `ConfigError` if one of them returns a wrong type or shape, or a loss without a gradient."""
    norm, ranks = model.norm.weight, len(tree.ranks)
    draws = torch.Generator().manual_seed(0)
    images = [torch.rand(BATCH, 3, size, size, generator=draws).to(norm) for size in image_sizes(config)]
    meta = norm.new_zeros(BATCH, column_slices(components)[-1].stop if components else 0)
    present = torch.zeros(BATCH, len(components), dtype=torch.bool, device=norm.device)
    null = config.head.nulls != "ignore"
    training = model.training
    model.eval()
    with torch.random.fork_rng([norm.device] if norm.device.type == "cuda" else []):
        for image in images:
            features = try_trunk(model, image, meta, present, final=image is images[-1])
            check_features(features, model, ranks)
        per_rank = model.norm(features).detach().requires_grad_().expand(-1, ranks, -1)
        scores = model.head(per_rank)
        check_scores(scores, class_name(type(model.head)), tree, null)
        if config.augment.tta != "none":
            check_mean(scores, class_name(type(model.head)))
        with torch.autocast(norm.device.type, enabled=False):  # as in the training: only the model runs in mixed precision
            loss.check_custom(scores, trial_labels(tree, null).to(norm.device))
    model.train(training)


def try_trunk(model: Classifier, image: Tensor, meta: Tensor, present: Tensor, final: bool) -> Any:
    """Return the features that the trunk computes for a batch. `final`: True if the images have the last image size of the run.

    Raise `ConfigError` if `final` is False and the trunk fails. If `final` is True, the trunk's own error is raised."""
    try:
        return model.trunk(image, meta, present)
    except (RuntimeError, ValueError, AssertionError) as error:
        if final:
            raise
        name, side = class_name(type(model.trunk)), image.shape[-1]
        raise ConfigError(
            f"schedule.image_size: {name} cannot read images of {side} pixels ({one_line(error)}); set start to null"
        ) from error


def check_features(features: object, model: Classifier, ranks: int) -> None:
    """Raise `ConfigError` if the features of the trunk are not a tensor [B, 1 or R, width]."""
    name, width = f"{class_name(type(model.trunk))} returns", model.trunk.width
    if not isinstance(features, Tensor):
        raise ConfigError(f"{name} {described(features)}; it must return a tensor [B, 1 or R, width]")
    if features.ndim != 3 or features.shape[0::2] != (BATCH, width) or features.shape[1] not in (1, ranks):
        right = f"[{BATCH}, 1 or {ranks}, {width}], that is [B, 1 or R, width]"
        raise ConfigError(f"{name} the shape {list(features.shape)}; it must be {right}")


def check_scores(scores: object, head: str, tree: TaxonomyTree, null: bool) -> None:
    """Raise `ConfigError` if `scores`, the result of a head, is not a `Scores` of all classes. `head`: name of the head's class.

    `null`: True if each rank also has the null class."""
    if not isinstance(scores, Scores):
        raise ConfigError(f"{head} returns {described(scores)}; it must return a Scores, such as LinearScores(tree, logits)")
    log_probs = scores.log_probs()
    found, right = [list(one.shape) for one in log_probs], [[BATCH, classes + null] for classes in tree.sizes]
    if found != right:
        why = "[B, C_r + 1] with the null class of head.nulls" if null else "[B, C_r]"
        raise ConfigError(f"{head} returns scores of the shapes {found}; they must be {right}, {why} of each rank")
    if not any(one.requires_grad for one in log_probs):
        raise ConfigError(f"{head} returns scores without a gradient; do not detach them")


def check_mean(scores: Scores, head: str) -> None:
    """Raise `ConfigError` if `scores.mean([scores])`, which augment.tta uses, has other probabilities or predictions than `scores`."""
    found = scores.mean([scores])
    same = all(torch.allclose(one, own, atol=1e-5) for one, own in zip(found.log_probs(), scores.log_probs(), strict=True))
    if not same or not torch.equal(found.path(), scores.path()):
        raise ConfigError(
            f"augment.tta: the mean of scores of {head} and themselves differs from them; define `mean`, or set augment.tta=none"
        )


def trial_labels(tree: TaxonomyTree, null: bool) -> Tensor:
    """Return labels of three samples, int64 [3, R]. Sample 1: a class of the finest rank and its ancestors. Sample 2: no label. Sample 3:
    only the coarsest label of sample 1.

    Missing labels are -1. With `null`, the missing labels of sample 3 are null labels (the number of classes of the rank)."""
    path = torch.from_numpy(tree.paths[tree.offsets[-2]])
    missing = torch.full_like(path, -1)
    coarse = torch.tensor(tree.sizes) if null else missing.clone()
    coarse[0] = path[0]
    return torch.stack([path, missing, coarse])
