"""Define the settings of the dictionary workload: the run whose module is read, and the data. The model settings are in
`model/config.py`."""

from dataclasses import dataclass

from linnaeus.config.schema import DataConfig
from linnaeus.config.setting import setting
from linnaeus.workloads.dictionary.model.config import MODELS
from linnaeus.workloads.dictionary.planted_config import PlantedSettings

# By the last part of a metric's name. A dense code has the best explained variance, cosine, loss recovered and share of dead features, so
# these have no direction: to monitor one, set schedule.best_mode. `loss` limits the number of active features or counts their price, but
# another k or price makes it another quantity. `sparse_gain` is at most 0 for a dense code.
DIRECTIONS: dict[str, str] = {"mcc": "max", "f1": "max", "sparse_gain": "max"}

REPORT: dict[str, int] = {"report_features": 24, "report_samples": 2000}  # values in conf/workload/dictionary.yaml


@dataclass(frozen=True)
class ReadRunConfig:
    """Settings of the trained model whose activations a dictionary learns to reconstruct."""

    run: str | None = setting("directory of the run whose model is read; null: none, for data=planted")
    module: str | None = setting("name of the module whose output is read, such as blocks.1; the error for a wrong name lists similar ones")
    channels: str = setting(
        "place of the channels in an output of four dimensions: first, [B, C, H, W], or last, [B, H, W, C]", choices=("first", "last")
    )
    checkpoint: str | None = setting(
        "checkpoint of that run: newest, best or a step; null: best if one was validated, otherwise newest", step=True
    )
    settings: list[str] = setting("settings that replace those of that run, such as ['data.path=/new/place']")
    report_features: int = setting("strongest features that report.html shows, beside those that detect a taxon; 0: neither", low=0)
    report_samples: int = setting("validation samples of that run, and training samples, that are read for report.html", low=1)


@dataclass(frozen=True)
class ActivationsConfig(DataConfig):
    """Settings of data=activations: activations of a module of a trained model, computed on the training samples of that model's run."""

    samples: int | None = setting("training samples of the run to read, evenly spaced; null: all", low=1)
    source_batch: int = setting("consecutive samples of a block, for which the model runs once", low=1)
    window: int = setting("least number of activations that are shuffled together, those of a random choice of blocks", low=1)
    stored: bool = setting("true: write the activations to disk before the training; false: compute them when they are read")
    folder: str | None = setting("folder of stored activations; null: one below run.root/activations, named after their content")


@dataclass(frozen=True)
class PlantedConfig(DataConfig, PlantedSettings):
    """Settings of data=planted: synthetic activations that are sums of known (planted) features; each epoch has new samples."""

    world: int = setting("seed of the planted features", low=0)
    train_samples: int = setting("training samples of an epoch", low=1)
    validation_samples: int = setting("validation samples", low=1)


SCHEMAS: dict[str, dict[str, type]] = {"data": {"activations": ActivationsConfig, "planted": PlantedConfig}, "model": MODELS}
KEYS: dict[str, type] = {"dictionary": ReadRunConfig}
CHOOSES = {"dictionary.run": ("data", "activations")}  # with this key, data=activations is the default
