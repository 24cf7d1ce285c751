"""The packages that the program needs, by the name under which Python imports them. Import only the standard library here."""

import importlib.util

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
