"""Write summary.json, the results of a run in machine-readable form."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.files import to_json, write_atomic

STATUSES = ("running", "finished", "stopped_early", "interrupted", "failed")
DEFAULTS: dict[str, Any] = {"best": {}, "final": {}, "samples_per_second": None, "wall_seconds": None}


def write_summary(path: Path | str, status: str, global_step: int, **values: Any) -> None:
    """Write summary.json to `path`, at each change of the run's status. NaN and infinities become null.

    status: one of `STATUSES`. values: further entries, such as `best`: {monitored metric: {value, global_step}}; `final`: the newest
    metrics, such as `val/species/top1`; and `wall_seconds`: the time of all launches."""
    assert status in STATUSES, status
    content = {"status": status, "global_step": global_step} | DEFAULTS | values
    write_atomic(path, to_json(strict(content)))


def strict(value: Any) -> Any:
    """Return a copy of `value` with None in place of NaN and infinities, which JSON does not have. value: nested dicts and lists."""
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
