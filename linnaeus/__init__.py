"""linnaeus: an exactly resumable trainer for hierarchical species classifiers and other research programs.

model = linnaeus.load_model("RUN or BUNDLE")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__version__ = "0.1.0"
__all__ = ["load_model"]


def load_model(path: str | Path, **options: Any) -> Any:
    """Return the trained model in a run directory, or in a bundle written by `linnaeus export`, as an object for prediction.

    `options` are the keyword arguments that the workload of the model defines. Raise `ConfigError`, a `ValueError` with a
    message of one line, if the model cannot be loaded."""
    from linnaeus.workloads.trained_models import load

    return load(Path(path), options)
