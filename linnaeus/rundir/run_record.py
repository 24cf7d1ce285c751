"""Collect the content of run.json: commit, package versions and host of a run. No package is imported to read its version."""

import functools
import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

RECORD, LAUNCH = "run.json", "launch.json"
LAUNCH_ONLY_KEYS = ("pid", "changes")
PACKAGES = (
    "linnaeus",
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "hydra-core",
    "omegaconf",
    "pillow",
    "simplejpeg",
    "pyarrow",
    "safetensors",
    "wandb",
)


@functools.cache
def package_versions() -> dict[str, str]:
    """Return {name: version} of the installed packages that the results may depend on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


# Besides the configuration and packages, bit-identical results require these to be equal: key of run.json -> its name in messages.
REPRODUCIBILITY_KEYS = {
    "data_fingerprint": "the data",
    "world_size": "the number of processes",
    "devices": "the device",
    "commit": "the commit of linnaeus",
    "python": "python",
}


def record_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return lines `name: old -> new` for differences between two run.json contents that may change the last bits of results.

    An entry that is missing in `before` or in `now` is skipped."""
    lines = [
        f"{name}: {before[key]} -> {now[key]}"
        for key, name in REPRODUCIBILITY_KEYS.items()
        if before.get(key) is not None and now.get(key) is not None and before[key] != now[key]
    ]
    old, new = before.get("packages", {}), now.get("packages", {})
    return lines + [f"{name}: {old[name]} -> {new[name]}" for name in PACKAGES if name in old and name in new and old[name] != new[name]]


def created_at(record: Mapping[str, Any]) -> float:
    """Return the time of the first start in a run.json, in seconds since 1970; 0 if unknown. The text has the time zone of its host."""
    try:
        return datetime.fromisoformat(str(record.get("created"))).timestamp()
    except ValueError:
        return 0.0


@functools.cache
def git_commit() -> str | None:
    """Return the git commit of the program at the first call in this process, with `-dirty` appended if files differ from the commit; None
    if the program is not in a git checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def environment_record() -> dict[str, Any]:
    """Return the entries of run.json about the environment: commit, versions, host and number of cores."""
    return {
        "commit": git_commit(),
        "python": platform.python_version(),
        "packages": dict(package_versions()),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
