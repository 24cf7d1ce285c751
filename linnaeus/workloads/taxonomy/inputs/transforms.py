"""Build the transforms for images of one size: the training pipeline, the pipeline at the end of a run, and the mixing of pairs.

A run in which the image size grows (`schedule.image_size`) has transforms for each size."""

from collections.abc import Sequence
from typing import NamedTuple

from linnaeus.config.registry import registered
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment import AugmentationPipelineFactory, Pipeline
from linnaeus.workloads.taxonomy.augment.mixing import PairMixing
from linnaeus.workloads.taxonomy.inputs.masking import ramp_used


class Transforms(NamedTuple):
    """Parts of a dataset that depend on the size of the images: pipelines and the mixing of pairs."""

    pipeline: Pipeline
    at_end: Pipeline | None  # pipeline for the last part of the run (`augment.off_last`)
    mixing: PairMixing | None


def build_transforms(config: Config, ranks: Sequence[str], side: int, training: bool) -> Transforms:
    """Return the transforms for images of `side` pixels. Raise `ConfigError` in the cases of `build_mixing`, for impossible ranges of
    crops, and for an `augment.off_last` without effect."""
    pipelines = AugmentationPipelineFactory(config.augment, side)
    if not training:
        return Transforms(pipelines.build(training=False), None, None)
    mixing = build_mixing(config, ranks, side)
    device = DistributedContext().device
    return Transforms(pipelines.build(training=True, device=device), pipelines.build_at_end(mixing is not None), mixing)


def could_use_device(config: Config) -> bool:
    """Return True if training images are augmented on the host, although this process trains on a GPU that can do it."""
    device, augment = DistributedContext().device, config.augment
    on_gpu = device is not None and device.type == "cuda"
    return on_gpu and augment.place == "host" and augment.policy == "none" and registered("augment", augment.name) is None


def build_mixing(config: Config, ranks: Sequence[str], side: int) -> PairMixing | None:
    """Return the mixing of pairs of images of `side` pixels; None if `schedule.mixup_prob` is always 0. Otherwise raise `ConfigError` if
    `augment.mixup_alpha` and `augment.cutmix_alpha` are both 0, or if `schedule.mixup_group_level` is empty or names an unknown rank."""
    if not ramp_used(config.schedule.mixup_prob):
        return None
    if config.augment.mixup_alpha == 0 and config.augment.cutmix_alpha == 0:
        raise ConfigError("schedule.mixup_prob is above 0, but augment.mixup_alpha and augment.cutmix_alpha are 0; set one of them above 0")
    if not config.schedule.mixup_group_level:
        raise ConfigError("schedule.mixup_prob is above 0, but schedule.mixup_group_level is empty; set it to [{from: 0%, level: RANK}]")
    for entry in config.schedule.mixup_group_level:
        mixing_rank(entry["level"], ranks)
    return PairMixing(config.augment, config.seed, side)


def mixing_rank(level: str, ranks: Sequence[str]) -> int:
    """Return the index in `ranks` of `level`, the name of a rank or "finest". Raise `ConfigError` for any other name."""
    if level == "finest":
        return len(ranks) - 1
    if level not in ranks:
        raise ConfigError(f"schedule.mixup_group_level: {level!r} is not a taxonomic rank; choose one of finest, {', '.join(ranks)}")
    return list(ranks).index(level)
