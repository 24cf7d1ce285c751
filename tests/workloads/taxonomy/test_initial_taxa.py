"""`run.init_from` and a resume of a classifier: weights of the head that were trained on other taxa are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from linnaeus.checkpoint.initial_weights import InitialWeights, read_initial_weights
from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload
from linnaeus.workloads.taxonomy import workload
from tests import runs, watching

FINEST = 3  # index of the species, the last of four ranks
WEIGHTS = {"linear": "head.ranks.3", "conditional": "head.levels.3", "hierarchical_softmax": "head.levels.3", "marginal": "head.leaves"}


def trained_on(folder: Path, plain: dict[str, Any], model: Any) -> InitialWeights:
    """Return the weights of `model` as those of a run on the taxonomy `plain`."""
    checkpoint = folder / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (folder / "taxonomy.json").write_text(json.dumps(plain))
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, checkpoint / "model.safetensors")
    return read_initial_weights(str(checkpoint / "model.safetensors"))


@pytest.mark.parametrize("head", WEIGHTS)
def test_as_many_other_species_are_refused(tmp_path: Path, head: str):
    settings = [f"head={head}", "loss=cross_entropy"]
    own = build_workload(runs.configuration("biota", tmp_path, *settings))
    model, tree = own.build_model(), own.data_source.tree
    same, other, fewer = (tree.to_dict() for _ in range(3))
    other["names"][FINEST][0] = "another species"
    for column in ("names", "anchor"):
        fewer[column][FINEST] = fewer[column][FINEST][1:]
    fewer.pop("tails", None)
    own.adapt_initial_weights(trained_on(tmp_path / "same", same, model), model)
    own.adapt_initial_weights(trained_on(tmp_path / "fewer", fewer, model), model)  # their shapes would differ
    weights = trained_on(tmp_path / "other", other, model)
    with pytest.raises(ConfigError, match=rf"other taxa, so {WEIGHTS[head]}\..* run\.init_skip=\[{WEIGHTS[head]}\]"):
        own.adapt_initial_weights(weights, model)
    for skipped in (WEIGHTS[head], "head"):
        build_workload(
            runs.configuration("biota", tmp_path, *settings, f"run.init_from={tmp_path}", f"run.init_skip=[{skipped}]")
        ).adapt_initial_weights(weights, model)


def test_a_resume_on_as_many_other_species_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = ["trainer.length=2steps", "schedule.validate=[]", "schedule.validate_at_end=false", "run.allow=[data]"]
    run = runs.interrupted(runs.configuration("biota", tmp_path, *settings), watching.stopped_at(1))
    before = (run / "taxonomy.json").read_bytes()
    build = workload.build_data_source

    def renamed(*arguments: Any) -> Any:
        source, ceilings = build(*arguments)
        names = (*source.tree.names[:-1], ("another species", *source.tree.names[-1][1:]))
        return replace(source, tree=replace(source.tree, names=names), fingerprint="other"), ceilings

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match=r"step-00000001 was trained on other classes"):
        patch.setattr(workload, "build_data_source", renamed)
        runs.start(runs.configuration("biota", tmp_path, *settings))
    assert (run / "taxonomy.json").read_bytes() == before and len(list((run / "launches").iterdir())) == 1
    assert runs.start(runs.configuration("biota", tmp_path, *settings)) == 0
