"""Everything that has state: into plain containers, through a file that is read with `weights_only=True`, into a fresh object, equal.

The walk starts from `Training`, so a new part with a state is found without being listed here.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

import pytest
import torch

from linnaeus import train, workloads
from linnaeus.checkpoint.format import assert_plain
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from linnaeus.progress import TrainingStage
from linnaeus.train.state import Training
from tests import runs, watching

SETTINGS = {
    "vectors": [
        "trainer.precision=fp16",
        "model.batch_norm=true",
        "lr_scheduler=plateau",
        "lr_scheduler.monitor=val_ema/loss",
        "growth=linear",
        "growth.start=0.9",  # with batch norm: units without inputs would blow gradients up beyond fp16
    ],
    "biota": ["optimizer=muon", "trainer.global_batch_size=8"],
}
COMMON = ["trainer.ema_decay=0.9", "weighting=gradnorm", "weighting.every=[1steps]", "schedule.best_monitor=val_ema/loss"]
COMMON += ["schedule.early_stop.monitor=val_ema/loss", "schedule.early_stop.patience=9", "schedule.validate=[2steps]"]
COMMON += ["trainer.length=5steps", "schedule.log=[3steps]", "schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]"]
OTHERS = {"model", "ema"}  # the tensors of these have files of their own


def build(config, seed: int = 0) -> Training:
    """Return the parts of a run before anything happened to them."""
    config = dataclasses.replace(config, seed=seed)
    context = DistributedContext().initialize(device="cpu")
    workload = workloads.build_workload(config)
    return train.build_training(config, context, workload, train.resolve_schedule(config, workload, context), Path("."))


@pytest.fixture(scope="module", params=SETTINGS)
def trained(request, tmp_path_factory):
    """A workload's `Training` as it stands at the end of a run, and its configuration."""
    config = runs.configuration(request.param, tmp_path_factory.mktemp(request.param), *COMMON, *SETTINGS[request.param])
    with watching.counted(train, "finish") as calls:
        assert runs.start(config) == 0
    t = calls[0][0]
    t.update.norms.skipped = 2  # as if two had been skipped
    t.progress.validation_step = t.progress.global_step  # and with pending passes
    t.progress.pending_validations = [(TrainingStage.VALIDATION_PARTIAL_MASK_META, 1)]
    return t, config


def through_a_file(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


def test_every_part_survives_a_file_and_a_fresh_object(trained, tmp_path):
    t, config = trained
    fresh = build(config, seed=3)
    for name, part in t.stateful().items():
        state = part.state_dict()
        assert_plain(state, name, tensors=True)
        other = fresh.stateful()[name]
        if state:
            assert runs.unequal(state, other.state_dict(), name), f"{name} of a fresh run is no different, the test shows nothing"
        other.load_state_dict(through_a_file(state, tmp_path / name))
        assert runs.unequal(state, other.state_dict(), name) == []


def test_a_loaded_state_shares_no_memory_with_what_it_was_loaded_from(trained, tmp_path):
    """Else the next update would change a state dict somebody still holds."""
    t, config = trained
    fresh = build(config)
    for name, part in fresh.stateful().items():
        state = through_a_file(t.stateful()[name].state_dict(), tmp_path / name)
        part.load_state_dict(state)
        held = {tensor.data_ptr() for tensor in tensors_in(vars_of(part))} - {0}
        assert not held & {tensor.data_ptr() for tensor in tensors_in(state)}, name


def test_model_averages_and_sums_of_this_rank_too(trained, tmp_path):
    t, config = trained
    fresh = build(config, seed=3)
    t.tracker.sums.add(torch.full_like(t.weighting.weights, 1.5), t.tracker.weights)
    t.tracker.add_update([1.0] * len(t.workload.tasks))  # as between two rows
    fresh.tracker.load_state_dict(t.tracker.state_dict())
    states = through_a_file([t.tracker.rank_state_dict()], tmp_path / "ranks")
    fresh.tracker.load_rank_state_dict(states, 0, 1)
    assert runs.unequal(t.tracker.rank_state_dict(), fresh.tracker.rank_state_dict()) == []
    fresh.model.load_state_dict(t.model.state_dict())
    fresh.ema.load_averaged(t.ema.averaged())
    assert runs.unequal(dict(t.model.state_dict()), dict(fresh.model.state_dict())) == []
    assert runs.unequal(t.ema.averaged(), fresh.ema.averaged()) == []
    assert runs.unequal(t.ema.averaged(), dict(t.model.state_dict())), "the averages are the weights, the test shows nothing"


def test_nothing_with_a_state_is_left_out(trained):
    """Walk the objects a run consists of: whoever has a state_dict is in `stateful`, or is the model."""
    t, _ = trained
    listed = {id(part) for part in t.stateful().values()}
    inside = {id(member) for part in t.stateful().values() for member in reachable(part)}
    for field in dataclasses.fields(t):
        value = getattr(t, field.name, None)
        if hasattr(value, "state_dict") and field.name not in {"model", "runner"}:
            assert id(value) in listed, f"{field.name} has a state that no checkpoint holds"
        for member in reachable(value):
            if hasattr(member, "state_dict") and not isinstance(member, (torch.nn.Module, type)):
                known = id(member) in listed | inside or field.name in {"output", "workload"}
                assert known, f"{field.name} holds a {type(member).__name__} with a state that no checkpoint holds"


def test_a_checkpoint_has_every_part(trained):
    t, config = trained
    found = runs.newest(runs.run_path(config))
    assert set(found.training_state) == {*t.stateful(), "ranks"}
    assert found.ema_state is not None


def test_negative_control_a_part_left_out_of_the_checkpoint_is_noticed(tmp_path):
    """Stop a run whose checkpoints lack a part, and go on with a whole one: refused, by name."""
    config = runs.configuration("vectors", tmp_path, *COMMON, *SETTINGS["vectors"])
    original = Training.stateful
    for part in ("progress", "optimizers", "lr", "precision", "update", "weighting", "tracker", "ema", "early_stopping"):
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, root=str(tmp_path / part)))
        leave_out = mock.patch.object(
            Training, "stateful", lambda self, part=part: {name: value for name, value in original(self).items() if name != part}
        )
        with leave_out, watching.stopped_at(1):
            assert runs.start(config) == 75
        with pytest.raises(ConfigError, match=f"does not contain a state of {part}"):
            runs.start(config)


def vars_of(part) -> dict:
    slots = {name: getattr(part, name) for cls in type(part).__mro__ for name in getattr(cls, "__slots__", ())}
    return {**slots, **getattr(part, "__dict__", {})}


def reachable(part, depth: int = 3) -> list:
    """Objects of ours that `part` holds, in attributes and lists, a few levels down."""
    if depth == 0 or isinstance(part, (torch.Tensor, torch.nn.Module, str)):
        return []
    values = list(vars_of(part).values()) if type(part).__module__.startswith(("linnaeus", "tests")) else []
    values += list(part) if isinstance(part, (list, tuple)) else []
    values += list(part.values()) if isinstance(part, dict) else []
    return [*values, *(inner for value in values for inner in reachable(value, depth - 1))]


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
