"""Law 2: a run that was stopped or killed and started again ends bit for bit as the one that was not, on the CPU.

Everything with a state is on: averages, batch statistics, plateau, GradNorm, early stopping, mixing, masking, rows that span
several updates, validation at some steps. The proof over every instant of every process is behind `make test-slow`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest

from linnaeus import train
from linnaeus.checkpoint import snapshot, writer
from linnaeus.checkpoint.snapshot import HostSnapshot
from linnaeus.data.sampler import PositionSampler
from linnaeus.metrics import MetricsTracker
from linnaeus.optim.update import Update
from linnaeus.train import loop, outputs, saving, validation
from linnaeus.train.state import Training
from tests import runs, watching

STATEFUL = ["trainer.ema_decay=0.9", "weighting=gradnorm", "weighting.every=[2steps]", "debug.batch_hashes=true"]
STATEFUL += ["lr_scheduler=plateau", "lr_scheduler.monitor=val_ema/loss", "lr_scheduler.patience=0", "lr_scheduler.min_delta=9"]
STATEFUL += ["schedule.best_monitor=val_ema/loss", "schedule.early_stop.monitor=val_ema/loss", "schedule.early_stop.patience=40"]
STATEFUL += ["schedule.early_stop.min_delta=9"]
STATEFUL += ["schedule.validate=[4steps]", "schedule.log=[3steps]", "schedule.checkpoint=[2steps]", "schedule.validate_at_end=true"]
WORKLOADS = {
    "vectors": [*STATEFUL, "trainer.length=12steps", "model.batch_norm=true"],
    "biota": [*STATEFUL, "trainer.length=10steps", "schedule.validate_mask_meta=[4steps]", "schedule.validate_partial_mask_meta=[4steps]"],
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The directory of the run nobody stopped, by workload."""
    root = tmp_path_factory.mktemp("uninterrupted")
    return {name: runs.run(name, root / name, *WORKLOADS[name]) for name in WORKLOADS}


def go_on(workload: str, root: Path, *more: str) -> Path:
    return runs.run(workload, root, *WORKLOADS[workload], *more)


def killed_run(workload: str, root: Path, owner: object, name: str, call: int, after: bool = False) -> None:
    with runs.killed(owner, name, call, after):
        runs.start(runs.configuration(workload, root, *WORKLOADS[workload]))


def test_the_reference_exercises_what_it_should(uninterrupted):
    for name, run in uninterrupted.items():
        found = runs.newest(run)
        assert found.training_state["lr"]["reduced"] < 1, f"{name}: plateau never reduced the rate"
        assert found.training_state["weighting"]["initial_losses"].min() > 0
        assert found.ema_state is not None and found.training_state["ema"]["applied"] == found.step
    assert any("running_mean" in key for key in runs.newest(uninterrupted["vectors"]).model_state)
    assert len(list((uninterrupted["biota"] / "validation").glob("*/*.json"))) == 3 * 5


# -- stopped by a signal ---------------------------------------------------------------------------------------------------------


def test_stopped_after_every_single_step(uninterrupted, tmp_path):
    """One run, stopped by SIGTERM in each of its 12 updates in turn: in mid-epoch, at an epoch's end, at validations, at the end."""
    config = runs.configuration("vectors", tmp_path, *WORKLOADS["vectors"])
    for step in range(1, 13):
        with watching.stopped_at(step):
            assert runs.start(config) == 75
        assert runs.newest(runs.run_path(config)).step == step
        summary = json.loads((runs.run_path(config) / "summary.json").read_text())
        assert (summary["status"], summary["global_step"]) == ("interrupted", step)
    assert runs.start(config) == 0
    assert runs.differences(uninterrupted["vectors"], runs.run_path(config)) == []


@pytest.mark.parametrize("step, workers", [(1, 0), (3, 1), (4, 0), (5, 2), (10, 0)])
def test_stopped_once_and_continued_with_other_workers(uninterrupted, tmp_path, step, workers):
    """In mid-epoch, at an epoch's end, with five validation passes pending, at the last step; the batch rows are the same too."""
    config = runs.configuration("biota", tmp_path, *WORKLOADS["biota"])
    with watching.stopped_at(step):
        assert runs.start(config) == 75
    assert bool(runs.newest(runs.run_path(config)).state["progress"]["pending_validations"]) == (step in (4, 10))
    run = go_on("biota", tmp_path, f"trainer.num_workers={workers}")
    assert runs.differences(uninterrupted["biota"], run) == []


# -- killed ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", (1, 2, 3, 6, 8, 12))
def test_killed_in_an_update(uninterrupted, tmp_path, step):
    """Work since the last checkpoint is done again, the same; step 1: there is none yet."""
    killed_run("vectors", tmp_path, loop, "train_one_step", step, after=step % 2 == 0)
    assert runs.differences(uninterrupted["vectors"], go_on("vectors", tmp_path)) == []


@pytest.mark.parametrize("call, after", [(1, False), (2, False), (4, True), (5, True), (9, False), (15, True)])
def test_killed_in_a_validation_pass(uninterrupted, tmp_path, call, after):
    """Five passes each at steps 4, 8 and 10. A finished pass is not run again, a cut-off one starts over."""
    owner, name = (outputs.Outputs, "write_validation") if after else (validation, "_run_batches")
    killed_run("biota", tmp_path, owner, name, call, after)
    with watching.counted(validation, "_run_batches") as passes:
        run = go_on("biota", tmp_path)
    assert len(passes) == 15 - (call if after else call - 1)
    assert runs.differences(uninterrupted["biota"], run) == []


@pytest.mark.parametrize(
    "owner, name, call, after",
    [
        (validation, "apply_results", 1, False),  # all results are there, nobody has taken them
        (validation, "apply_results", 2, True),  # taken, but the checkpoint that says so is not written
        (writer, "save_checkpoint", 3, False),
        (writer, "save_checkpoint", 3, True),  # committed, nothing pruned yet
        (outputs.Outputs, "resume", 1, True),
        (train, "final_validations", 1, True),
        (train, "finish", 1, False),  # all is done but for the summary
    ],
)
def test_killed_between_things(uninterrupted, tmp_path, owner, name, call, after):
    killed_run("vectors", tmp_path, owner, name, call, after)
    assert runs.differences(uninterrupted["vectors"], go_on("vectors", tmp_path)) == []


def test_killed_again_and_again(uninterrupted, tmp_path):
    for call in (5, 1, 2, 3):
        killed_run("vectors", tmp_path, loop, "train_one_step", call)
    assert runs.differences(uninterrupted["vectors"], go_on("vectors", tmp_path)) == []


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_update_waits_for_the_copy_of_what_it_changes(uninterrupted, tmp_path, monkeypatch, forgotten):
    """Here the writer's thread comes to it only when an update is over. Negative control: without the wait the moments are torn."""
    updated, finish, update = threading.Event(), HostSnapshot.finish, Update.__call__

    def late(self):
        if threading.current_thread().name == "checkpoint":
            updated.wait(1)
        finish(self)

    def telling(self):
        norm = update(self)
        updated.set()
        return norm

    monkeypatch.setattr(snapshot, "LARGE", 0)
    monkeypatch.setattr(HostSnapshot, "finish", late)
    monkeypatch.setattr(Update, "__call__", telling)
    if forgotten:
        monkeypatch.setattr(saving, "wait_for_copy", lambda t: None)
    save = saving.save
    monkeypatch.setattr(saving, "save", lambda t: (updated.clear(), save(t)))
    killed_run("vectors", tmp_path, loop, "train_one_step", 8)
    found = runs.differences(uninterrupted["vectors"], go_on("vectors", tmp_path))
    assert bool(found) == forgotten, found


def test_a_process_that_dies_on_the_spot(uninterrupted, tmp_path):
    """The same with `os._exit` in a process of its own, in the second pass of step 4 of the biota run."""
    script = (
        "import os; from pathlib import Path; from linnaeus.train import validation; from tests import runs\n"
        "from tests.laws.test_continuation import WORKLOADS\n"
        "original, calls = validation._run_batches, []\n"
        "def dying(*arguments):\n"
        "    calls.append(1)\n"
        "    return os._exit(9) if len(calls) == 2 else original(*arguments)\n"
        "validation._run_batches = dying\n"
        f"runs.run('biota', Path({str(tmp_path)!r}), *WORKLOADS['biota'])\n"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=runs.ROOT, capture_output=True).returncode == 9
    assert runs.differences(uninterrupted["biota"], go_on("biota", tmp_path)) == []


# -- the end ---------------------------------------------------------------------------------------------------------------------


def test_a_finished_run_started_again_says_so_and_does_nothing(uninterrupted, tmp_path, capsys):
    root = tmp_path / "copy"
    shutil.copytree(uninterrupted["vectors"].parents[1], root)
    before = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    assert runs.start(runs.configuration("vectors", root, *WORKLOADS["vectors"], "logger.console=plain")) == 0
    assert "is finished" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()} == before


PATIENCE = ["schedule.validate=[2steps]", "schedule.early_stop.patience=2", "schedule.early_stop.min_delta=1000"]
EARLY = {"patience": PATIENCE, "max_steps": ["schedule.early_stop.max_steps=7"], "bound": ["schedule.early_stop.metric_bound=1000"]}


@pytest.mark.parametrize("reason", EARLY)
@pytest.mark.parametrize("owner, name", [(train, "final_validations"), (train, "finish")])
def test_a_run_that_stopped_early_trains_no_further(tmp_path, reason, owner, name):
    settings = [*WORKLOADS["vectors"], *EARLY[reason]]
    whole = runs.run("vectors", tmp_path / "whole", *settings)
    summary = json.loads((whole / "summary.json").read_text())
    stop = {"patience": 6, "max_steps": 7, "bound": 4}[reason]
    assert (summary["status"], summary["global_step"]) == ("stopped_early", stop) and summary["stop_reason"]
    with runs.killed(owner, name, 1):
        runs.start(runs.configuration("vectors", tmp_path / "cut", *settings))
    with watching.counted(loop, "train_one_step") as steps:
        cut = runs.run("vectors", tmp_path / "cut", *settings)
        assert runs.run("vectors", tmp_path / "cut", *settings) == cut
    assert steps == []
    assert runs.differences(whole, cut) == []


def test_a_signal_in_the_last_update_an_early_stop_allows(tmp_path):
    """The limit was reached and the signal came in the same update: the restart trains no further."""
    settings = [*WORKLOADS["vectors"], *EARLY["max_steps"], "schedule.validate_at_end=false"]
    whole = runs.run("vectors", tmp_path / "whole", *settings)
    config = runs.configuration("vectors", tmp_path / "cut", *settings)
    with watching.stopped_at(7):
        assert runs.start(config) == 75
    assert runs.start(config) == 0
    assert runs.differences(whole, runs.run_path(config)) == ["state.stop_reason"]  # the checkpoint was made by the signal


def test_a_later_limit_that_is_allowed_trains_on(tmp_path):
    settings = [*WORKLOADS["vectors"], "schedule.validate_at_end=false", "schedule.checkpoint_at_end=false"]
    whole = runs.run("vectors", tmp_path / "whole", *settings, "schedule.early_stop.max_steps=10")
    runs.run("vectors", tmp_path / "more", *settings, "schedule.early_stop.max_steps=7")
    allowed = "run.allow=[schedule.early_stop.max_steps]"
    more = runs.run("vectors", tmp_path / "more", *settings, "schedule.early_stop.max_steps=10", allowed)
    assert json.loads((more / "summary.json").read_text())["global_step"] == 10
    assert [name for name in runs.differences(whole, more) if name.startswith(("model", "ema", "training", "batches"))] == []


# -- negative controls -----------------------------------------------------------------------------------------------------------


def stopped_run(root: Path, step: int) -> Path:
    with watching.stopped_at(step):
        assert runs.start(runs.configuration("vectors", root, *WORKLOADS["vectors"])) == 75
    return root


def test_negative_control_the_comparison_sees_a_sampler_that_starts_one_step_late(uninterrupted, tmp_path):
    stopped_run(tmp_path, 8)
    original = PositionSampler._micro_batch

    def late(self, order, epoch, step, number):
        return original(self, order, epoch, (step + 1) % self.steps_per_epoch, number)

    with mock.patch.object(PositionSampler, "_micro_batch", late):
        found = runs.differences(uninterrupted["vectors"], go_on("vectors", tmp_path))
    assert {"batches-rank0.jsonl", "metrics.jsonl"} <= set(found)


def forgetting(part: str) -> object:
    """A patch under which a restore leaves `part` as it was built."""
    if part == "rows since the last log":
        return mock.patch.object(MetricsTracker, "load_rank_state_dict", lambda self, states, rank, world_size: None)
    original = Training.stateful

    def forgetful(self: Training) -> dict:
        parts = original(self)
        if self.progress.global_step == 0:  # while it is being restored
            parts[part] = mock.Mock(state_dict=parts[part].state_dict)
        return parts

    return mock.patch.object(Training, "stateful", forgetful)


@pytest.mark.parametrize("part", ("optimizers", "weighting", "lr", "ema", "tracker", "early_stopping", "rows since the last log"))
def test_negative_control_the_comparison_sees_a_part_that_was_not_restored(uninterrupted, tmp_path, part):
    stopped_run(tmp_path, 10)  # mid-epoch, one update since the last row, two validations taken
    with forgetting(part):
        assert runs.differences(uninterrupted["vectors"], go_on("vectors", tmp_path))


def test_negative_control_the_comparison_sees_a_forgotten_validation(uninterrupted, tmp_path):
    stopped_run(tmp_path, 8)
    forget = mock.patch.object(train, "finish_pending_validations", lambda t: t.progress.pending_validations.clear())
    with forget:
        found = runs.differences(uninterrupted["vectors"], go_on("vectors", tmp_path))
    assert "metrics.jsonl" in found and any(name.startswith("validation/step-00000008") for name in found)


def test_negative_control_the_comparison_sees_one_bit(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted["vectors"], tmp_path / "run")
    state = runs.newest(tmp_path / "run").training_state
    assert runs.unequal(state, runs.newest(uninterrupted["vectors"]).training_state) == []
    tensor = next(iter(runs.newest(tmp_path / "run").model_state.values()))
    assert runs.unequal({"a": [tensor]}, {"a": [tensor * (1 + 1e-7)]}, "x") == ["x.a[0]"]
