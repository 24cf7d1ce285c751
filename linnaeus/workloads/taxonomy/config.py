"""The taxonomy workload's own groups of the configuration: data, model, head, loss, augment."""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting

# metric -> whether smaller or larger is better, by the last part of its name
DIRECTIONS = {
    **dict.fromkeys(("inconsistent", "severity", "hd1", "hd5", "hd20", "ece", "aurc"), "min"),
    **dict.fromkeys(("top1", "top5", "chain", "partial_chain", "many", "medium", "few", "precision", "recall", "f1"), "max"),
}


@dataclass(frozen=True)
class TaxonomyDataConfig(DataConfig):
    ranks: list[str] | None = setting("taxonomic ranks to predict, coarse to fine; null: every rank with more than one class")
    components: list[str] = setting("metadata components the model reads: SPATIAL, TEMPORAL, ELEVATION")
    image_size: int = setting("side of the square the model sees, in pixels", low=8)
    sampling: str = setting(
        "how often a class of n samples is drawn in an epoch of unchanged length: as often as it occurs, in proportion to the root of n, "
        "or as often as any other",
        choices=("natural", "square_root", "class_balanced"),
    )
    sampling_rank: str | None = setting("taxonomic rank whose classes `sampling` balances; null: the finest")


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
    taxonomy: str | None = setting(
        "CSV or Parquet table of taxa (id, parent id or ancestry, rank, name), for labels that are ids; null: columns of names"
    )
    taxon_column: str | None = setting("column with the id, in data.taxonomy, of the taxon of each row, of whatever rank; null: none")
    latitude_column: str | None = setting("column with degrees north; null: none")
    longitude_column: str | None = setting("column with degrees east; null: none")
    uncertainty_column: str | None = setting("column with the uncertainty of the coordinates in metres; null: none")
    date_column: str | None = setting("column with an ISO date; null: none")
    time_column: str | None = setting("column with the local time; null: none")
    elevation_column: str | None = setting("column with metres above the sea; null: none")
    elevation_missing: float | None = setting("value of elevation that means missing, as 0.0 does in some exports; null: none")
    split_column: str | None = setting("column that says train or val; null: the split is made here")
    weight_column: str | None = setting("column with the weight of a row in the training loss, relative to the mean; null: all the same")
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
    name: str = setting("how features become predictions")
    nulls: str = setting(
        "ignore: null labels are not trained on; phase_in, predict: each rank gets a class for them, by schedule.null_mask_prob or always",
        choices=("ignore", "phase_in", "predict"),
    )


@dataclass(frozen=True)
class PlainHeadConfig(HeadConfig):
    pass


@dataclass(frozen=True)
class HierarchicalSoftmaxConfig(HeadConfig):
    routing: str = setting("what ranks hand down: all probabilities, the best taxon, or a Gumbel draw", choices=("soft", "hard", "gumbel"))
    temperature: float = setting("of the routing distribution; small is sharp", above=0)


@dataclass(frozen=True)
class LossConfig:
    name: str = setting("loss of one taxonomic rank")
    class_weights: str = setting(
        "weight of a class by its training rows n; none, inverse: 1 / n, effective: one over their effective number",
        choices=("none", "inverse", "effective"),
    )
    effective_beta: float | None = setting("beta of the effective number (1 - beta^n) / (1 - beta); null otherwise", above=0, below=1)
    class_weight_cap: float | None = setting("no class weighs more than this, the mean over labels being 1; null: no limit", above=1)
    logit_adjustment: float = setting("how much of the log of the taxa's shares is added to the scores in training; 0: none", low=0)


@dataclass(frozen=True)
class CrossEntropyConfig(LossConfig):
    label_smoothing: float = setting("share of the target spread evenly over the classes of the rank", low=0, high=1)


@dataclass(frozen=True)
class TaxonomicSmoothingConfig(LossConfig):
    label_smoothing: float = setting("share of the target spread over the other classes of the rank, near relatives first", low=0, high=1)
    beta: float = setting("how fast it falls: in proportion to exp(-beta x edges between the classes)", low=0)


@dataclass(frozen=True)
class SoftLabelsConfig(LossConfig):
    beta: float = setting("target in proportion to exp(-beta x height of the common ancestor / greatest height); large: one-hot", low=0)


@dataclass(frozen=True)
class ConditionalConfig(LossConfig):
    alpha: float = setting("a rank counts exp(-alpha x its height above the finest); 0: all the same", low=0)


@dataclass(frozen=True)
class MarginalConfig(LossConfig):
    """Nothing of its own."""


@dataclass(frozen=True)
class AugmentConfig:
    name: str = setting("which pipeline")
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
    "head": {
        "linear": PlainHeadConfig,
        "conditional": PlainHeadConfig,
        "hierarchical_softmax": HierarchicalSoftmaxConfig,
        "marginal": PlainHeadConfig,
    },
    "loss": {
        "cross_entropy": CrossEntropyConfig,
        "taxonomic_smoothing": TaxonomicSmoothingConfig,
        "soft_labels": SoftLabelsConfig,
        "conditional": ConditionalConfig,
        "marginal": MarginalConfig,
    },
    "augment": {"none": AugmentConfig, "standard": AugmentConfig},
}
