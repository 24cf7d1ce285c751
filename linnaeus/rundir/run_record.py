"""What a run ran on, in run.json: commit, versions, host. Nothing is imported to learn its version."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError

RECORD, LAUNCH = "run.json", "launch.json"
ONLY_OF_A_LAUNCH = ("pid", "changes")
PACKAGES = ("linnaeus", "torch", "torchvision", "timm", "numpy", "hydra-core", "omegaconf", "pillow", "pyarrow", "safetensors", "wandb")


def package_versions() -> dict[str, str]:
    """Installed versions of what the results may depend on; a package that is not installed is left out."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


# What bit-identical results hang on besides the configuration: key of run.json -> what it is called.
DECISIVE = {
    "data_fingerprint": "the data",
    "world_size": "the number of processes",
    "devices": "the device",
    "commit": "the commit of linnaeus",
    "python": "python",
}


def record_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`what: old -> new` of everything recorded, besides the configuration, that the bits of a result may hang on. What one of the two
    does not say is left out."""
    lines = [
        f"{name}: {before[key]} -> {now[key]}"
        for key, name in DECISIVE.items()
        if before.get(key) is not None and now.get(key) is not None and before[key] != now[key]
    ]
    old, new = before.get("packages", {}), now.get("packages", {})
    return lines + [f"{name}: {old[name]} -> {new[name]}" for name in PACKAGES if name in old and name in new and old[name] != new[name]]


def git_commit() -> str | None:
    """The commit of this program's own checkout, with `-dirty` when files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def environment_record() -> dict[str, Any]:
    """Commit, versions, host and processors, for run.json."""
    return {
        "commit": git_commit(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def read_record(run: Path) -> tuple[dict[str, Any], str]:
    """(run.json of a run directory, a note for a person). Where it is damaged or gone, the newest launches/<n>/launch.json, which says the
    same, takes its place; empty in a directory without either. ConfigError when it is damaged and nothing can take its place."""
    file = run / RECORD
    record = _json_object(file)
    if record is not None:
        return record, ""
    launches = [path for path in run.glob(f"launches/*/{LAUNCH}") if path.parent.name.isdecimal()]
    for path in sorted(launches, key=lambda path: int(path.parent.name), reverse=True):
        record = _json_object(path)
        if record is not None and "run_id" in record:
            shared = {key: value for key, value in record.items() if key not in ONLY_OF_A_LAUNCH}
            return shared, f"{file} was damaged or gone; what {path} says is taken"
    if file.exists():
        raise ConfigError(
            f"run.root: {file} is damaged, and no {LAUNCH} of {run / 'launches'} can take its place; put a copy of it back, "
            "or choose another run.name"
        )
    return {}, ""


def _json_object(file: Path) -> dict[str, Any] | None:
    """None when there is no such file or it holds something else; OSError when it cannot be read now."""
    try:
        content = json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
