"""The packages that the program needs, by the name under which Python imports them, and their import without garbage collection.

Import only the standard library here."""

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator

# simplejpeg is the one dependency without which the program runs: Pillow decodes JPEG to the same pixels.
PACKAGES = {
    "torch": "torch",
    "torchvision": "torchvision",
    "timm": "timm",
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "numpy": "numpy",
    "PIL": "pillow",
    "pyarrow": "pyarrow",
    "safetensors": "safetensors",
    "rich": "rich",
    "wandb": "wandb",
    "tensorboard": "tensorboard",
}


def missing_packages() -> list[str]:
    """Return the packages that this Python does not have, by the names for pip. Nothing is imported."""
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Import torch in this block: garbage collection is off, and later collections leave out all objects that exist at the end.

    The import creates some 200,000 objects that live as long as the process. The collector visits them several times otherwise,
    which takes 0.3 s of the 1.8 s to the first step. Nothing happens where torch is imported already."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
