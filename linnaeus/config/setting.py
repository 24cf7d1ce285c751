"""One setting of the configuration: its meaning and its limits, kept beside its type.

Values live in `conf/*.yaml`; types, meanings and limits live in frozen dataclasses whose fields are made with `setting`. Only the
entries of a mapping that the user names himself (`schedule.phases`) have no line in `conf/`: there `default` says what a key has that
an entry leaves out.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

Durations = list[str]  # "500steps", "2epochs", "10%", "15min"; an empty list is never


def setting(
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    duration: str = "",
    default: Any = dataclasses.MISSING,
) -> Any:
    """A dataclass field, required but for a `default`. `low`/`high` are inclusive limits, `above` and `below` exclusive ones, of each
    value of a mapping too; `duration` names what a duration string may be measured in: "update" (steps, epochs, %), "any" (minutes as
    well) or "clock" (minutes only)."""
    metadata = {"meaning": meaning, "choices": choices, "low": low, "high": high, "above": above, "below": below, "duration": duration}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default_factory=lambda: copy.copy(default))
