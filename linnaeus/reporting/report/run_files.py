"""Define `RunFiles`, the files of a run directory from which its report is made. Without a file, the report lacks what it would show."""

import csv
import json
import math
from collections.abc import Mapping
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import from_finite, read_json
from linnaeus.reporting.report.decimation import Curve, read_curves
from linnaeus.rundir.saved_config import CONFIG, parse_config

Rows = list[dict[str, str]]
Final = dict[str, float | None]


class RunFiles:
    """Contents of the files in the run directory `path`. A file is read at the first access. Missing and damaged files are empty."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def title(self) -> str:
        """Return `<experiment> / <run name>`, the last two parts of the path."""
        return " / ".join(self.path.resolve().parts[-2:])

    @cached_property
    def metrics(self) -> dict[str, Curve]:
        """Return key -> curve of metrics.jsonl."""
        return read_curves(self.path / "metrics.jsonl")

    @cached_property
    def timings(self) -> dict[str, Curve]:
        """Return key -> curve of timings.jsonl."""
        return read_curves(self.path / "timings.jsonl")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json; {} if the file does not exist or does not contain a JSON object."""
        return read_json(self.path / "summary.json") or {}

    @cached_property
    def record(self) -> dict[str, Any]:
        """Return run.json."""
        return read_json(self.path / "run.json") or {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return config.yaml; {} if it is missing or damaged."""
        path = self.path / CONFIG
        return (parse_config(path.read_bytes()) or {}) if path.is_file() else {}

    @cached_property
    def results(self) -> tuple[int, Final]:
        """Return (step of the newest validation, key -> newest value of its metrics), from the files in `validation/`; (-1, {}) without
        any. The metrics are in the order of the workload, while those in metrics.jsonl are sorted by name."""
        newest, found = -1, Final()
        for path in sorted(self.path.glob("validation/step-*/val*.json"), key=lambda path: (len(path.parent.name), path)):
            content = read_json(path) or {}
            if isinstance(content.get("metrics"), dict) and isinstance(content.get("global_step"), int):
                newest = max(newest, content["global_step"])
                found |= _numbers(from_finite(content["metrics"]))
        return newest, found

    @cached_property
    def final(self) -> Final:
        """Return key -> newest value of the validation metrics, from summary.json. During a launch, summary.json has no metrics, or those
        of the launch before; then from `results`, or if that is empty, from metrics.jsonl."""
        own = _numbers(self.summary.get("final"))
        if self.ended and own:
            return own
        rows: Final = {name: curve.last[1] for name, curve in self.metrics.items() if name.startswith("val") and curve.count}
        return self.results[1] or rows or own

    @property
    def status(self) -> str:
        """Return the status in summary.json, one of `results.STATUSES`; `running` without it."""
        return str(self.summary.get("status", "running"))

    @property
    def ended(self) -> bool:
        """Return True if summary.json was written at the end of the last launch. During a launch, and after it was killed, only its status
        is new; all other values are those of the launch before."""
        return self.status != "running"

    @property
    def step(self) -> int | None:
        """Return the number of updates so far; None if no file has it."""
        curves = (curve for stream in (self.metrics, self.timings) for curve in stream.values() if curve.count)
        last = max((int(curve.last[0]) for curve in curves), default=None)
        own = self.summary.get("global_step")
        return own if isinstance(own, int) and (self.ended or last is None) else last

    @property
    def total_steps(self) -> int | None:
        """Return the number of updates of the whole run, from summary.json, or during a launch from the newest report; None if unknown."""
        own = self.summary.get("total_steps")
        if isinstance(own, int) and self.ended:
            return own
        reported = read_curves(self.path / "reports.jsonl").get("progress/total_steps")
        return int(reported.last[1]) if reported is not None and reported.count else own

    @cached_property
    def last_timings(self) -> dict[str, float]:
        """Return the timings of the last launch, from summary.json, or during a launch the newest value of each in timings.jsonl."""
        found = {name: curve.last[1] for name, curve in self.timings.items() if curve.count}
        if self.ended:
            totals = {f"time/{name}": self.summary.get(name) for name in ("samples_per_second", "wall_seconds")}
            found |= {name: value for name, value in _numbers((self.summary.get("timings") or {}) | totals).items() if value is not None}
        return found

    @cached_property
    def differences(self) -> dict[str, tuple[float, float]]:
        """Return key -> ends of the interval of its difference from the normal validation pass, see `pass_differences`."""
        from linnaeus.reporting.report.metric_words import passes_and_tasks
        from linnaeus.reporting.report.pass_differences import pass_differences

        return pass_differences(self, passes_and_tasks(self.final)[0])

    @cached_property
    def tables_folder(self) -> Path | None:
        """Return the newest folder validation/step-N that has tables or examples besides the results of passes. Return None if there is
        none, or if the results of a later step exist, which the tables then do not belong to."""
        files = self.path.glob("validation/step-[0-9]*/*")
        found = [path.parent for path in files if path.suffix == ".csv" or not path.name.startswith("val")]
        newest = max(found, key=lambda folder: (len(folder.name), folder.name), default=None)
        return newest if newest is not None and int(newest.name.rpartition("-")[2]) >= self.results[0] else None

    def table(self, name: str, key: str = "val") -> Rows:
        """Return the rows of the table `name` of the last validation, such as `classes`; [] if it does not exist. key: the validation
        pass."""
        return [] if self.tables_folder is None else read_table(self.tables_folder / f"{key}-{name}.csv")

    def json(self, name: str) -> dict[str, Any]:
        """Return the JSON file `name` beside the tables of the last validation; {} if it does not exist."""
        return {} if self.tables_folder is None else read_json(self.tables_folder / name) or {}

    def text(self, name: str) -> str:
        """Return the text of the file `name` in the run directory; "" if it does not exist."""
        path = self.path / name
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the objects in the JSONL file `name` in the run directory, which is read at once. Damaged lines are left out."""
        found = []
        for line in self.text(name).splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            found += [row] if isinstance(row, dict) else []
        return found


def read_table(path: Path) -> Rows:
    """Return the rows of a CSV file (column -> text) before the first damaged one; [] if the file does not exist."""
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        try:
            return list(takewhile(lambda row: None not in row and None not in row.values(), csv.DictReader(file)))
        except csv.Error:
            return []


def open_run(path: Path) -> RunFiles:
    """Return the files of a run directory. Raise `ConfigError` if `path` is not one."""
    if not (path / "run.json").exists():
        raise ConfigError(f"{path} is not a run directory: it has no run.json; give a folder such as outputs/biota/1a2b3c4d5e")
    return RunFiles(path)


def _numbers(metrics: Any) -> Final:
    """Return the numbers in the mapping `metrics` by key, None for null and for numbers that are not finite; {} if it is not a mapping."""
    if not isinstance(metrics, dict):
        return {}
    known = {name: value for name, value in metrics.items() if value is None or (isinstance(value, (int, float)) and value is not True)}
    return {name: value if value is not None and math.isfinite(value) else None for name, value in known.items()}


def half_width(final: Mapping[str, Any], key: str) -> float:
    """Return half the width of the 95 % interval of `final[key]`; infinity if it has no interval."""
    low, high = final.get(f"{key}_low"), final.get(f"{key}_high")
    return (high - low) / 2 if low is not None and high is not None else math.inf
