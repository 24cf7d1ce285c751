"""Define the settings of losses: weights of classes and of labels, and how the target is spread over classes."""

from dataclasses import KW_ONLY, dataclass

from linnaeus.config.setting import setting


@dataclass(frozen=True)
class LossConfig:
    name: str = setting("name of the loss of each taxonomic rank")
    class_weights: str = setting("weight of a class of n rows: 1, 1 / n, or 1 / effective number", choices=("none", "inverse", "effective"))
    effective_beta: float | None = setting("beta of the effective number (1 - beta^n) / (1 - beta); null for others", above=0, below=1)
    class_weight_cap: float | None = setting("largest class weight, where the mean over labels is 1; null: no limit", above=1)
    logit_adjustment: float = setting("factor of the log prior of each taxon that is added to the scores in training; 0: none", low=0)
    _: KW_ONLY  # so that classes based on this one can have required fields
    coarser_share: float | None = setting(
        "share of the weight of a sample that its labels above the finest known one have together; null: every label counts once",
        low=0,
        high=0.99,
        default=None,
    )


@dataclass(frozen=True)
class CrossEntropyConfig(LossConfig):
    label_smoothing: float = setting("share of the target that is spread evenly over the classes of the rank", low=0, high=1)


@dataclass(frozen=True)
class TaxonomicSmoothingConfig(LossConfig):
    label_smoothing: float = setting("share of the target that is spread over other classes, most over close relatives", low=0, high=1)
    beta: float = setting("decay of the spread, which is proportional to exp(-beta x edges between the classes)", low=0)


@dataclass(frozen=True)
class SoftLabelsConfig(LossConfig):
    beta: float = setting("decay of the target, exp(-beta x height of the common ancestor / greatest height); large: one-hot", low=0)


@dataclass(frozen=True)
class ConditionalConfig(LossConfig):
    alpha: float = setting(
        "decay of the weight of a rank, exp(-alpha x ranks above it): finer decisions count less; below 0: they count more", low=-5, high=5
    )


@dataclass(frozen=True)
class MarginalConfig(LossConfig):
    """Settings of cross-entropy with `coarser_share`, without smoothing."""
