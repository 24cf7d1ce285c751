"""Define the data and model settings of the loadout workload."""

from dataclasses import dataclass

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting

DIRECTIONS: dict[str, str] = {  # by the last part of a metric's name
    **{name: "max" for name in ("precision", "recall", "f1", "average_precision", "points", "legal", "weapon_6", "gear_6")},
    **{f"{kind}_{k}": "max" for kind in ("slots", "references") for k in (1, 2, 3, 4, 5, 6, 9, 12)},
    **{"ece": "min", "changed": "min"},
}


@dataclass(frozen=True)
class Size:
    """Architecture of a network.

    points: number of learned inducing points of an attention layer; 0: plain attention. norm: layer norms in the attention layers. blocks:
    number of residual blocks on the pooled set. mean: pool the set by its mean; False: by its sum. levels: add the logits of `LevelLogits`,
    and an embedding of the number of tokens in the set."""

    layers: int
    width: int
    heads: int
    embedding: int
    points: int = 0
    norm: bool = True
    blocks: int = 0
    mean: bool = True
    levels: bool = False


# Parameters with 140 tokens and 130 weapons: published 83,001,420, published_cli 20,833,612; small with 182 tokens 1.2 million.
SIZES = {
    "small": Size(layers=0, width=256, heads=4, embedding=256, blocks=2, mean=False, levels=True),
    "published": Size(layers=3, width=512, heads=8, embedding=32, points=32),
    "published_cli": Size(layers=3, width=256, heads=8, embedding=32, points=32, norm=False),
}


@dataclass(frozen=True)
class LoadoutDataConfig(DataConfig):
    """Data settings that all sources of builds share: tokens, partial builds and the split."""

    code: str = setting(
        "tokens of the model; slots: numbers of slots (182 tokens); points: thresholds of ability points (140, as SplatNLP)",
        choices=("slots", "points"),
    )
    subsets: int = setting("partial builds of each build in an epoch", low=1)
    empty: bool = setting("one more example of each build in an epoch that shows no gear, only the weapon")
    removal: str = setting(
        "slots: a partial build is gear with free slots; tokens: single tokens are removed, as SplatNLP does", choices=("slots", "tokens")
    )
    visible_targets: bool = setting("also count the tokens that the partial build shows in the loss")
    validation_fraction: float = setting("share of the distinct builds for validation", above=0, below=0.5)
    test_fraction: float = setting("share of the distinct builds for `linnaeus evaluate --split test`", low=0, below=0.5)
    split_seed: int = setting("seed of the split", low=0)


@dataclass(frozen=True)
class LoadoutsConfig(LoadoutDataConfig):
    builds: int = setting("number of generated builds, for training, validation and test", low=20)
    world: int = setting("seed of the generated world; each world has other styles of builds", low=0)


@dataclass(frozen=True)
class RecordedDataConfig(LoadoutDataConfig):
    """Data settings that `data=battles` and `data=builds`, the sources of recorded builds, share."""

    path: str = setting("the file; of battles also a folder or a zip of daily files")
    weapons: str | None = setting("weapon.json of stat.ink; null: the 143 weapons that the program has")
    copies: int | None = setting("identical builds of one weapon to keep, at most; null: all", low=1)


@dataclass(frozen=True)
class BattlesConfig(RecordedDataConfig):
    win_share: float | None = setting("share of builds of winning teams; the surplus is left out; null: all builds", low=0, high=1)


@dataclass(frozen=True)
class BuildsConfig(RecordedDataConfig):
    tiers: list[int] | None = setting("tiers of a slot table to read, as [1, 2]; null: all")


@dataclass(frozen=True)
class SetTransformerConfig:
    name: str = setting("network architecture", choices=("set_transformer",))
    size: str = setting(
        "small: a sum over the set and residual blocks; published, published_cli: the models of SplatNLP", choices=tuple(SIZES)
    )
    layers: int | None = setting("attention layers; null: that of the size", low=0)
    width: int | None = setting("channels; null: that of the size", low=1)
    heads: int | None = setting("attention heads, which must divide the width; null: that of the size", low=1)
    blocks: int | None = setting("residual blocks on the pooled set; null: that of the size", low=0)
    dropout: float = setting("dropout rate of attention weights and of every branch", low=0, below=1)


SCHEMAS: dict[str, dict[str, type]] = {
    "data": {"loadouts": LoadoutsConfig, "battles": BattlesConfig, "builds": BuildsConfig},
    "model": {"set_transformer": SetTransformerConfig},
}
