"""Read summary.json of a run, and list the files that a finished run has lost and that can be made again from its checkpoints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.format import step_name
from linnaeus.checkpoint.loading import CheckpointDamaged, verify
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.files import json_object, read_json, read_or_refuse

SUMMARY = "summary.json"
ENDED = ("finished", "stopped_early")  # values of `status`
_TAIL = 4 << 20  # bytes at the end of metrics.jsonl that contain the rows of the last step


def read_summary(path: Path) -> dict[str, Any]:
    """Return summary.json of a run directory, or {} if the file does not exist or is damaged. Raise `OSError` if it exists and cannot be
    read."""
    summary = read_json(path / SUMMARY) or {}
    return summary if isinstance(summary.get("global_step", 0), int) else {}


def missing_files(path: Path, config: Mapping[str, Any], damaged: Sequence[str] = ()) -> list[str]:
    """Return the names of the missing files of a finished run: the last checkpoint, validation results, the report, and the files in
    `damaged`.

    All of these are made from a checkpoint, so return [] if every checkpoint was deleted. Raise `ConfigError` if the disk cannot be read at
    present."""
    summary, checkpoints = read_summary(path), path / "checkpoints"
    if not list_checkpoints(checkpoints):
        return []
    missing = list(damaged)
    last = checkpoints / step_name(summary.get("global_step", 0))
    if config.get("schedule", {}).get("checkpoint_at_end") and not _verifies(last):
        missing.append(f"checkpoints/{last.name}")
    results = (f"validation/{last.name}/{key}.json" for key in _validated(path / "metrics.jsonl", summary.get("global_step", 0)))
    missing += [name for name in results if not (path / name).exists()]
    if config.get("logger", {}).get("report") and not (path / "report.html").exists():
        missing.append("report.html")
    return missing


def _validated(rows: Path, step: int) -> list[str]:
    """Return the keys of the validation passes that ran at `step`. They are read from the rows of this step at the end of metrics.jsonl
    (`rows`)."""
    if not rows.exists():
        return []
    with open(rows, "rb") as file:
        file.seek(max(0, rows.stat().st_size - _TAIL))
        lines = file.read().splitlines()
    passes = set()
    for line in reversed(lines):
        row = json_object(line)
        if row is None:  # damaged
            continue
        if row.get("global_step") != step:
            break
        passes |= {name.partition("/")[0].replace("val_ema", "val", 1) for name in row if name.startswith("val")}
    return sorted(passes)


def _verifies(checkpoint: Path) -> bool:
    try:
        read_or_refuse(lambda: verify(checkpoint))  # a failing disk must not cause a finished run to be trained again
    except CheckpointDamaged:
        return False
    return True
