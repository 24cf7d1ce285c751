"""Define the settings of planted (synthetic) activations, and the three sets of settings that the benchmarks use."""

from dataclasses import dataclass

from linnaeus.config.setting import setting


@dataclass(frozen=True)
class PlantedSettings:
    width: int = setting("dimensions of the activations", low=2)
    features: int = setting("number of planted features", low=2)
    roots: int = setting("trees of features; the features outside of trees are independent; 0: no trees", low=0)
    branching: int = setting("children of each feature in a tree; at most one of them is active", low=1)
    depth: int = setting("levels of children below each root", low=0)
    frequency: float = setting("share of samples in which the first feature is active", above=0, below=1)
    rarest: float = setting("share of samples in which the last feature is active, if it has no parent", above=0, below=1)
    exponent: float = setting("exponent of the Zipf law of frequencies between the two; 0: a straight line", low=0)
    correlation: float = setting("standard deviation of the common factors of the features; 0: no correlations", low=0)
    correlation_rank: int = setting("number of common factors", low=1)
    magnitude: float = setting("mean activity of the first feature", above=0)
    last_magnitude: float = setting("mean activity of the last feature; linear between the two", above=0)
    magnitude_spread: float = setting("scale of the folded normal law of the standard deviations of activities", low=0)
    bias: float = setting("norm of the vector that is added to each activation", low=0)


# The family and the values of `large` are those of SynthSAEBench-16k (arXiv 2602.14687). On average, 35, 7 and 6
# features are active.
SETS = {
    "large": PlantedSettings(768, 16_384, 128, 4, 3, 0.4, 5e-4, 0.5, 0.1, 25, 5.0, 4.0, 0.5, 0.5),
    "small": PlantedSettings(128, 1000, 8, 4, 3, 0.4, 5e-4, 0.5, 0.1, 25, 5.0, 4.0, 0.5, 0.5),
    "easy": PlantedSettings(176, 200, 0, 1, 0, 0.04, 0.02, 0.0, 0.0, 1, 5.0, 4.0, 0.5, 0.5),
}
