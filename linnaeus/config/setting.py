"""`setting`: define a field of a configuration dataclass, with its meaning and limits.

Values are in `conf/*.yaml`; types, meanings and limits are in frozen dataclasses. Only entries of mappings whose names the user chooses
(`schedule.phases`) are not in `conf/`; for their keys a field may have a `default`.
"""

from __future__ import annotations

import copy
import dataclasses
import types
import typing
from typing import Any

Durations = list[str]  # "500steps", "2epochs", "10%", "15min"; an empty list means never


def setting(
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    duration: str = "",
    step: bool = False,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Return a dataclass field with its limits, required unless `default` is given. `meaning`: the text about the field in `--help` and in
    the YAML comments.

    `choices`: the allowed texts; a field of type `str | int` also takes integers, and `str | bool` also takes false, and true if the
    choices have the text `true`. `low` and `high` are inclusive limits, `above` and `below` exclusive ones; in a list or mapping they apply
    to each value. `duration` names the allowed units: "length" (steps, epochs), "update" (also %), "any" (also wall time) or "clock" (only
    wall time).
    `step`: the text may be the number of a step, so an integer is converted to a text."""
    metadata = {"meaning": meaning, "choices": choices, "low": low, "high": high, "above": above, "below": below, "duration": duration}
    metadata["step"] = step
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default_factory=lambda: copy.copy(default))


def entry_type(annotation: Any) -> Any:
    """If `annotation` is a mapping, return the type of its values: `PhaseConfig` for `dict[str, PhaseConfig] | None`. Otherwise return
    None."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    alternatives = typing.get_args(annotation) if is_union else (annotation,)
    return next((typing.get_args(one)[1] for one in alternatives if typing.get_origin(one) is dict), None)


def allowed_values(choices: tuple[str, ...], annotation: Any) -> list[str]:
    """Return the values that a field with these `choices` may have, as texts for messages and help; [] without choices.

    For the type `str | bool`, `false` comes before the choices. For `str | int`, `N` (any integer) comes after them."""
    alternatives = typing.get_args(annotation)
    return ["false"] * (bool in alternatives) + [*choices] + ["N"] * (int in alternatives) if choices else []
