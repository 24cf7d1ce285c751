"""linnaeus: an exactly resumable trainer for hierarchical species classifiers and other research programs.

model = linnaeus.load_model("RUN or BUNDLE")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__version__ = "0.1.0"
__all__ = ["load_model"]


def load_model(path: str | Path, **options: Any) -> Any:
    """Return the trained model of a run directory or a bundle (`linnaeus export`), for use. `options` are those of its workload.

    Raise `ConfigError`, a `ValueError` with one line, if it cannot be loaded."""
    from linnaeus.workloads.trained_models import load

    return load(Path(path), options)
