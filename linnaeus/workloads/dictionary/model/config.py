"""Define the settings of the variants of a sparse dictionary."""

from dataclasses import dataclass

from linnaeus.config.setting import setting


@dataclass(frozen=True)
class DictionaryConfig:
    """Settings that all variants of a dictionary share.

    Coefficients of losses refer to scaled activations. The scale makes the mean distance of the activations from their geometric median
    sqrt(width)."""

    name: str = setting(
        "variant of the dictionary", choices=("relu", "gated", "topk", "batch_topk", "jumprelu", "matryoshka")
    )  # the options of the group `model`
    features: int | None = setting("number of features; null: 8 x the width of the activations", low=1)
    encoder_norm: float = setting("norm of each encoder vector at the start, where it is parallel to the decoder vector", above=0)
    dead_after: int = setting("training samples without activity after which a feature counts as dead", low=1)
    auxiliary: float = setting("coefficient of the loss that trains dead features to reconstruct the error of the others; 0: none", low=0)
    auxiliary_features: int | None = setting("dead features per sample in that loss; null: half the width of the activations", low=1)
    usage_target: float = setting("share of samples in which a feature should be active; used if usage_penalty is not 0", above=0, below=1)
    frontier: list[float] = setting(
        "values of k (of sparsity, where that is the key); a dictionary for each is trained in one pass over the data; []: one dictionary",
        above=0,
    )
    usage_penalty: float = setting("coefficient of the divergence between usage_target and the usage of each feature; 0: none", low=0)


@dataclass(frozen=True)
class TopKConfig(DictionaryConfig):
    k: float = setting("active features per sample; of batch_topk and matryoshka on average over a block", above=0)


@dataclass(frozen=True)
class BatchTopKConfig(TopKConfig):
    block: int = setting(
        "consecutive samples of a global batch of which the k x block largest activities stay; divides the micro-batch", low=1
    )
    threshold_rate: float = setting("rate of the moving average that estimates the threshold for evaluation", above=0, high=1)


@dataclass(frozen=True)
class MatryoshkaConfig(BatchTopKConfig):
    widths: list[int] = setting("numbers of first features that must reconstruct alone, ascending; all features are added", low=1)


@dataclass(frozen=True)
class PenalisedConfig(DictionaryConfig):
    """Settings of the variants in which a penalty in the loss makes the activities sparse (relu, gated, jumprelu)."""

    sparsity: float = setting(
        "coefficient of the sum of activities, x sqrt(width) (relu, gated), or of the number of active features, x width (jumprelu)",
        low=0,
    )
    sparsity_warmup: str = setting("length of the linear ramp of the coefficient from 0, such as `10%` or `500steps`", duration="update")


@dataclass(frozen=True)
class JumpReLUConfig(PenalisedConfig):
    threshold: float = setting("threshold of each feature at the start", low=0)
    bandwidth: float = setting("width of the kernel that estimates the gradients of thresholds", above=0)


MODELS: dict[str, type] = {
    "relu": PenalisedConfig,
    "gated": PenalisedConfig,
    "topk": TopKConfig,
    "batch_topk": BatchTopKConfig,
    "jumprelu": JumpReLUConfig,
    "matryoshka": MatryoshkaConfig,
}
