"""Choose the settings that are `auto` in `experiment=photos` from the data and the device (`linnaeus.config.choices`).

Each rule is a function of `Facts` and of the settings that are given or chosen already, and returns a value and its reason. The rules for
CPUs are based on trials in `benchmarks/README.md`, the rules for GPUs on common practice. Every command imports this module, so torch and
numpy are imported only within functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from linnaeus.config.choices import AUTO, Choice
from linnaeus.errors import ConfigError
from linnaeus.schedule.length import training_samples
from linnaeus.workloads.taxonomy.augment_config import choose_place

if TYPE_CHECKING:
    import numpy as np

    from linnaeus.config.schema import Config
    from linnaeus.config.schema_optimization import OptimizerConfig
    from linnaeus.workloads.taxonomy.observations import Source
    from linnaeus.workloads.taxonomy.observations.metadata_signal import Signal

KEYS: dict[str, Any] = {  # key -> value that is used if the data are not read; in the order in which they are chosen
    "model.backbone": "resnet10t",
    "trainer.precision": "float32",
    "trainer.global_batch_size": 64,
    "optimizer.lr": 0.003,
    "optimizer.layer_decay": None,
    "data.image_size": 64,
    "trainer.length": "30epochs",
    "data.components": ["SPATIAL", "TEMPORAL", "ELEVATION"],
}
SIDES = (64, 96, 128)  # sides of images on a CPU, in pixels
CPU_SECONDS = 600.0  # time of one core that training on a CPU may take
SECONDS_PER_IMAGE = 2.7e-3  # time of one core for forward, backward and data of resnet10t at 64 px in bf16; proportional to the area
FLOAT32 = 1.9  # time in float32 / time in bf16
EPOCHS, UPDATES = 60, 1500  # larger images are chosen only if at least as many epochs and updates remain
DOUBTFUL = range(50, 10_000)  # photographs with a component: it is read if it has a signal; with more always, with fewer never
GPU_IMAGES = 8e6  # images of a run on a GPU
SMALLEST_BATCH = 16
DEEP, FIRST_LAYER = 12, 1 / 30  # layers of a deep network, and in such a one the rate of the first layer / that of the head
MOST_EPOCHS = {"cpu": 300, "cuda": 100}


@dataclass(frozen=True)
class Facts:
    """Properties of the data and the device from which the `auto` settings are chosen."""

    rows: int  # training photographs
    known: dict[str, int]  # metadata component -> training photographs that have it
    side: int  # side of a square whose area is the median area of the photographs, in pixels
    device: str  # cpu or cuda
    has_bf16: bool  # the device computes in bf16
    pretrained: bool  # training starts from pretrained weights
    weights: str | None = None  # model.pretrained_file
    signals: dict[str, Signal] = field(default_factory=dict)  # component -> what it tells about the labels, if its number is `DOUBTFUL`


_facts: dict[str, Facts] = {}  # configuration of data and device -> facts that this process has found
Settings = dict[str, Any]  # key -> value of settings that are given or chosen already
Rule = Callable[[Facts, Settings], tuple[Any, str]]


def choose(config: Config, keys: Sequence[str]) -> tuple[list[Choice], Source | None]:
    """Return a choice for each of `keys` (settings that are `auto`), and the data source, with images of the chosen size.

    The second result is None if the source was not read (an earlier call read the same data, and its facts are cached), or if the source
    cannot change its image size.

    Raise `ConfigError` if the data cannot be read, and in the cases of `check_rate`."""
    from linnaeus.workloads.taxonomy.data_source import build_data_source

    if "optimizer.lr" in keys:
        check_rate(config.optimizer)
    device = find_device(config)
    read = repr((config.data, device, config.model))
    source = None
    if read not in _facts:  # a sweep chooses for each of its trials, mostly of the same data
        source = build_data_source(config)[0]
        _facts[read] = find_facts(config, source, device)
    facts = replace(_facts[read], rows=training_samples(config, _facts[read].rows))
    known = {"trainer.length": config.trainer.length, "data.image_size": config.data.image_size}
    known |= {"trainer.precision": config.trainer.precision, "trainer.global_batch_size": config.trainer.global_batch_size}
    known["model.backbone"] = getattr(config.model, "backbone", None)
    given = {key: value for key, value in known.items() if key not in keys}
    choices = []
    for key in KEYS:
        if key in keys:
            value, reason = RULES[key](facts, given)
            given[key] = value
            choices.append(Choice(key, value, reason))
    return choices, None if source is None else with_image_size(source, config, given["data.image_size"])


def notes_of_defaults(config: Config) -> tuple[str, ...]:
    """Return a note if a run on other data than the demo's names no experiment and has the demo's model."""
    if config.data.name == "biota" or config.run.experiment != config.data.name or config.model.name != "mformer":
        return ()
    return ("model, image size, length and learning rate are those of the demo; experiment=photos chooses them for your photographs",)


def choose_at_start(config: Config, device: str) -> list[Choice]:
    """Return a choice for `augment.place` if it is `auto`. device: "cuda" or "cpu", of the training."""
    return [Choice("augment.place", *choose_place(config.augment, device))] if config.augment.place == AUTO else []


def check_rate(optimizer: OptimizerConfig) -> None:
    """Raise `ConfigError` if the rule for the learning rate does not fit: it is for AdamW, and its result is scaled with the batch already.

    SGD with the rate of AdamW, and a rate that is scaled twice, would train a hundred times too slowly, without an error."""
    if optimizer.name != "adamw":
        raise ConfigError(f"optimizer.lr=auto is for optimizer=adamw; set optimizer.lr to a learning rate for optimizer={optimizer.name}")
    if optimizer.lr_scaling != "none":
        raise ConfigError(
            f"optimizer.lr=auto is scaled with the batch already, and optimizer.lr_scaling={optimizer.lr_scaling} would scale it again; "
            "set optimizer.lr_scaling=none, or optimizer.lr"
        )


def with_image_size(source: Source, config: Config, image_size: int) -> Source | None:
    """Return a copy of `source` whose photographs are decoded for `image_size`; None if the source does not consist of photographs."""
    from linnaeus.workloads.taxonomy.images.photographs import PhotographReader

    if not isinstance(source.images, PhotographReader):
        return None
    return dataclasses.replace(source, images=PhotographReader(source.images.files, image_size, config.data.max_image_pixels))


def find_device(config: Config) -> str:
    """Return "cuda" or "cpu": the value of trainer.device, even if this machine does not have that device. For the value auto, return
    "cuda" if this machine has a GPU, else "cpu"."""
    import torch

    if config.trainer.device != "auto":
        return config.trainer.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def find_facts(config: Config, source: Source, device: str) -> Facts:
    """Return the properties of a data source and a device that the rules read. `device`: "cuda" or "cpu"."""
    import numpy as np
    import torch

    from linnaeus.workloads.taxonomy.observations import TRAIN
    from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, presence
    from linnaeus.workloads.taxonomy.observations.metadata_signal import signal_of

    rows = np.flatnonzero(source.split == TRAIN)
    model = config.model
    known = presence(source.metadata.take(rows), COMPONENTS)
    return Facts(
        rows=len(rows),
        known=dict(zip(COMPONENTS, known.sum(0).tolist(), strict=True)),
        side=median_side(source, rows),
        device=device,
        has_bf16=cpu_has_bf16() if device == "cpu" else not torch.cuda.is_available() or torch.cuda.is_bf16_supported(),
        pretrained=bool(getattr(model, "pretrained", False) or getattr(model, "pretrained_file", None)),
        weights=getattr(model, "pretrained_file", None),
        signals={name: signal_of(source, name, rows[own]) for name, own in zip(COMPONENTS, known.T, strict=True) if own.sum() in DOUBTFUL},
    )


def median_side(source: Source, rows: np.ndarray) -> int:
    """Return the side, in pixels, of a square whose area is the median area of up to 64 photographs; 224 if unknown. The sizes are read
    from the headers of the photographs."""
    from linnaeus.workloads.taxonomy.images.photographs import PhotographReader

    if not isinstance(source.images, PhotographReader):
        return 224
    areas = [source.images.area(int(row)) for row in rows[:: math.ceil(len(rows) / 64)]]
    known = sorted(area for area in areas if area)
    return math.isqrt(known[len(known) // 2]) if known else 224


def cpu_has_bf16() -> bool:
    """Return True if this CPU has instructions for bf16 matrix products (AVX-512 or AMX). Without them bf16 is slower than float32."""
    import torch

    tests = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(test is not None and test() for test in tests)


def choose_backbone(facts: Facts, given: Settings) -> tuple[str, str]:
    if facts.weights is not None:
        from linnaeus.workloads.taxonomy.models.timm_weights import find_network

        return find_network(facts.weights), "the network of model.pretrained_file"
    if facts.device == "cuda":
        return "resnet50", "a common network for a GPU"
    return "resnet10t", "a small network for a CPU"


def choose_precision(facts: Facts, given: Settings) -> tuple[str, str]:
    if facts.has_bf16:
        return "bf16", "this device has instructions for it, and is about twice as fast"
    return "float32", "this device does not have instructions for bf16"


def choose_batch(facts: Facts, given: Settings) -> tuple[int, str]:
    most = 64 if facts.device == "cpu" else 256
    size = max(SMALLEST_BATCH, min(most, 2 ** int(math.log2(max(facts.rows / 10, 1)))))
    if size * 10 > facts.rows:
        return size, f"the smallest that is chosen, for {facts.rows:,} photographs"
    return size, f"at least 10 updates an epoch of {facts.rows:,} photographs, and at most {most} samples"


def choose_lr(facts: Facts, given: Settings) -> tuple[float, str]:
    batch = min(given["trainer.global_batch_size"], facts.rows)  # an update has no more samples than an epoch
    rate, start = 3e-3, "random weights"
    if facts.pretrained:
        rate, start = (1e-3, "pretrained weights of a shallow network") if _is_shallow(given) else (5e-4, "pretrained weights")
    return round(rate * math.sqrt(batch / 64), 5), f"for {start} and batches of {batch}; grows with the root of the batch"


def choose_layer_decay(facts: Facts, given: Settings) -> tuple[float | None, str]:
    if not facts.pretrained:
        return None, "random weights: all layers learn at the same rate"
    layers = _layers(given)
    if layers == 0:
        return None, f"the order of the layers of {given['model.backbone']} is not known"
    if _is_shallow(given):
        return None, f"pretrained weights of {layers} layers; with fewer than {DEEP}, smaller rates of the lower layers cost accuracy"
    decay = round(FIRST_LAYER ** (1 / layers), 3)
    return decay, f"pretrained weights: the first of {layers} layers learns at 1/{1 / FIRST_LAYER:.0f} of the rate of the head"


def _layers(given: Settings) -> int:
    """Return the number of layers of the network below its head; 0 if it is not known."""
    from linnaeus.workloads.taxonomy.models.timm_backbone import count_layers

    return count_layers(given["model.backbone"])


def _is_shallow(given: Settings) -> bool:
    return 0 < _layers(given) < DEEP


def choose_image_size(facts: Facts, given: Settings) -> tuple[int, str]:
    most = max(32, facts.side // 32 * 32)
    if facts.device == "cuda" or facts.pretrained:
        if most < 224:
            return most, f"the photographs are about {facts.side} px"
        return 224, "common for a GPU" if facts.device == "cuda" else "the size that pretrained weights expect"
    chosen = SIDES[0]
    for side in SIDES[1:]:
        epochs = _cpu_epochs(facts, given, side)  # whatever the length: a longer run has the same size
        updates = epochs * facts.rows / given["trainer.global_batch_size"]
        chosen = side if epochs >= EPOCHS and updates >= UPDATES else chosen
    reason = f"the largest with which {CPU_SECONDS:.0f} s of one core are {EPOCHS} epochs and {UPDATES} updates, or else {SIDES[0]}"
    return min(chosen, most), reason if chosen <= most else f"the photographs are about {facts.side} px"


def choose_length(facts: Facts, given: Settings) -> tuple[str, str]:
    most = MOST_EPOCHS[facts.device]
    if facts.device == "cuda":
        epochs = min(most, max(12, GPU_IMAGES / facts.rows))
        return f"{epochs:.0f}epochs", f"about {GPU_IMAGES / 1e6:.0f} million images, at least 12 and at most {most} epochs"
    epochs = max(10, min(most, _cpu_epochs(facts, given, given["data.image_size"])))
    return f"{epochs:.0f}epochs", f"about {CPU_SECONDS / 60:.0f} minutes of one core; at least 10 and at most {most} epochs"


def choose_components(facts: Facts, given: Settings) -> tuple[list[str], str]:
    many = [name for name, rows in facts.known.items() if rows >= DOUBTFUL.stop]
    chosen = [name for name in facts.known if name in many or (name in facts.signals and facts.signals[name].certain)]
    counts = ", ".join(f"{name} {rows:,}{_gain(facts.signals.get(name))}" for name, rows in facts.known.items())
    return chosen, (
        f"components that {DOUBTFUL.stop:,} training photographs have, or whose near values have like labels; photographs, and how much "
        f"more probable a label is given those of the nearest values: {counts}"
    )


def _gain(signal: Signal | None) -> str:
    if signal is None:
        return ""
    return f" ({math.exp(signal.gain):.2f} times{'' if signal.certain else ', not certain'})"


def _cpu_epochs(facts: Facts, given: Settings, side: int) -> float:
    """Return the number of epochs with images of `side` pixels that one core can compute in `CPU_SECONDS`."""
    factor = 1.0 if given["trainer.precision"] == "bf16" else FLOAT32
    return CPU_SECONDS / (facts.rows * SECONDS_PER_IMAGE * factor * (side / 64) ** 2)


RULES: dict[str, Rule] = {
    "model.backbone": choose_backbone,
    "trainer.precision": choose_precision,
    "trainer.global_batch_size": choose_batch,
    "optimizer.lr": choose_lr,
    "optimizer.layer_decay": choose_layer_decay,
    "data.image_size": choose_image_size,
    "trainer.length": choose_length,
    "data.components": choose_components,
}
