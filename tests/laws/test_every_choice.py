"""Every head, loss and task weighting starts with one override and survives a kill: law 2 for each file of those groups."""

from __future__ import annotations

import pytest

from linnaeus.config import CONF
from linnaeus.train import loop
from tests import runs

SETTING = ["trainer.length=4steps", "schedule.checkpoint=[2steps]", "schedule.log=[1steps]", "schedule.validate=[100%]"]
SETTING += ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]", "schedule.partial_combinations=[]"]
CHOICES = [f"{group}={path.stem}" for group in ("head", "loss", "weighting") for path in sorted((CONF / group).glob("*.yaml"))]
MORE = [["head=hierarchical_softmax", f"head.routing={routing}"] for routing in ("hard", "gumbel")]
MORE += [[f"head={path.stem}", "head.nulls=predict"] for path in sorted((CONF / "head").glob("*.yaml"))]
MORE += [["weighting=gradnorm", f"weighting.place={place}", "head=conditional"] for place in ("features", "trunk")]


@pytest.mark.parametrize("choice", [[choice] for choice in CHOICES] + MORE, ids=" ".join)
def test_a_run_is_killed_and_goes_on(tmp_path, choice):
    more = [*SETTING, *choice]
    if choice == ["weighting=surgery"]:
        pytest.importorskip("torchjd")
        more += ["trainer.micro_batch_size=32"]  # it needs an update of one micro-batch
    if choice[0] in {f"weighting={name}" for name in ("gradnorm", "dwa", "famo", "uncertainty")}:
        more += ["weighting.every=[1steps]"]
    whole = runs.run("biota", tmp_path / "whole", *more)
    broken = runs.configuration("biota", tmp_path / "broken", *more)
    with runs.killed(loop, "train_one_step", 4):
        runs.start(broken)
    assert runs.start(broken) == 0
    assert runs.differences(whole, runs.run_path(broken)) == []
