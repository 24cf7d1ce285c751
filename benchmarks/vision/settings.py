"""Networks and configurations that `benchmarks.vision` measures."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from linnaeus.config.load import compose
from linnaeus.config.schema import Config

CONF = Path(__file__).parents[1] / "conf"


class Network(NamedTuple):
    """A network of the benchmark.

    settings: those of the group `model`. batch: images of an update. channels_last: memory format. over_bare: bar, the largest ratio of our
    loop's time to the bare loop's; None: no bar. least: bar, the images per second that our loop must reach on an H100; None: no bar."""

    settings: tuple[str, ...]
    batch: int
    channels_last: bool = False
    over_bare: float | None = None
    least: int | None = None
    image_size: int = 224


def timm(backbone: str) -> tuple[str, ...]:
    return (f"model.backbone={backbone}",)


def mformer(size: str) -> tuple[str, ...]:
    return ("model=mformer", f"model.size={size}")


NETWORKS = {
    "vit_small": Network(timm("vit_small_patch16_224"), 256, False, 1.02, 8000),
    "vit_base": Network(timm("vit_base_patch16_224"), 256, False, 1.01, 2800),
    "vit_large": Network(timm("vit_large_patch16_224"), 128, False, 1.01, 940),
    "convnext_tiny": Network(timm("convnext_tiny"), 256, True, 1.01, 5400),
    "resnet50": Network(timm("resnet50"), 256, True, None, 6200),
    "mformer_small": Network(mformer("small"), 256),
    "mformer_base": Network(mformer("base"), 256),
    "test": Network(timm("test_vit"), 4, image_size=160),  # a tiny network, to test the benchmark on a CPU
}
PLAIN = ("data.ranks=[species]",)  # one softmax over the species
METADATA = ("data.components=[SPATIAL,TEMPORAL,ELEVATION]", "schedule.meta_mask_prob={start: 0.5, end: 0.5}")


def settings(name: str, batch: int, updates: int, epochs: int, root: Path, device: str, compiled: str, *more: str) -> list[str]:
    """Return the settings of a run of `epochs` epochs with `updates` updates of `batch` images each. `compiled`: trainer.compile."""
    network = NETWORKS[name]
    return [
        "experiment=vision",
        *network.settings,
        f"data.image_size={network.image_size}",
        f"data.train_samples={batch * updates}",
        f"trainer.global_batch_size={batch}",
        f"trainer.micro_batch_size={batch}",
        f"trainer.length={epochs}epochs",
        f"trainer.channels_last={str(network.channels_last).lower()}",
        f"trainer.device={device}",
        f"trainer.compile={compiled}",
        f"run.root={root}",
        *more,
    ]


def configure(words: list[str]) -> Config:
    return compose(words, CONF)
