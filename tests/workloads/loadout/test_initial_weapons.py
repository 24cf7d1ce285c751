"""`run.init_from` for loadout models: weights that were trained on other weapons are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from linnaeus.checkpoint.initial_weights import read_initial_weights
from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload
from tests import runs


def test_as_many_other_weapons_are_refused(tmp_path: Path):
    workload = build_workload(runs.configuration("loadout", tmp_path))
    model, rows = workload.build_model(), workload.split.weapons.to_dict()
    folder = tmp_path / "first" / "checkpoints" / "step-00000001"
    folder.mkdir(parents=True)
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    weights = read_initial_weights(str(folder / "model.safetensors"))
    file = tmp_path / "first" / "weapons.json"
    file.write_text(json.dumps(rows))
    workload.adapt_initial_weights(weights, model)
    old = rows[0][0]
    file.write_text(json.dumps([["another" if value == old else value for value in row] for row in rows]))
    with pytest.raises(ConfigError, match=r"trained on other weapons, such as another; .* run\.init_skip=\[weapon\]"):
        workload.adapt_initial_weights(weights, model)
    skipping = runs.configuration("loadout", tmp_path, f"run.init_from={folder}", "run.init_skip=[weapon]")
    build_workload(skipping).adapt_initial_weights(weights, model)
    file.write_text(json.dumps([row for row in rows if old not in row]))  # the shapes differ
    workload.adapt_initial_weights(weights, model)
