"""`RunFiles`: the files of a run directory from which its report is made. A missing or damaged file makes the report shorter."""

import csv
import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.reporting.report.decimation import Curve, read_curves
from linnaeus.rundir.saved_config import CONFIG, parse_config

Rows = list[dict[str, str]]


class RunFiles:
    """Files of the run in the directory `path`; each is read when it is first used."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def title(self) -> str:
        return " / ".join(self.path.resolve().parts[-2:])

    @cached_property
    def metrics(self) -> dict[str, Curve]:
        return read_curves(self.path / "metrics.jsonl")

    @cached_property
    def timings(self) -> dict[str, Curve]:
        return read_curves(self.path / "timings.jsonl")

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_json(self.path / "summary.json") or {}

    @cached_property
    def record(self) -> dict[str, Any]:
        return read_json(self.path / "run.json") or {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return config.yaml; {} if it is missing or damaged."""
        path = self.path / CONFIG
        return (parse_config(path.read_bytes()) or {}) if path.is_file() else {}

    @cached_property
    def final(self) -> dict[str, float | None]:
        """Return the newest value of each validation metric: those of summary.json, and before it has any, those of the rows."""
        own = self.summary.get("final") or {}
        return own or {name: curve.last[1] for name, curve in self.metrics.items() if name.startswith("val") and curve.count}

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "running"))

    @property
    def step(self) -> int | None:
        """Return the number of updates made; None if no file has it."""
        last = max((int(curve.last[0]) for curve in self.metrics.values()), default=None)
        return self.summary.get("global_step", last)

    @property
    def total_steps(self) -> int | None:
        return self.summary.get("total_steps")

    @cached_property
    def differences(self) -> dict[str, tuple[float, float]]:
        """Return the intervals of the differences between validation passes, see `pass_differences`."""
        from linnaeus.reporting.report.metric_words import passes_and_tasks
        from linnaeus.reporting.report.pass_differences import pass_differences

        return pass_differences(self, passes_and_tasks(self.final)[0])

    @cached_property
    def tables_folder(self) -> Path | None:
        """Return the newest folder validation/step-N with more than the results of passes: tables or examples; None without one."""
        found = [path.parent for path in self.path.glob("validation/step-*/*") if path.suffix == ".csv" or not path.name.startswith("val")]
        return max(found, key=lambda folder: (len(folder.name), folder.name), default=None)

    def table(self, name: str, key: str = "val") -> Rows:
        """Return the rows of a table of the last validation, such as `classes`; [] if it does not exist. `key`: the validation pass."""
        return [] if self.tables_folder is None else read_table(self.tables_folder / f"{key}-{name}.csv")

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON file beside the tables of the last validation; {} if it does not exist."""
        return {} if self.tables_folder is None else read_json(self.tables_folder / name) or {}

    def text(self, name: str) -> str:
        """Return a text file of the run directory; "" if it does not exist."""
        path = self.path / name
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the objects of a small JSONL file of the run directory; damaged lines are left out."""
        found = []
        for line in self.text(name).splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            found += [row] if isinstance(row, dict) else []
        return found


def read_table(path: Path) -> Rows:
    """Return the rows of a CSV file; [] if it does not exist."""
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def open_run(path: Path) -> RunFiles:
    """Return the files of a run directory. Raise `ConfigError` if `path` is not one."""
    if not (path / "run.json").exists():
        raise ConfigError(f"{path} is not a run directory: it has no run.json; give a folder such as outputs/biota/1a2b3c4d5e")
    return RunFiles(path)


def half_width(final: Mapping[str, Any], key: str) -> float:
    """Return half the width of the 95 % interval of `final[key]`; infinity if it has no interval."""
    low, high = final.get(f"{key}_low"), final.get(f"{key}_high")
    return (high - low) / 2 if low is not None and high is not None else math.inf
