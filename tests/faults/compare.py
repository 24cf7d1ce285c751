"""What a run that was killed and one that was not differ in: nothing, or a proof has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linnaeus.checkpoint import list_checkpoints, load_checkpoint
from tests import runs

CLOCKS = {"saved", "run_id", "outputs"}  # of state.json: when and under which id; of `outputs` the rows are compared


def what_differs(mine: Path, whole: Path) -> list[str]:
    """Names of what is not the same to the bit in two finished run directories: metric rows, sample ids of every micro-batch,
    validation results, the summary's numbers (`runs.differences`), every checkpoint kept with all of its state, and the set of files."""
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
    """What the configuration alone determines of a state.json."""
    return {**{key: value for key, value in state.items() if key not in CLOCKS}, "rows": state["outputs"]["rows"]}


def _left(run: Path) -> set[str]:
    """Files of a finished run, and the checkpoints it keeps."""
    own = {path.name for path in run.iterdir() if path.name != "launches"}
    return own | {f"checkpoints/{path.name}" for path in (run / "checkpoints").iterdir()}
