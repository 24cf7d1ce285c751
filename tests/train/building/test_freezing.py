"""`trainer.freeze`: frozen parts keep their bits under every optimizer, with weight decay, averages and batch statistics."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from linnaeus.errors import ConfigError
from linnaeus.train.building.freezing import batch_statistics, freeze, frozen_parts, set_training
from tests import runs

FROZEN = ["model.batch_norm=true", "model.dropout=0.1", "trainer.freeze=[trunk.,shared]", "optimizer.weight_decay=0.5"]
FROZEN += ["trainer.ema_decay=0.9", "schedule.validate=[2steps]", "debug.batch_hashes=true"]


def model() -> nn.Module:
    return nn.ModuleDict({"trunk": nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)), "head": nn.Linear(3, 2)})


def initial_weights(root) -> dict[str, torch.Tensor]:
    """Return the weights of a run before its first update."""
    from linnaeus.workloads import build_workload

    return build_workload(runs.configuration("vectors", root, *FROZEN)).build_model().state_dict()


def changed(root, *more: str) -> tuple[set[str], set[str]]:
    """Return the names of the weights, and of the averages, that differ from the initial weights after a run."""
    newest, start = runs.newest(runs.run("vectors", root, *FROZEN, *more)), initial_weights(root)
    return tuple({name for name in start if not torch.equal(state[name], start[name])} for state in (newest.model_state, newest.ema_state))


@pytest.mark.parametrize("optimizer", ("adamw", "sgd"))
def test_frozen_weights_keep_their_bits_and_the_others_are_trained(optimizer, tmp_path):
    heads = {"heads.weight", "heads.bias"}
    assert changed(tmp_path, f"optimizer={optimizer}", "optimizer.lr=0.01") == (heads, heads)


def test_without_freezing_all_weights_and_batch_statistics_change(tmp_path):
    """Negative control: decay and batch statistics alone would change the frozen parts."""
    raw, averaged = changed(tmp_path, "trainer.freeze=[]")
    assert raw == averaged == set(initial_weights(tmp_path))


@pytest.mark.slow
def test_two_processes_make_the_updates_of_one(tmp_path):
    """DDP does not wait for gradients of frozen parts, and frozen batch statistics keep law 3."""
    exact = [*FROZEN, "trainer.precision=float64", "model.dropout=0"]
    one = runs.newest(runs.run("vectors", tmp_path / "one", *exact))
    runs.run_group(2, [runs.job("vectors", tmp_path / "two", *exact)], tmp_path)
    two = runs.newest(tmp_path / "two" / "vectors" / "run")
    assert one.step == two.step
    for name, tensor in one.model_state.items():
        assert torch.allclose(tensor, two.model_state[name], rtol=0, atol=1e-10), name


def test_frozen_parts_have_no_gradient_and_stay_in_evaluation_mode():
    net = model()
    lines = freeze(net, ["trunk."])
    assert lines == ["frozen: trunk.; 8 of 26 parameters are trained"]
    assert [name for name, _ in frozen_parts(net)] == ["trunk"]
    set_training(net)
    assert net.training and net["head"].training and not any(module.training for module in net["trunk"].modules())
    features = net["trunk"](torch.randn(5, 3))
    assert not features.requires_grad
    assert torch.equal(net["trunk"][1].running_mean, torch.zeros(3))
    set_training(net, False)
    assert not net["head"].training


def test_frozen_layers_do_not_count_as_batch_statistics():
    net = model()
    assert batch_statistics(net) == ["trunk.1"]
    freeze(net, ["trunk"])
    assert batch_statistics(net) == []


def test_a_partly_frozen_module_stays_in_training_mode():
    net = model()
    freeze(net, ["trunk.1.weight"])
    assert frozen_parts(net) == []
    assert not net["trunk"][1].weight.requires_grad and net["trunk"][1].bias.requires_grad


def test_a_prefix_ends_at_a_dot():
    net = nn.ModuleDict({"head": nn.Linear(2, 2), "head_2": nn.Linear(2, 2)})
    freeze(net, ["head"])
    assert [name for name, p in net.named_parameters() if p.requires_grad] == ["head_2.weight", "head_2.bias"]


@pytest.mark.parametrize(
    "prefixes, message",
    [(["nose"], "no weight name begins with nose; the names begin with trunk, head"), (["trunk", "head"], "leaves nothing to train")],
)
def test_mistakes_are_named(prefixes, message):
    with pytest.raises(ConfigError, match=message):
        freeze(model(), prefixes)


@pytest.mark.parametrize("place", ("shared", "features", "trunk"))
def test_gradnorm_cannot_measure_at_a_frozen_layer(place, tmp_path):
    gradnorm = ["weighting=gradnorm", f"weighting.place={place}", "weighting.every=[1steps]"]
    with pytest.raises(ConfigError, match="name=gradnorm measures at the last shared layer, which is frozen; use weighting=fixed"):
        runs.run("vectors", tmp_path / "a", *gradnorm, "trainer.freeze=[trunk,shared]")
    if place == "shared":  # freezing the trunk alone is allowed
        runs.run("vectors", tmp_path / "b", *gradnorm, "trainer.freeze=[trunk]", "trainer.length=2steps")
