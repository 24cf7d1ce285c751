"""Read config.yaml and run.json of a run directory. If one of these files is missing or damaged, read its newest copy.

Every start writes copies to `launches/<n>/` (config.yaml, launch.json), and every checkpoint contains copies in state.json under `run`. A
directory that contains results, but neither config.yaml nor a copy of it, is refused: without a configuration a later start could continue
the run with other settings."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from linnaeus.checkpoint.loading import CheckpointDamaged, read_state
from linnaeus.checkpoint.resume import list_checkpoints
from linnaeus.errors import ConfigError
from linnaeus.files import is_directory, read_json
from linnaeus.rundir.run_record import LAUNCH, LAUNCH_ONLY_KEYS, RECORD
from linnaeus.rundir.saved_config import CONFIG, parse_config

Tree = dict[str, Any]
T = TypeVar("T")
COMPARISON = "comparison.html"  # page of several runs, which `linnaeus report` writes into the folder that contains them
RESULTS = ("metrics.jsonl", "reports.jsonl", "checkpoints", "validation", "summary.json")


def without_comparison(paths: Sequence[Path]) -> list[Path]:
    """Return `paths` without files comparison.html, which are among the arguments if a user writes `outputs/biota/*`.

    If nothing else is left, return `paths`, so that the command ends with an error."""
    return [path for path in paths if path.name != COMPARISON or not path.is_file()] or list(paths)


def contains_results(run: Path) -> bool:
    """Return True if a directory contains results of a run (rows, checkpoints, validation results, a summary), even without config.yaml.

    A start that was killed before its first update leaves no results."""
    return any(_is_filled(run / name) for name in RESULTS)


def read_configuration(run: Path) -> tuple[Tree, str]:
    """Return (the configuration in config.yaml of a run directory, a message for the log or "").

    If the file is missing or damaged, its newest copy is read, and the message names it. Raise `ConfigError` if there is no copy."""
    return _read(run, CONFIG, _config_in, CONFIG)


def read_record(run: Path) -> tuple[Tree, str]:
    """Return (the content of run.json of a run directory, a message for the log or "").

    If the file is missing or damaged, its newest copy is read, and the message names it. Raise `ConfigError` if there is no copy."""
    return _read(run, RECORD, _record_in, LAUNCH)


def _read(run: Path, name: str, read: Callable[[Path], Tree | None], copy_name: str) -> tuple[Tree, str]:
    found = read(run / name)
    if found is not None:
        return found, ""
    launches = [path for path in run.glob(f"launches/*/{copy_name}") if path.parent.name.isdecimal()]
    for path in sorted(launches, key=lambda path: int(path.parent.name), reverse=True):
        found = read(path)
        if found is not None:
            return found, f"{run / name} was damaged or missing; {path} is used instead"
    for _, path in reversed(list_checkpoints(run / "checkpoints")):
        found = _in_checkpoint(path, name)
        if found is not None:
            return found, f"{run / name} was damaged or missing; its copy in {path} is used instead"
    state = "damaged" if (run / name).exists() else "missing"
    raise ConfigError(
        f"run.root: {run / name} is {state}, and neither {run / 'launches'} nor a checkpoint contains a copy; restore it, "
        "or choose another run.name"
    )


def _config_in(file: Path) -> Tree | None:
    try:
        return parse_config(file.read_bytes())
    except (FileNotFoundError, IsADirectoryError):
        return None


def _record_in(file: Path) -> Tree | None:
    record = read_json(file)
    if record is None or not record.get("run_id"):
        return None
    return {key: value for key, value in record.items() if key not in LAUNCH_ONLY_KEYS}


def _in_checkpoint(checkpoint: Path, name: str) -> Tree | None:
    """Return the copy of config.yaml or run.json in a checkpoint; None if the checkpoint is damaged or contains no copy."""
    try:
        run = read_state(checkpoint).get("run", {})
    except CheckpointDamaged:
        return None
    return run.get("config" if name == CONFIG else "record") or None


def _is_filled(path: Path) -> bool:
    """Return True for a file or a directory that is not empty. Entries of a directory whose names begin with a dot are ignored."""
    if is_directory(path):
        return any(not entry.name.startswith(".") for entry in path.iterdir())
    return path.exists() and path.stat().st_size > 0
