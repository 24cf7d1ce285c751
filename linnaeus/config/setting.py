"""One setting of the configuration: its meaning and its limits, kept beside its type.

Values live in `conf/*.yaml`; types, meanings and limits live in frozen dataclasses whose fields are made with `setting`.
"""

from __future__ import annotations

import dataclasses
from typing import Any


def setting(
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    duration: str = "",
) -> Any:
    """A required dataclass field. `low`/`high` are inclusive limits, `above` and `below` exclusive ones; `duration` names what a
    duration string may be measured in: "update" (steps, epochs, %), "any" (minutes as well) or
    "clock" (minutes only)."""
    return dataclasses.field(
        metadata={"meaning": meaning, "choices": choices, "low": low, "high": high, "above": above, "below": below, "duration": duration}
    )
