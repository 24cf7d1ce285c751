"""Define `RunFiles`, the files of a run directory from which report.html is made. If a file is missing, the report lacks the parts that
need it.
"""

import csv
import json
import math
import sys
from collections.abc import Mapping
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import TEMPORARY, from_finite, read_json
from linnaeus.reporting.report.downsampling import Curve, read_curves, read_rows
from linnaeus.rundir.lock import owner_has_ended
from linnaeus.rundir.saved_config import CONFIG, parse_config

Rows = list[dict[str, str]]
Final = dict[str, float | None]
_TYPES = {"status": str, "best": dict, "final": dict, "timings": dict}  # of entries of summary.json
_COUNTS = ("global_step", "total_steps")  # its entries that are numbers of updates


class RunFiles:
    """Contents of the files in the run directory `path`. Most properties read their file at the first access and keep the result. Missing
    and damaged files count as empty."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def title(self) -> str:
        """Return `<experiment> / <run name>`, the last two parts of the absolute path."""
        return " / ".join(self.path.resolve().parts[-2:])

    @cached_property
    def metrics(self) -> dict[str, Curve]:
        """Return key -> curve of metrics.jsonl; {} without the file."""
        return read_curves(self.path / "metrics.jsonl")

    @cached_property
    def timings(self) -> dict[str, Curve]:
        """Return key -> curve of timings.jsonl; {} without the file."""
        return read_curves(self.path / "timings.jsonl")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return the entries of summary.json, and `best`, {} if it has none.

        Entries of another type than `write_summary` writes are damaged and left out; all entries are, if the file does not contain a JSON
        object or does not exist."""
        content = read_json(self.path / "summary.json") or {}
        found: dict[str, Any] = {name: value for name, value in content.items() if isinstance(value, _TYPES.get(name, object))}
        found = {name: value for name, value in found.items() if name not in _COUNTS or _is_count(value)}
        best = {
            metric: {"value": _numbers(own).get("value"), "global_step": own["global_step"]}
            for metric, own in found.get("best", {}).items()
            if isinstance(own, dict) and _is_count(own.get("global_step"))
        }
        return found | {"best": best}

    @cached_property
    def record(self) -> dict[str, Any]:
        """Return the content of run.json; {} if the file does not exist or does not contain a JSON object."""
        return read_json(self.path / "run.json") or {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the configuration in config.yaml, as nested dicts; {} if the file is missing or damaged."""
        path = self.path / CONFIG
        return (parse_config(path.read_bytes()) or {}) if path.is_file() else {}

    @cached_property
    def results(self) -> tuple[int, Final]:
        """Return (step of the newest validation, {metric key: newest value}) from the files in `validation/`; (-1, {}) without files.

        A metric that the newest validation lacks has its value from an earlier validation. The keys are in the order of the workload; in
        metrics.jsonl they are sorted by name."""
        newest, found = -1, Final()
        for path in sorted(self.path.glob("validation/step-*/val*.json"), key=lambda path: (len(path.parent.name), path)):
            content = read_json(path) or {}
            if isinstance(content.get("metrics"), dict) and isinstance(content.get("global_step"), int):
                newest = max(newest, content["global_step"])
                found |= _numbers(from_finite(content["metrics"]))
        return newest, found

    @cached_property
    def final(self) -> Final:
        """Return {validation metric key: newest value}.

        If the last launch has ended, the values are from summary.json. Otherwise summary.json may be outdated: the values are from
        `results`, or if it is empty from metrics.jsonl, and from summary.json only if both are empty."""
        own = _numbers(self.summary.get("final"))
        if self.ended and own:
            return own
        rows: Final = {name: curve.last[1] for name, curve in self.metrics.items() if name.startswith("val") and curve.count}
        return self.results[1] or rows or own

    @cached_property
    def status(self) -> str:
        """Return the status in summary.json, one of `results.STATUSES`; `running` without a status. Return `killed` instead of `running` if
        the process of the last launch has ended."""
        own = str(self.summary.get("status", "running"))
        return "killed" if own == "running" and owner_has_ended(self.path / "lock") else own

    @property
    def ended(self) -> bool:
        """Return True if the last launch wrote its results to summary.json at its end: the status there is not `running`. During a launch,
        and after a launch was killed, it is `running` and all other values in summary.json are from the launch before."""
        return self.summary.get("status", "running") != "running"

    @property
    def monitor(self) -> str:
        """Return the key of the metric that selects the best checkpoint, `schedule.best_monitor`. If the run has no best value of it,
        return the first metric with a best value in summary.json; without any, return `schedule.best_monitor`, otherwise `val/loss`."""
        schedule, best = self.config.get("schedule"), self.summary["best"]
        own = str((schedule.get("best_monitor") if isinstance(schedule, dict) else None) or "val/loss")
        return own if own in best else next(iter(best), own)

    @property
    def step(self) -> int | None:
        """Return the number of updates so far; None if unknown.

        During a launch it is the last step in metrics.jsonl and timings.jsonl. After the end of a launch, or if these files have no values,
        it is from summary.json."""
        curves = (curve for stream in (self.metrics, self.timings) for curve in stream.values() if curve.count)
        last = max((int(curve.last[0]) for curve in curves), default=None)
        own = self.summary.get("global_step")
        return own if isinstance(own, int) and (self.ended or last is None) else last

    @property
    def total_steps(self) -> int | None:
        """Return the number of updates that the whole run will have; None if unknown.

        After the end of a launch it is from summary.json. During a launch it is from the newest row of reports.jsonl with this number,
        otherwise from summary.json."""
        own = self.summary.get("total_steps")
        if isinstance(own, int) and self.ended:
            return own
        reported = read_curves(self.path / "reports.jsonl").get("progress/total_steps")
        return int(reported.last[1]) if reported is not None and reported.count else own

    @cached_property
    def last_timings(self) -> dict[str, float]:
        """Return {key: newest value} of timings.jsonl.

        After the end of a launch, values in summary.json are added and take precedence: its entry `timings`, and `time/samples_per_second`
        and `time/wall_seconds`."""
        found = {name: curve.last[1] for name, curve in self.timings.items() if curve.count}
        if self.ended:
            totals = {f"time/{name}": self.summary.get(name) for name in ("samples_per_second", "wall_seconds")}
            found |= {name: value for name, value in _numbers(self.summary.get("timings", {}) | totals).items() if value is not None}
        return found

    @cached_property
    def launch_timings(self) -> list[dict[str, float]]:
        """Return the last row of timings.jsonl of each launch that has a row, as {key: number}. The times restart at 0 in each launch.

        After the end of a launch, its last row is the entry `timings` of summary.json. A new launch is known by its start-up time, which is
        constant in a launch, or by a shorter training time."""
        found: list[dict[str, float]] = []
        ended = [self.summary.get("timings")] if self.ended else []
        for values in chain(read_rows(self.path / "timings.jsonl"), ended):
            row = {name: value for name, value in _numbers(values).items() if value is not None}
            last = found[-1] if found else {}
            same = last.get("time/startup_seconds") == row.get("time/startup_seconds")
            if last and same and row.get("time/training_seconds", 0.0) >= last.get("time/training_seconds", 0.0):
                found[-1] = last | row
            elif row:
                found.append(row)
        return found

    @cached_property
    def differences(self) -> dict[str, tuple[float, float]]:
        """Return the 95 % intervals of differences from the normal pass: {metric key of a masked pass: (lower end, upper end)}."""
        from linnaeus.reporting.report.metric_names import passes_and_tasks
        from linnaeus.reporting.report.pass_differences import pass_differences

        return pass_differences(self, passes_and_tasks(self.final)[0])

    @cached_property
    def tables_folder(self) -> Path | None:
        """Return the newest folder validation/step-N with tables (CSV files) or examples; None if there is no such folder.

        Return None, too, if a later validation has results: the tables are then outdated."""
        files = self.path.glob("validation/step-[0-9]*/*")
        found = [path.parent for path in files if path.suffix == ".csv" or not path.name.startswith(("val", TEMPORARY))]
        newest = max(found, key=lambda folder: (len(folder.name), folder.name), default=None)
        return newest if newest is not None and int(newest.name.rpartition("-")[2]) >= self.results[0] else None

    def table(self, name: str, key: str = "val") -> Rows:
        """Return the rows of a table of the last validation, {column: text} each; [] if it does not exist.

        name: name of the table, such as `classes`. key: name of the validation pass."""
        return [] if self.tables_folder is None else read_table(self.tables_folder / f"{key}-{name}.csv")

    def json(self, name: str) -> dict[str, Any]:
        """Return the content of the JSON file `name` in `tables_folder`; {} if the folder or the file does not exist."""
        return {} if self.tables_folder is None else read_json(self.tables_folder / name) or {}

    def text(self, name: str) -> str:
        """Return the text of the file `name` in the run directory; "" if it does not exist. Bytes that are not UTF-8 are replaced."""
        path = self.path / name
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the JSON objects in the JSONL file `name` in the run directory; [] if it does not exist. Damaged lines are left out. The
        whole file is read into memory."""
        found = []
        for line in self.text(name).splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            found += [row] if isinstance(row, dict) else []
        return found


def read_table(path: Path) -> Rows:
    """Return the rows of a CSV file, {column: text} each; [] if the file does not exist or if the CSV reader fails.

    A row with too few or too many values is damaged: this row and all later rows are left out."""
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        try:
            return list(takewhile(lambda row: None not in row and None not in row.values(), csv.DictReader(file)))
        except csv.Error:
            return []


def open_run(path: Path) -> RunFiles:
    """Return the files of the run directory `path`. Raise `ConfigError` if `path` has no run.json."""
    if not (path / "run.json").exists():
        raise ConfigError(f"{path} is not a run directory: it has no run.json; give a folder such as outputs/biota/1a2b3c4d5e")
    return RunFiles(path)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _numbers(metrics: Any) -> Final:
    """Return {key: number} for the entries of `metrics` that are a number or null; {} if `metrics` is not a dict.

    null, NaN, infinity and numbers that no float can have become None. Booleans and texts are left out."""
    if not isinstance(metrics, dict):
        return {}
    known = {name: value for name, value in metrics.items() if value is None or type(value) in (int, float)}
    return {name: value if value is not None and abs(value) <= sys.float_info.max else None for name, value in known.items()}


def half_width(final: Mapping[str, Any], key: str) -> float:
    """Return half the width of the 95 % interval of `final[key]`; infinity if the value has no interval."""
    low, high = final.get(f"{key}_low"), final.get(f"{key}_high")
    return (high - low) / 2 if low is not None and high is not None else math.inf
