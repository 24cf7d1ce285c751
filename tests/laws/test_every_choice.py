"""Law 2 for every choice of head, loss, task weighting, optimizer, precision and learning-rate schedule: a killed run resumes bit for bit.

`covering` chooses the runs: every choice is in one of `FEW`. In those of `RUNS`, which are slow, so is every pair of the groups in `PAIRS`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from linnaeus.config import CONF
from linnaeus.config.schema import TrainerConfig
from linnaeus.optim.update import GradScaler
from tests import runs
from tests.covering import covering
from tests.laws.test_continuation import forgetting

SETTING = ["trainer.length=3steps", "schedule.checkpoint=[2steps]", "schedule.log=[1steps]", "schedule.validate=[100%]"]
SETTING += ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]", "schedule.partial_combinations=[]"]
SETTING += ["trainer.global_batch_size=28", "trainer.micro_batch_size=28", "data.train_samples=72"]  # surgery: one micro-batch in an update
SETTING += ["data.validation_batch=13", "data.image_size=8", "loss=cross_entropy"]  # fp16 is slow on a CPU


def files(group: str) -> list[str]:
    return [f"{group}={path.stem}" for path in sorted((CONF / group).glob("*.yaml"))]


EVERY = ("gradnorm", "dwa", "famo", "uncertainty")
CHOICES = {
    "head": files("head"),
    "loss": files("loss"),
    "weighting": [
        *(text for text in files("weighting") if text != "weighting=surgery" or importlib.util.find_spec("torchjd")),
        *(f"weighting=gradnorm weighting.place={place}" for place in ("features", "trunk")),
    ],
    "optimizer": files("optimizer"),
    "precision": [f"trainer.precision={name}" for name in TrainerConfig.__dataclass_fields__["precision"].metadata["choices"]],
    "lr_scheduler": [text.replace("=step", "=step lr_scheduler.milestones=[50%]") for text in files("lr_scheduler")],
    "nulls": ["head.nulls=ignore", "head.nulls=predict"],
    "routing": [f"head.routing={name}" for name in ("soft", "hard", "gumbel")],
}
PAIRS = [("head", "loss"), ("head", "weighting"), ("optimizer", "precision"), ("head", "nulls"), ("head", "routing")]
REFUSED = {"loss=marginal", "head.nulls=predict"}  # the two together are a mistake


FEW = covering(CHOICES, [], REFUSED)
RUNS = covering(CHOICES, PAIRS, REFUSED)


def test_the_runs_cover_every_choice_and_every_pair():
    for group, names in CHOICES.items():
        assert {run[group] for run in RUNS} == {run[group] for run in FEW} == set(names)
    for a, b in PAIRS:
        assert {(run[a], run[b]) for run in RUNS} == set(product(CHOICES[a], CHOICES[b]))
    assert len(RUNS) == max(len(CHOICES[a]) * len(CHOICES[b]) for a, b in PAIRS), "no fewer can hold every pair"
    assert len(FEW) == max(map(len, CHOICES.values()))


def settings(run: Mapping[str, str]) -> list[str]:
    """Return the settings of a run, without those that its other choices do not have."""
    found = [word for group, text in run.items() if group != "routing" for word in text.split()]
    if run["head"] == "head=hierarchical_softmax":
        found.append(run["routing"])
    if run["weighting"].split()[0].partition("=")[2] in EVERY:
        found.append("weighting.every=[1steps]")
    return [*SETTING, *found]


def name_of(run: Mapping[str, str]) -> str:
    return "-".join(text.rpartition("=")[2] for text in run.values())


@pytest.mark.parametrize(
    "run", [*FEW, *(pytest.param(run, marks=pytest.mark.slow, id=f"pairs-{name_of(run)}") for run in RUNS)], ids=name_of
)
def test_a_killed_run_resumes_bit_for_bit(tmp_path, monkeypatch, run: Any):
    monkeypatch.setattr(GradScaler, "INITIAL", 2.0**8)  # a first scale at which fp16 does not overflow
    assert runs.differences(*runs.whole_and_continued(runs.configuration("biota", tmp_path, *settings(run)), 3)) == []


def test_negative_control_the_continued_run_shows_a_part_that_was_not_restored(tmp_path):
    config = runs.configuration("vectors", tmp_path, "trainer.length=3steps", "schedule.checkpoint=[2steps]")
    with forgetting("optimizers"):
        whole, continued = runs.whole_and_continued(config, 3)
    assert len(list((continued / "launches").iterdir())) == 2
    assert "training_state.optimizers" in " ".join(runs.differences(whole, continued))
