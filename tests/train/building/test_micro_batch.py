"""`trainer.micro_batch_size=auto`: the largest micro-batch that fits, and then the same run as with that number."""

import contextlib
import dataclasses
import gc
import random
import weakref
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import yaml

from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from linnaeus.rundir import identity
from linnaeus.train.building import micro_batch, trial_update
from linnaeus.workloads.base import Model
from tests import runs
from tests.limited_memory import limited_to

AUTO = "trainer.micro_batch_size=auto"
EVERYTHING = ["weighting=gradnorm", "weighting.every=[1steps]", "weighting.conflict=[2steps]", "trainer.ema_decay=0.9"]
EVERYTHING += ["schedule.best_monitor=val_ema/loss", "data.validation_batch=null"]
SHORT = ["trainer.length=4steps", "schedule.validate=[100%]"]


def saved(run: Path) -> dict:
    return yaml.safe_load((run / "config.yaml").read_text())


@pytest.mark.parametrize("workload", ["masked", pytest.param("biota", marks=pytest.mark.slow)])
def test_a_run_is_the_same_as_with_the_number_given(tmp_path, workload):
    """With batch statistics, GradNorm, the moving average of the weights, mixing and masking."""
    with limited_to(9) as memory:
        found = runs.run(workload, tmp_path / "auto", *SHORT, *EVERYTHING, AUTO)
    given = runs.run(workload, tmp_path / "given", *SHORT, *EVERYTHING, "trainer.micro_batch_size=8")
    assert runs.differences(found, given) == []
    one, other = saved(found), saved(given)
    assert one | {"run": None} == other | {"run": None} and one["trainer"]["micro_batch_size"] == 8
    assert set(memory.tried) - {1} == {2, 4, 8, 16}, "increasing, up to the first that does not fit"
    line = "micro_batch_size=auto: 8 of 32 samples per process, 8.0 GiB of 10.0 GiB"
    assert (found / "train.log").read_text().count(line) == 1


def test_negative_control_another_number_is_another_run(tmp_path):
    """Dropout is drawn for each micro-batch, so a run with another number differs."""
    with limited_to(16):
        found = runs.run("masked", tmp_path / "auto", *SHORT, AUTO)
    assert runs.differences(found, runs.run("masked", tmp_path / "given", *SHORT, "trainer.micro_batch_size=8")) != []


def test_a_resumed_run_keeps_the_number_on_any_device(tmp_path):
    config = runs.configuration("vectors", tmp_path, *SHORT, AUTO, "schedule.checkpoint=[1steps]")
    with limited_to(5), runs.killed(runs.train.loop, "train_one_step", 3):
        runs.start(config)
    with mock.patch.object(micro_batch, "largest", side_effect=AssertionError), limited_to(1):
        run = runs.resumed(config)
    assert saved(run)["trainer"]["micro_batch_size"] == 4
    assert "micro_batch_size=auto: 4, from the saved configuration of this run" in (run / "train.log").read_text()
    given = runs.run("vectors", tmp_path / "given", *SHORT, "trainer.micro_batch_size=4", "schedule.checkpoint=[1steps]")
    assert runs.differences(run, given) == []
    with mock.patch.object(micro_batch, "find_micro_batch", side_effect=AssertionError):
        assert runs.start(config) == 0, "finished"
    with pytest.raises(ConfigError, match=r"trainer.micro_batch_size: 4 -> 8"):
        runs.start(runs.configuration("vectors", tmp_path, *SHORT, "trainer.micro_batch_size=8", "schedule.checkpoint=[1steps]"))


def test_the_directory_is_that_of_auto(tmp_path):
    config = runs.configuration("vectors", tmp_path, *SHORT, AUTO)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, name=None))
    path = identity.run_path(dataclasses.asdict(config))
    for _ in range(2):
        with limited_to(5):
            assert runs.start(config) == 0
        assert [folder.name for folder in path.parent.iterdir()] == [path.name] and saved(path)["trainer"]["micro_batch_size"] == 4


def test_the_cpu_takes_the_whole_batch(tmp_path):
    run = runs.run("vectors", tmp_path, *SHORT, AUTO)
    assert saved(run)["trainer"]["micro_batch_size"] == 32
    assert "micro_batch_size=auto: 32 of 32 samples per process, the memory of a CPU is not limited" in (run / "train.log").read_text()


def test_nothing_fits(tmp_path):
    with limited_to(0), pytest.raises(ConfigError) as raised:
        runs.run("vectors", tmp_path, *SHORT, AUTO, "trainer.precision=float32")
    text = str(raised.value)
    assert text.startswith("trainer.micro_batch_size=auto: an update in micro-batches of 1 sample does not fit into 0.0 GiB")
    assert (
        "set trainer.precision=bf16 or trainer.activation_checkpointing=blocks or optimizer.state_precision=bf16" in text
        and "\n" not in text
    )
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_update, "build_training", mock.Mock(side_effect=torch.OutOfMemoryError))
    with limited_to(9), pytest.raises(ConfigError, match=r"does not fit into 9\.0 GiB"):
        runs.run("vectors", tmp_path, *SHORT, AUTO)


def test_a_sharded_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Model, "shard", lambda model, context: {"head.weight": 9})
    config, directory = runs.configuration("vectors", tmp_path, AUTO), mock.Mock(path=tmp_path)
    with limited_to(9) as memory, pytest.raises(ConfigError, match=r"divided over the processes \(head.sharded\); give a number"):
        micro_batch.largest(config, runs.train.join_group(config), directory, 32, memory)


@pytest.mark.parametrize("weighting", ["famo", "dwa", "uncertainty"])
def test_every_weighting_can_be_tried(tmp_path, weighting):
    with limited_to(9):
        run = runs.run("vectors", tmp_path, "trainer.length=1steps", AUTO, f"weighting={weighting}", "weighting.every=[1steps]")
    assert saved(run)["trainer"]["micro_batch_size"] == 8


def test_sizes_that_are_possible():
    def sizes(batch, weighting="fixed", **workload):
        config = runs.configuration("vectors", Path("x"), f"trainer.global_batch_size={batch}", f"weighting={weighting}")
        return micro_batch.allowed_sizes(config, mock.Mock(**{"pairs_samples": False, "micro_batch_multiple": 1} | workload))

    assert sizes(12) == [1, 2, 3, 4, 6, 12]
    assert sizes(12, pairs_samples=True) == [2, 4, 6, 12]
    assert sizes(12, micro_batch_multiple=3) == [3, 6, 12]
    assert sizes(12, weighting="surgery") == [12]


def test_processes_take_the_smallest_number(tmp_path):
    """The first process has room for 9 samples, the second one for 5."""
    job = runs.job("vectors", tmp_path / "auto", *SHORT, AUTO, "trainer.global_batch_size=64", watch=["unequal_memory"])
    (tmp_path / "auto").mkdir()
    runs.run_group(2, [job], tmp_path)
    run = tmp_path / "auto/vectors/run"
    assert saved(run)["trainer"]["micro_batch_size"] == 4
    assert "micro_batch_size=auto: 4 of 32 samples per process" in (run / "train.log").read_text()


def test_a_trial_has_no_collectives(tmp_path, monkeypatch):
    """A dictionary sums counts over the processes after an update. A process whose trial has failed would not take part."""
    config, callers = runs.configuration("planted", tmp_path, AUTO), []
    context = runs.train.join_group(config)
    monkeypatch.setattr(DistributedContext, "all_reduce", lambda self, tensor, op="sum": callers.append(self) or tensor)
    with limited_to(9):
        micro_batch.find_micro_batch(config, context, mock.Mock(kept={}, path=tmp_path))
    assert callers and not any(caller is context for caller in callers)


def test_an_error_on_one_process_ends_the_others_too():
    """The process with the error takes part in the collective first, then raises its own error; the others raise one with its text."""
    answers, error = [], OSError("photographs.bin is gone")

    def gathered(value):
        answers.append(value)
        return answers

    with pytest.raises(OSError, match="is gone"):
        micro_batch.fits_everywhere(mock.Mock(all_gather=gathered), mock.Mock(side_effect=error))
    with pytest.raises(ConfigError, match=r"the trial has failed on process rank 0: OSError: photographs.bin is gone"):
        micro_batch.fits_everywhere(mock.Mock(all_gather=gathered), lambda: "parts")
    assert len(answers) == 2


def test_a_trial_has_the_schedule_of_the_run(tmp_path, monkeypatch):
    """85 samples in global batches of 32: 3 updates per epoch. With the share of one of two processes, 16, there would be 6."""
    config, lengths = runs.configuration("vectors", tmp_path, AUTO), set()
    context = runs.train.join_group(config)
    monkeypatch.setattr(context, "world_size", 2)
    monkeypatch.setattr(trial_update.Trial, "update_twice", lambda trial, *arguments: lengths.add(trial.plan.length.total_steps))
    micro_batch.largest(config, context, mock.Mock(path=tmp_path), 16, mock.MagicMock())
    assert lengths == {15}


# -- nothing of a trial stays --------------------------------------------------------------------------------------------------


def generators() -> list:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


def test_random_generators_are_as_before(tmp_path, monkeypatch):
    """The negative control leaves the guard out."""
    config, states = runs.configuration("vectors", tmp_path, *SHORT, AUTO), {}
    directory = mock.Mock(kept={}, path=tmp_path)
    for name, guard in (("guarded", trial_update.kept_generators), ("control", lambda device: contextlib.nullcontext())):
        monkeypatch.setattr(micro_batch, "kept_generators", guard)
        context, before = runs.train.join_group(config), generators()
        with limited_to(9):
            micro_batch.find_micro_batch(config, context, directory)
        states[name] = before == generators()
    assert states == {"guarded": True, "control": False}


def test_activations_are_freed(tmp_path):
    """Without `clear_frames`, the negative control, the error of a failed trial keeps all tensors in its frames."""
    kept: list[torch.OutOfMemoryError] = []
    activations: list[weakref.ref] = []

    def work():
        activation = torch.nn.Identity()  # can be referred to weakly, in place of a tensor
        activations.append(weakref.ref(activation))
        kept.append(torch.OutOfMemoryError("no memory is left"))  # something keeps the error
        raise kept[-1]

    assert trial_update.fits(work) == (None, False)
    with mock.patch("traceback.clear_frames"):
        assert trial_update.fits(work) == (None, False)
    gc.collect()
    assert [activation() is None for activation in activations] == [True, False]
