"""Report a system or an environment in which the program cannot run, and import modules without garbage collection.

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
    """Return one line with the reason why the program cannot run here, and the remedy: Windows, or a required package that is not
    installed. Return None if the program can run. Packages are looked up without importing them."""
    if sys.platform == "win32":
        return "linnaeus does not run on Windows; install it in the Windows Subsystem for Linux (WSL) and run it there"
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    hint = "activate its environment (source .venv/bin/activate), or install the program (pip install -e .)"
    return f"{sys.executable} does not have {', '.join(missing)}; {hint}" if missing else None


@contextlib.contextmanager
def without_collection(module: str = "torch") -> Iterator[None]:
    """Return a context manager in which the garbage collector is off, for the import of `module`. It has no effect if the module is already
    imported, or if the collector is off.

    The import of torch creates about 200,000 objects that live as long as the process. The collector would visit them several times, which
    takes 0.3 s of the 1.8 s to the first step, and a third of the import of timm. After torch, which `main.py` imports first, all objects
    are excluded from later collections."""
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if module == "torch":
            gc.freeze()
        gc.enable()
