"""summary.json: status and results of a run in machine-readable form, rewritten at each change of status."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.files import write_atomic

STATUSES = ("running", "finished", "stopped_early", "interrupted", "failed")
DEFAULTS: dict[str, Any] = {"best": {}, "final": {}, "samples_per_second": None, "wall_seconds": None}


def write_summary(path: Path | str, status: str, global_step: int, **values: Any) -> None:
    """Write the summary to `path`. NaN and infinities become null.

    Of `values`, `best` is `{monitor: {value, global_step}}`, `final` are metrics such as `val/species/top1`, and `wall_seconds` is that of
    all launches."""
    assert status in STATUSES, status
    content = {"status": status, "global_step": global_step} | DEFAULTS | values
    write_atomic(path, json.dumps(_strict(content), indent=2, allow_nan=False) + "\n")


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
