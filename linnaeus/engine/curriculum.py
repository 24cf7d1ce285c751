"""Where the curriculum of a run stands: in the update made last, whose learning rate is told too; before the first, where it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from linnaeus.engine.training import Training


def curriculum_rows(t: Training) -> dict[str, float | str]:
    """For reports: `phase` and its description, and all the numbers; nothing without phases."""
    found = t.ops.get_phase(_update(t))
    return {"phase": found[0], "phase/description": found[1]} | curriculum_numbers(t) if found is not None else {}


def curriculum_numbers(t: Training) -> dict[str, float]:
    """For rows of metrics too: `phase/lr_multiplier`, `phase/mixture/<source>`, `phase/dimension/<name>`; nothing without phases."""
    if t.ops.resolved.phases is None:
        return {}
    step = _update(t)
    rows = {"phase/lr_multiplier": t.ops.get_lr_multiplier(step)}
    sources, dimensions = getattr(t.workload, "sources", ()), getattr(t.workload, "dimensions", ())
    if sources:
        mixture = t.ops.get_mixture(np.array([step]), sources, t.workload.source_sizes)[0]
        rows |= {f"phase/mixture/{name}": share for name, share in zip(sources, mixture.tolist(), strict=True)}
    if dimensions:
        weights = t.ops.get_dimension_weights(np.array([step]), dimensions)[0]
        rows |= {f"phase/dimension/{name}": weight for name, weight in zip(dimensions, weights.tolist(), strict=True)}
    return rows


def _update(t: Training) -> int:
    """`global_step` before the update made last."""
    return max(0, t.progress.global_step - 1)
