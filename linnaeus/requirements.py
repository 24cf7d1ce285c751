"""Report a system or an environment in which the program cannot run, and import torch without garbage collection.

This module imports only the standard library, so that it can report a missing package.
"""

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator

# Import name -> pip name of the required packages. simplejpeg is not in this list: without it Pillow decodes JPEG to the same pixels.
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


def obstacle() -> str | None:
    """Return why the program cannot run here, with the remedy, as one line: Windows, or a required package that is not installed. None:
    it can run. The packages are found, not imported."""
    if sys.platform == "win32":
        return "linnaeus does not run on Windows; install it in the Windows Subsystem for Linux (WSL) and run it there"
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    hint = "activate its environment (source .venv/bin/activate), or install the program (pip install -e .)"
    return f"{sys.executable} does not have {', '.join(missing)}; {hint}" if missing else None


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
