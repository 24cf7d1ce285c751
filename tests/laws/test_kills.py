"""Law 2, with the program a user starts: `main.py` and torchrun in processes of their own, SIGKILL, the same command again.

A few kills of different kinds, those of torchrun and of photographs slow; `make torture N=200` does the rest. `test_continuation.py` kills
by an exception in this process.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from linnaeus.checkpoint import load_checkpoint, save_checkpoint
from tests import runs
from tests.faults import breaks
from tests.faults.compare import what_differs
from tests.faults.launch import Chain, Kill, launch, run_through
from tests.faults.settings import Setting
from tests.faults.spec import ANY, Fault

ONE = [Setting("masked", 1, 1), pytest.param(Setting("biota", 1, 2), marks=pytest.mark.slow)]
TWO = Setting("vectors", 2, 2)
SMALL = Setting("vectors", 1, 0)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Where the run of a setting is that nobody killed: made here or in a group, for which the program's own start would be slower;
    loader workers change nothing, so it has none."""
    made: dict[tuple[str, int], Path] = {}

    def of(setting: Setting) -> Path:
        key = (setting.workload, setting.processes)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("uninterrupted")
            job = runs.job(setting.workload, made[key], *setting.settings)
            if setting.processes == 1:
                runs.run_job(job)
            else:
                runs.run_group(setting.processes, [job], tmp_path_factory.mktemp("group"))
        return made[key]

    return of


def landed(chain: Chain) -> list[str]:
    return [row["place"] for row in chain.landed]


@pytest.mark.parametrize("setting", ONE, ids=str)
def test_one_process_with_workers_killed_in_a_pass_in_the_writer_and_in_the_resume(uninterrupted, tmp_path, setting):
    kills = [
        Kill(Fault("validation: all masked / at a batch", 3, 2, 0, "tree")),
        Kill(Fault("checkpoint: its files / after weights", 6, 1, 0, "tree")),
        Kill(Fault("resume / rows cut", ANY, 1, 0, "rank")),  # its loader workers die of themselves
    ]
    chain = run_through(setting, kills, tmp_path, uninterrupted(setting), real=1)
    assert chain.failures == []
    assert landed(chain) == [kill.aim.place for kill in kills]


@pytest.mark.slow
def test_two_processes_whose_agent_dies_then_one_rank_then_all_of_them(uninterrupted, tmp_path):
    """The last in an update beside a checkpoint that is renamed at that moment."""
    kills = [
        Kill(Fault("inside a window / between two micro-batches", 2, 2, 1, "agent")),
        Kill(Fault("inside a step / between backward and optimizer", 5, 1, 1, "rank")),
        Kill(Fault("a step beside the writer / updated, not counted", 8, 1, 0, "tree", ("checkpoint: its rename / after", 8))),
    ]
    chain = run_through(TWO, kills, tmp_path, uninterrupted(TWO), real=1)
    assert chain.failures == []
    assert landed(chain) == [kill.aim.place for kill in kills]


# -- negative controls -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory):
    """A run killed in mid-epoch when the checkpoint of step 6 was just committed, with a pending pass."""
    root = tmp_path_factory.mktemp("cut_off")
    pending = ("between passes / pending and saved, none run", 6)
    found = launch(SMALL, root, Fault("checkpoint: retention / before", 6, 1, 0, "tree", pending), forked=True)
    assert found.status == -9 and found.landed is not None
    return root


SEEN = {
    "one sample shifted": {"batches-rank0.jsonl", "metrics.jsonl"},
    "scheduler state dropped": {"metrics.jsonl", "training_state.lr.reduced"},
    "one pending validation forgotten": {"metrics.jsonl", "validation/step-00000006/val.json"},
}


@pytest.mark.parametrize("broken", (None, *breaks.BREAKS))
def test_the_comparison_sees_a_broken_resume_and_no_other(uninterrupted, cut_off, tmp_path, broken):
    shutil.copytree(cut_off, tmp_path, dirs_exist_ok=True)
    chain = run_through(SMALL, [], tmp_path, uninterrupted(SMALL), broken=broken, real=0)
    assert chain.launches[-1].status == 0
    assert chain.failures == [] if broken is None else SEEN[broken] <= set(chain.failures)


def test_a_kill_that_does_not_land_is_a_failure(tmp_path):
    """At a step the run does not have; the launch ends as if nobody had aimed at it."""
    chain = run_through(SMALL, [Kill(Fault("inside a step / window fetched", 99, 1, 0, "tree"))], tmp_path, tmp_path, real=0)
    assert chain.landed == [] and "did not land (status 0)" in chain.failures[0]


def test_the_comparison_sees_a_file_too_many_and_an_older_checkpoint_that_differs(uninterrupted, tmp_path):
    whole, mine = SMALL.directory(uninterrupted(SMALL)), tmp_path / "mine"
    shutil.copytree(whole, mine)
    assert what_differs(mine, whole) == []
    (mine / ".tmp-report.html-1").touch()
    old = load_checkpoint(mine / "checkpoints/step-00000009")
    parts = {"model_state": old.model_state, "ema_state": old.ema_state, "training_state": old.training_state}
    save_checkpoint(mine / "checkpoints", 9, **parts, state={**old.state, "score": 0.5})
    assert what_differs(mine, whole) == ["checkpoint 9: state.score", "lacks or adds .tmp-report.html-1"]
