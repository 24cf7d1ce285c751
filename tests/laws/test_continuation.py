"""Law 2: a run that is stopped or killed and started again ends bit for bit as the one that was not, on the CPU.

`CASES` is the table: a run, and the calls in which it is killed, one start after the other. In the reference runs everything with a state
is on: averages, batch statistics, plateau, GradNorm, early stopping, mixing, masking, rows that span several updates, validation at some
steps, growth, frozen parts, every task weighting. Kills of real processes are in `test_kills.py`, and by the hundred in `make torture`.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from linnaeus import train
from linnaeus.checkpoint import snapshot, writer
from linnaeus.checkpoint.snapshot import HostSnapshot
from linnaeus.data.sampler import PositionSampler
from linnaeus.metrics import MetricsTracker
from linnaeus.optim.growth import Growth
from linnaeus.optim.update import Update
from linnaeus.train import loop, outputs, saving, validation
from linnaeus.train.state import Training
from tests import runs, watching
from tests.covering import every_choice
from tests.optim.test_growth_runs import GROWING
from tests.train.building.test_freezing import FROZEN
from tests.weighting.test_runs import LENGTH, WEIGHTINGS

STATEFUL = ["trainer.ema_decay=0.9", "weighting=gradnorm", "weighting.every=[2steps]", "debug.batch_hashes=true"]
STATEFUL += ["lr_scheduler=plateau", "lr_scheduler.monitor=val_ema/loss", "lr_scheduler.patience=0", "lr_scheduler.min_delta=9"]
STATEFUL += ["schedule.best_monitor=val_ema/loss", "schedule.early_stop.monitor=val_ema/loss", "schedule.early_stop.patience=40"]
STATEFUL += ["schedule.early_stop.min_delta=9"]
STATEFUL += ["schedule.validate=[4steps]", "schedule.log=[3steps]", "schedule.checkpoint=[2steps]", "schedule.validate_at_end=true"]
MASKED = ["trainer.length=10steps", "schedule.validate_mask_meta=[4steps]", "schedule.validate_partial_mask_meta=[4steps]"]
IMAGES = ["schedule.image_size.start=8", "schedule.image_size.multiple=4", "schedule.image_size.until=60%", "augment.off_last=2steps"]
IMAGES += ["augment.place=device"]
# checkpoints between two rows, two intervals of dwa and two measurements of the conflict
WEIGHTED = ["schedule.checkpoint=[4steps]", "weighting.conflict=[3steps]"]
REFERENCES: dict[str, tuple[str, list[str]]] = {  # name -> workload of `tests.runs`, settings
    "vectors": ("vectors", [*STATEFUL, "trainer.length=12steps", "model.batch_norm=true"]),
    "masked": ("masked", [*STATEFUL, *MASKED]),
    "biota": ("biota", [*STATEFUL, *MASKED, *IMAGES]),
    "growing": ("vectors", GROWING),
    "language": ("language", GROWING),
    "loadout": ("loadout", [text for text in STATEFUL if not text.startswith("weighting")]),
    "dictionary": ("dictionary", [text for text in STATEFUL if not text.startswith("weighting")]),
    "computed": ("computed", ["schedule.checkpoint=[2steps]", "debug.batch_hashes=true"]),
    "frozen": ("vectors", [*FROZEN, "schedule.checkpoint=[3steps]"]),
    **{name: ("vectors", [*LENGTH, *options, "model.batch_norm=true", *WEIGHTED]) for name, options in WEIGHTINGS.items()},
    "surgery": ("vectors", [*LENGTH, *WEIGHTINGS["surgery"], "trainer.micro_batch_size=32", "model.batch_norm=true", *WEIGHTED]),
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the directory of the run of a reference that nobody stopped; it is made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            workload, settings = REFERENCES[name]
            made[name] = runs.run(workload, tmp_path_factory.mktemp("uninterrupted"), *settings)
        return made[name]

    return of


def configuration(name: str, root: Path, *more: str) -> Any:
    workload, settings = REFERENCES[name]
    return runs.configuration(workload, root, *settings, *more)


def resume(name: str, root: Path, *more: str, kills: Sequence[Any] = ()) -> Path:
    return runs.resumed(configuration(name, root, *more), *kills)


@pytest.mark.parametrize("name", ["vectors", "masked", pytest.param("biota", marks=pytest.mark.slow)])
def test_the_reference_exercises_what_it_should(uninterrupted, name):
    found = runs.newest(uninterrupted(name))
    assert found.training_state["lr"]["reduced"] < 1, "plateau never reduced the rate"
    assert found.training_state["weighting"]["initial_losses"].min() > 0
    assert found.ema_state is not None and found.training_state["ema"]["applied"] == found.step
    assert name == "biota" or any("running_mean" in key for key in found.model_state)
    assert len(list((uninterrupted(name) / "validation").glob("*/*.json"))) == (3 if name == "vectors" else 3 * 5)


# -- stopped by a signal ---------------------------------------------------------------------------------------------------------


def test_stopped_after_every_single_step(uninterrupted, tmp_path):
    """One run, stopped by SIGTERM in each of its 12 updates in turn: in mid-epoch, at an epoch's end, at validations, at the end."""
    config = configuration("vectors", tmp_path)
    for step in range(1, 13):
        run = runs.interrupted(config, watching.stopped_at(step))
        summary = runs.summary(run)
        assert (summary["status"], summary["global_step"], runs.newest(run).step) == ("interrupted", step, step)
    assert runs.differences(uninterrupted("vectors"), runs.resumed(config)) == []


STOPS = [("masked", 1, 0), ("masked", 3, 2), ("masked", 4, 0), pytest.param("biota", 5, 2, marks=pytest.mark.slow), ("masked", 10, 0)]


@pytest.mark.parametrize("name, step, workers", STOPS)
def test_stopped_once_and_continued_with_other_workers(uninterrupted, tmp_path, name, step, workers):
    """In mid-epoch, at an epoch's end, with five validation passes pending, at the last step; the batch rows are the same too."""
    config = configuration(name, tmp_path)
    run = runs.interrupted(config, watching.stopped_at(step))
    assert bool(runs.newest(run).state["progress"]["pending_validations"]) == (step in (4, 10))
    assert runs.differences(uninterrupted(name), resume(name, tmp_path, f"trainer.num_workers={workers}")) == []


# -- killed ----------------------------------------------------------------------------------------------------------------------

UPDATE = (loop, "train_one_step")
CASES: dict[str, tuple[str, list[tuple[Any, str, int, bool]]]] = {  # name -> reference, kills: (owner, function, call, after it)
    "in the first update": ("vectors", [(*UPDATE, 1, False)]),  # before the first checkpoint
    "after the second": ("vectors", [(*UPDATE, 2, True)]),
    "in the third": ("vectors", [(*UPDATE, 3, False)]),
    "after the sixth": ("vectors", [(*UPDATE, 6, True)]),
    "after the eighth": ("vectors", [(*UPDATE, 8, True)]),
    "after the last": ("vectors", [(*UPDATE, 12, True)]),
    "again and again": ("vectors", [(*UPDATE, 5, False), (*UPDATE, 1, False), (*UPDATE, 2, False), (*UPDATE, 3, False)]),
    "validated, results not applied": ("vectors", [(validation, "apply_results", 1, False)]),
    "results applied, their checkpoint not written": ("vectors", [(validation, "apply_results", 2, True)]),
    "before a checkpoint": ("vectors", [(writer, "save_checkpoint", 3, False)]),
    "after a checkpoint, before older ones are deleted": ("vectors", [(writer, "save_checkpoint", 3, True)]),
    "in the resume": ("vectors", [(outputs.Outputs, "resume", 1, True)]),
    "after the final validations": ("vectors", [(train, "final_validations", 1, True)]),
    "before the summary": ("vectors", [(train, "finish", 1, False)]),
    "before the first growth": ("growing", [(*UPDATE, 3, False)]),
    "after it": ("growing", [(*UPDATE, 4, False)]),
    "at the last growth": ("growing", [(*UPDATE, 10, False)]),
    "after the last growth": ("growing", [(*UPDATE, 12, False)]),
    "in a growth, then before a checkpoint": ("growing", [(Growth, "connect", 6, True), (saving, "save", 2, False)]),
    "text, growing": ("language", [(*UPDATE, 8, False)]),
    "sets of gear": ("loadout", [(*UPDATE, 5, False)]),
    "activations on disk": ("dictionary", [(*UPDATE, 5, False)]),
    "activations made when they are read": ("computed", [(*UPDATE, 4, False), (*UPDATE, 2, True)]),
    "frozen parts, first epoch": ("frozen", [(*UPDATE, 2, False)]),
    "frozen parts, later": ("frozen", [(*UPDATE, 11, False)]),
    # the second kill loses the work since step 8
    **{f"{name}, twice": (name, [(*UPDATE, 6, False), (*UPDATE, 4, False)]) for name in WEIGHTINGS},
}


SLOW = {
    "after the sixth",
    "after the eighth",
    "before the first growth",
    "at the last growth",
    "after the last growth",
    "frozen parts, later",
}
SLOW |= {f"{name}, twice" for name in WEIGHTINGS}  # test_every_choice.py has a kill of each weighting


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES])
def test_a_killed_run_resumes_bit_for_bit(uninterrupted, tmp_path, case):
    """Work since the last checkpoint is done again, the same."""
    name, kills = CASES[case]
    run = resume(name, tmp_path, kills=kills)
    assert len(list((run / "launches").iterdir())) == len(kills) + 1
    assert runs.differences(uninterrupted(name), run) == []


PASSES = [*(("masked", n, n > 2) for n in (1, 2, 4, 5, 15)), pytest.param("biota", 9, False, marks=pytest.mark.slow)]


@pytest.mark.parametrize("name, call, after", PASSES)
def test_killed_in_a_validation_pass(uninterrupted, tmp_path, name, call, after):
    """Five passes each at steps 4, 8 and 10. A finished pass is not run again, a cut-off one starts over."""
    owner, function = (outputs.Outputs, "write_validation") if after else (validation, "_run_batches")
    with runs.killed(owner, function, call, after):
        runs.start(configuration(name, tmp_path))
    with watching.counted(validation, "_run_batches") as passes:
        run = resume(name, tmp_path)
    assert len(passes) == 15 - (call if after else call - 1)
    assert runs.differences(uninterrupted(name), run) == []


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_update_waits_for_the_copy_of_what_it_changes(uninterrupted, tmp_path, monkeypatch, forgotten):
    """Here the writer's thread comes to it only when an update is over. Negative control: without the wait the moments are torn."""
    updated, finish, update = threading.Event(), HostSnapshot.finish, Update.__call__

    def late(self):
        if threading.current_thread().name == "checkpoint":
            updated.wait(1 if forgotten else 0.1)  # the update waits for this copy unless it is forgotten
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
    found = runs.differences(uninterrupted("vectors"), resume("vectors", tmp_path, kills=[(loop, "train_one_step", 8)]))
    assert bool(found) == forgotten, found


# -- the end ---------------------------------------------------------------------------------------------------------------------


def test_a_finished_run_started_again_says_so_and_does_nothing(uninterrupted, tmp_path, capsys):
    root = tmp_path / "copy"
    shutil.copytree(uninterrupted("vectors").parents[1], root)
    before = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    assert runs.start(runs.configuration("vectors", root, *REFERENCES["vectors"][1], "logger.console=plain")) == 0
    assert "is finished" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()} == before


PATIENCE = ["schedule.validate=[2steps]", "schedule.early_stop.patience=2", "schedule.early_stop.min_delta=1000"]
EARLY = {"patience": PATIENCE, "max_steps": ["schedule.early_stop.max_steps=7"], "bound": ["schedule.early_stop.metric_bound=1000"]}


@every_choice(reason=list(EARLY), name=["final_validations", "finish"])
def test_a_run_that_stopped_early_trains_no_further(tmp_path, reason, name):
    settings = [*REFERENCES["vectors"][1], *EARLY[reason]]
    whole = runs.run("vectors", tmp_path / "whole", *settings)
    summary = runs.summary(whole)
    stop = {"patience": 6, "max_steps": 7, "bound": 4}[reason]
    assert (summary["status"], summary["global_step"]) == ("stopped_early", stop) and summary["stop_reason"]
    with runs.killed(train, name, 1):
        runs.start(runs.configuration("vectors", tmp_path / "cut", *settings))
    with watching.counted(loop, "train_one_step") as steps:
        cut = runs.run("vectors", tmp_path / "cut", *settings)
        assert runs.run("vectors", tmp_path / "cut", *settings) == cut
    assert steps == []
    assert runs.differences(whole, cut) == []


def test_a_signal_in_the_last_update_an_early_stop_allows(tmp_path):
    """The limit was reached and the signal came in the same update: the restart trains no further."""
    settings = [*REFERENCES["vectors"][1], *EARLY["max_steps"], "schedule.validate_at_end=false"]
    whole = runs.run("vectors", tmp_path / "whole", *settings)
    config = runs.configuration("vectors", tmp_path / "cut", *settings)
    runs.interrupted(config, watching.stopped_at(7))
    assert runs.differences(whole, runs.resumed(config)) == []


def test_a_signal_in_the_last_update_leaves_no_reason_to_stop(tmp_path):
    settings = ["schedule.validate=[]", "schedule.validate_at_end=false", "schedule.checkpoint_at_end=true", "trainer.length=3steps"]
    whole = runs.run("vectors", tmp_path / "whole", *settings)
    config = runs.configuration("vectors", tmp_path / "cut", *settings)
    runs.interrupted(config, watching.stopped_at(3))
    assert runs.differences(whole, runs.resumed(config)) == []


def test_a_later_limit_that_is_allowed_trains_on(tmp_path):
    settings = [*REFERENCES["vectors"][1], "schedule.validate_at_end=false", "schedule.checkpoint_at_end=false"]
    whole = runs.run("vectors", tmp_path / "whole", *settings, "schedule.early_stop.max_steps=10")
    runs.run("vectors", tmp_path / "more", *settings, "schedule.early_stop.max_steps=7")
    allowed = "run.allow=[schedule.early_stop.max_steps]"
    more = runs.run("vectors", tmp_path / "more", *settings, "schedule.early_stop.max_steps=10", allowed)
    assert runs.summary(more)["global_step"] == 10
    assert [name for name in runs.differences(whole, more) if name.startswith(("model", "ema", "training", "batches"))] == []


# -- negative controls -----------------------------------------------------------------------------------------------------------


def test_negative_control_the_comparison_sees_a_sampler_that_starts_one_step_late(uninterrupted, tmp_path):
    runs.interrupted(configuration("vectors", tmp_path), watching.stopped_at(8))
    original = PositionSampler._micro_batch

    def late(self, order, epoch, step, number):
        return original(self, order, epoch, (step + 1) % self.steps_per_epoch, number)

    with mock.patch.object(PositionSampler, "_micro_batch", late):
        found = runs.differences(uninterrupted("vectors"), resume("vectors", tmp_path))
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
    """Stopped in mid-epoch, one update after the last row, two validations applied."""
    runs.interrupted(configuration("vectors", tmp_path), watching.stopped_at(10))
    with forgetting(part):
        assert runs.differences(uninterrupted("vectors"), resume("vectors", tmp_path))


def test_negative_control_the_comparison_sees_a_forgotten_validation(uninterrupted, tmp_path):
    runs.interrupted(configuration("vectors", tmp_path), watching.stopped_at(8))
    with mock.patch.object(train, "finish_pending_validations", lambda t: t.progress.pending_validations.clear()):
        found = runs.differences(uninterrupted("vectors"), resume("vectors", tmp_path))
    assert "metrics.jsonl" in found and any(name.startswith("validation/step-00000008") for name in found)


def test_negative_control_the_comparison_sees_one_bit(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted("vectors"), tmp_path / "run")
    state = runs.newest(tmp_path / "run").training_state
    assert runs.unequal(state, runs.newest(uninterrupted("vectors")).training_state) == []
    tensor = next(iter(runs.newest(tmp_path / "run").model_state.values()))
    assert runs.unequal({"a": [tensor]}, {"a": [tensor * (1 + 1e-7)]}, "x") == ["x.a[0]"]
