"""The differences between a killed run and an uninterrupted one. There must be none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linnaeus.checkpoint import list_checkpoints, load_checkpoint
from tests import runs

# Of state.json: when, where, under which id, and how long its parts took; of `outputs` the rows are compared.
CLOCKS = {"saved", "run_id", "outputs", "run", "costs"}


def what_differs(mine: Path, whole: Path) -> list[str]:
    """Return the names of the parts of two finished run directories that differ in any bit: metric rows, sample ids of every micro-batch,
    validation results, numbers of the summary (`runs.differences`), every checkpoint with all of its state, and the set of files."""
    found = set(runs.differences(whole, mine))
    found |= {f"lacks or adds {name}" for name in _left(mine) ^ _left(whole)}
    ours, theirs = (dict(list_checkpoints(run / "checkpoints")) for run in (mine, whole))
    for step in sorted(ours.keys() & theirs.keys()):
        found |= {f"checkpoint {step}: {name}" for name in _checkpoint_differs(ours[step], theirs[step])}
    return sorted(found)


def _checkpoint_differs(mine: Path, whole: Path) -> list[str]:
    one, other = load_checkpoint(mine), load_checkpoint(whole)
    parts = [runs.unequal(getattr(one, part), getattr(other, part), part) for part in ("model_state", "ema_state", "training_state")]
    parts.append(runs.unequal(_determined(one.state), _determined(other.state), "state"))
    return [name for part in parts for name in part]


def _determined(state: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a state.json that the configuration alone determines."""
    return {**{key: value for key, value in state.items() if key not in CLOCKS}, "rows": state["outputs"]["rows"]}


def _left(run: Path) -> set[str]:
    """Return the names of the files and of the checkpoints of a finished run, without alarms.jsonl: a busy machine can raise an alarm about
    times in one of two equal runs. `runs.differences` compares the other alarms. The log of another rank than 0 is left out, too: a rank
    writes one only if it has a warning, such as the death of rank 0."""
    kept = [path.name for path in run.iterdir() if not path.match("train-rank*.log")]
    own = {name for name in kept if name not in ("launches", "alarms.jsonl")}
    return own | {f"checkpoints/{path.name}" for path in (run / "checkpoints").iterdir()}
