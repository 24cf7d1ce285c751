"""List the packages that the program needs, by the name under which Python imports them, and import torch without garbage collection.

This module imports only the standard library, so that it can report a missing package.
"""

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator

# simplejpeg is not in this list: without it Pillow decodes JPEG to the same pixels.
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
    """Return the pip names of the required packages that are not installed. The packages are found, not imported."""
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Switch the garbage collector off within the block, for the import of torch, and exclude the objects created there from later
    collections.

    The import creates about 200,000 objects that live as long as the process. Otherwise the collector would visit them several times, which
    takes 0.3 s of the 1.8 s to the first step. This has no effect if torch is already imported."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
