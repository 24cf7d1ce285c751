"""What a finished run should have on the disk and has not, as far as it can still be made without training it all again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.damage import CheckpointDamaged
from linnaeus.checkpoint.format import step_name, verify
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.files import read_or_refuse

SUMMARY = "summary.json"
ENDED = ("finished", "stopped_early")
_TAIL = 4 << 20  # bytes at the end of metrics.jsonl that hold the rows of the last step


def read_summary(path: Path) -> dict[str, Any]:
    """summary.json of a run directory; empty when there is none yet, or none that can be read."""
    try:
        summary = json.loads((path / SUMMARY).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def missing_files(path: Path, config: Mapping[str, Any]) -> list[str]:
    """Names of what is missing in a run directory whose summary says that the run has ended: the checkpoint of its last step, results
    of its validations, the report. Everything is made from a checkpoint: where all were deleted, nothing is missing_files.
    ConfigError when the disk cannot be read now."""
    summary, checkpoints = read_summary(path), path / "checkpoints"
    if not list_checkpoints(checkpoints):
        return []
    missing = []
    last = checkpoints / step_name(summary.get("global_step", 0))
    if config.get("schedule", {}).get("checkpoint_at_end") and not _verifies(last):
        missing.append(f"checkpoints/{last.name}")
    results = (f"validation/{last.name}/{key}.json" for key in _validated(path / "metrics.jsonl", summary.get("global_step", 0)))
    missing += [name for name in results if not (path / name).exists()]
    if config.get("logger", {}).get("report") and not (path / "report.html").exists():
        missing.append("report.html")
    return missing


def _validated(rows: Path, step: int) -> list[str]:
    """The validation passes of the last step, as its rows at the end of the file name them."""
    if not rows.exists():
        return []
    with open(rows, "rb") as file:
        file.seek(max(0, rows.stat().st_size - _TAIL))
        lines = file.read().splitlines()
    passes = set()
    for line in reversed(lines):
        row = json.loads(line) if line.startswith(b"{") and line.endswith(b"}") else {}
        if row.get("global_step") != step:
            break
        passes |= {name.partition("/")[0].replace("val_ema", "val", 1) for name in row if name.startswith("val")}
    return sorted(passes)


def _verifies(checkpoint: Path) -> bool:
    try:
        read_or_refuse(lambda: verify(checkpoint))  # an ended run is not trained again because a disk is away
    except CheckpointDamaged:
        return False
    return True
