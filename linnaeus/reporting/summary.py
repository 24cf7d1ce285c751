"""summary.json: status and results of a run in machine-readable form, rewritten at each change of status."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.files import write_atomic

STATUSES = ("running", "finished", "stopped_early", "interrupted", "failed")


def write_summary(
    path: Path | str,
    status: str,
    global_step: int,
    *,
    best: Mapping[str, Any] | None = None,
    final: Mapping[str, float] | None = None,
    samples_per_second: float | None = None,
    wall_seconds: float | None = None,
    **more: Any,
) -> None:
    """Write the summary to `path`. NaN and infinities become null.

    `final`: metrics such as `val/species/top1`. `best`: `{monitor: {value, global_step}}`. `wall_seconds` is that of all launches."""
    assert status in STATUSES, status
    content = {
        "status": status,
        "global_step": global_step,
        "best": dict(best or {}),
        "final": dict(final or {}),
        "samples_per_second": samples_per_second,
        "wall_seconds": wall_seconds,
        **more,
    }
    write_atomic(path, json.dumps(_strict(content), indent=2, allow_nan=False) + "\n")


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
