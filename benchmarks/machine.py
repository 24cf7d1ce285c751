"""Describe the circumstances of a measurement (processor, load, versions, commit, command, date), and write numbers to a JSON file."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "timm", "lightning", "accelerate", "pillow", "simplejpeg")


def describe_machine() -> dict[str, str]:
    """Return {name: text} with date, command, commit, processor, load of the last minute, and versions."""
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": " ".join(["python -m " + _module(), *sys.argv[1:]]),
        "commit": _commit(),
        "cpu": f"{os.cpu_count()} x {_processor()}",
        "load": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _module() -> str:
    script = Path(sys.argv[0])
    return f"benchmarks.{script.parent.name if script.stem == '__main__' else script.stem}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str:
    folder = Path(__file__).parent
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=folder, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


def write_numbers(file: Path, found: Any) -> None:
    """Write `found` to `file` as JSON. A list of numbers, such as the seconds of all rounds, is on one line."""
    text = json.dumps(found, indent=1)
    file.write_text(re.sub(r"\[\s[^][{}\"]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")
