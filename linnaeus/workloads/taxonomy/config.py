"""The taxonomy workload's own groups of the configuration: data, model, head, loss, augment."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting


@dataclass(frozen=True)
class TaxonomyDataConfig(DataConfig):
    ranks: list[str] | None = setting("taxonomic ranks to predict, coarse to fine; null: every rank with more than one class")
    components: list[str] = setting("metadata components the model reads: SPATIAL, TEMPORAL, ELEVATION")
    image_size: int = setting("side of the square the model sees, in pixels", low=8)


@dataclass(frozen=True)
class BiotaConfig(TaxonomyDataConfig):
    train_samples: int = setting("individuals drawn for training", low=2)
    validation_samples: int = setting("other individuals drawn for validation", low=1)
    world: int = setting("number of the world: another one has other organisms", low=0)


@dataclass(frozen=True)
class ManifestConfig(TaxonomyDataConfig):
    path: str = setting("CSV or Parquet manifest")
    root: str | None = setting("folder the image paths are relative to; null: the manifest's own")
    image_column: str = setting("column with the image path")
    rank_columns: dict[str, str] = setting("column of each taxonomic rank, coarse to fine; empty: the columns named like known ranks")
    latitude_column: str | None = setting("column with degrees north; null: none")
    longitude_column: str | None = setting("column with degrees east; null: none")
    uncertainty_column: str | None = setting("column with the uncertainty of the coordinates in metres; null: none")
    date_column: str | None = setting("column with an ISO date; null: none")
    time_column: str | None = setting("column with the local time; null: none")
    elevation_column: str | None = setting("column with metres above the sea; null: none")
    elevation_missing: float | None = setting("value of elevation that means missing, as 0.0 does in some exports; null: none")
    split_column: str | None = setting("column that says train or val; null: the split is made here")
    group_column: str | None = setting("column (observation, observer, site) whose rows stay on one side of the split; null: none")
    validation_fraction: float = setting("share of the rows held out when the split is made here", low=0, high=1)
    split_seed: int = setting("which of the possible splits", low=0)
    max_image_pixels: int = setting("photographs with more pixels than this are refused as decompression bombs", low=1)


@dataclass(frozen=True)
class ModelConfig:
    name: str = setting("which network")
    dropout: float = setting("dropout of the features before the heads and in the transformer stages", low=0, high=1)
    drop_path: float = setting("largest stochastic depth, growing linearly with depth", low=0, high=1)
    meta_width: int = setting("width of the metadata encoders' hidden layer", low=1)


@dataclass(frozen=True)
class MformerConfig(ModelConfig):
    size: str = setting("named size", choices=("micro", "nano", "tiny", "small", "base", "large"))


@dataclass(frozen=True)
class TimmConfig(ModelConfig):
    backbone: str = setting("name of a timm model")
    pretrained: bool = setting("start from timm's pretrained weights")


@dataclass(frozen=True)
class HeadConfig:
    name: str = setting("how features become predictions at each rank", choices=("linear",))
    nulls: str = setting("ignore: null labels teach nothing; predict: each rank has a class for them", choices=("ignore", "predict"))


@dataclass(frozen=True)
class LossConfig:
    name: str = setting("loss of one taxonomic rank", choices=("cross_entropy",))
    label_smoothing: float = setting("share of the target spread evenly over the classes of the rank", low=0, high=1)


@dataclass(frozen=True)
class AugmentConfig:
    name: str = setting("which pipeline", choices=("none", "standard"))
    crop_scale: list[float] = setting("smallest and largest share of the area a random crop takes")
    crop_ratio: list[float] = setting("smallest and largest aspect ratio of a random crop")
    horizontal_flip: float = setting("probability of mirroring left-right", low=0, high=1)
    vertical_flip: float = setting("probability of mirroring top-bottom", low=0, high=1)
    brightness: float = setting("largest relative change of brightness", low=0)
    contrast: float = setting("largest relative change of contrast", low=0)
    saturation: float = setting("largest relative change of saturation", low=0)
    hue: float = setting("largest turn of hue, in turns", low=0, high=0.5)
    policy: str = setting("automatic policy of further operations", choices=("none", "randaugment", "trivialaugment"))
    policy_magnitude: int = setting("strength of RandAugment, 0 to 30", low=0, high=30)
    policy_operations: int = setting("operations of RandAugment", low=1)
    erasing: float = setting("probability of erasing a rectangle", low=0, high=1)
    mixup_alpha: float = setting("Beta(alpha, alpha) of mixup's share; 0: no mixup", low=0)
    cutmix_alpha: float = setting("Beta(alpha, alpha) of cutmix's share; 0: no cutmix", low=0)
    cutmix_share: float = setting("share of the mixed pairs that are cut rather than blended when both are on", low=0, high=1)
    mix_nulls: bool = setting("mix samples that have a null label as well")


SCHEMAS: dict[str, dict[str, type]] = {
    "data": {"biota": BiotaConfig, "manifest": ManifestConfig},
    "model": {"mformer": MformerConfig, "timm": TimmConfig},
    "head": {"linear": HeadConfig},
    "loss": {"cross_entropy": LossConfig},
    "augment": {"none": AugmentConfig, "standard": AugmentConfig},
}
