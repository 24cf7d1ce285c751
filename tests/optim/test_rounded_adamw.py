"""`optimizer.state_precision=bf16`: half of the memory for the moments, rounded at random so that they do not stall."""

import random
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from linnaeus.errors import ConfigError
from linnaeus.optim import build_optimizer, rounded_adamw
from linnaeus.optim.rounded_adamw import round_at_random
from linnaeus.train import loop
from tests import runs
from tests.optim.test_optimizers import CONFIGS, fill_gradients, make_model
from tests.runs import unequal

BF16, FLOAT32 = CONFIGS["adamw_bf16"], CONFIGS["adamw"]
SETTING = "optimizer.state_precision=bf16"


def trained(config, gradients, seed=0, first=1):
    """Return the optimizers of one vector after updates with the rows of `gradients`."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(gradients.shape[1:]))
    optimizers = build_optimizer(config, model, seed)
    optimizers.lr = 1e-3
    for number, row in enumerate(gradients, first):
        model.weight.grad, optimizers.number = row.clone(), number
        with torch.no_grad():
            optimizers.step()
    return optimizers


def second_moment(optimizers):
    return optimizers.state_dict()["state"]["weight"]["exp_avg_sq"].float()


def to_nearest(values, noise):
    values.copy_(values.bfloat16())


# -- rounding ------------------------------------------------------------------------------------------------------------------


def test_rounding_is_exact_in_the_mean():
    values = torch.tensor([1.0, 1.001, -1.001, 3e-20, -2e30, 0.0, 1.00390625])
    total, count = torch.zeros_like(values, dtype=torch.float64), 2**16
    noises = torch.arange(0, count, 64, dtype=torch.int32) + 32
    for noise in noises:
        rounded = values.clone()
        round_at_random(rounded, noise.expand(len(values)))
        assert torch.equal(rounded, rounded.bfloat16().float()), "a value of bf16"
        total += rounded
    torch.testing.assert_close(total / len(noises), values.double(), rtol=1e-5, atol=0)


def test_a_value_of_bf16_stays():
    values = torch.randn(1000).bfloat16().float()
    for noise in (0, 1, 65535):
        rounded = values.clone()
        round_at_random(rounded, torch.full((1000,), noise, dtype=torch.int32))
        assert torch.equal(rounded, values)


def test_the_second_moment_follows_small_changes():
    """With beta2 = 0.999 an update changes it by 0.1 % or less, which bf16 cannot store. The negative control rounds to the nearest."""
    gradients = torch.ones(1500, 4096)
    config = {"beta2": 0.999}
    wanted = second_moment(trained(replace(FLOAT32, **config), gradients)).mean()
    found = second_moment(trained(replace(BF16, **config), gradients))
    assert abs(found.mean() / wanted - 1) < 0.005, (found.mean(), wanted)
    assert found.std() / wanted < 0.06, "each single one follows"
    with mock.patch.object(rounded_adamw, "round_at_random", to_nearest):
        stalled = second_moment(trained(replace(BF16, **config), gradients)).mean()
    assert abs(stalled / wanted - 1) > 0.15, (stalled, wanted)


def test_the_random_bits_depend_on_seed_and_update_only():
    gradients = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(5)
    before = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    one = trained(BF16, gradients).state_dict()
    assert before == [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    assert unequal(one, trained(BF16, gradients).state_dict()) == []
    assert unequal(one, trained(BF16, gradients, seed=1).state_dict()) and unequal(one, trained(BF16, gradients, first=2).state_dict())


# -- memory and batches --------------------------------------------------------------------------------------------------------


def state_bytes(config):
    moments = build_optimizer(config, make_model()).state_dict()["state"].values()
    return sum(t.nbytes for state in moments for name, t in state.items() if name != "step")


def test_the_moments_take_half_of_the_memory():
    parameters = sum(p.numel() for p in make_model().parameters())
    assert (state_bytes(FLOAT32), state_bytes(BF16)) == (8 * parameters, 4 * parameters)


@pytest.mark.parametrize("size", [7, 64, 100])
@torch.no_grad()
def test_batches_do_not_change_the_update(monkeypatch, size):
    """Parameters are cut into parts of 7 elements, or several are in one batch. Some have no gradient.

    Without noise, because the noise depends on the batches."""
    monkeypatch.setattr(rounded_adamw, "continued_key", lambda *parts: 0)
    found = []
    for elements in (1 << 22, size):
        monkeypatch.setattr(rounded_adamw, "BATCH", elements)
        model = make_model()
        optimizers = build_optimizer(BF16, model)
        optimizers.lr = 0.01
        optimizers.optimizers[0]._table.zero_()
        for step in range(3):
            fill_gradients(model, step)
            if step == 1:
                model[2].weight.grad = model[3].bias.grad = None
            optimizers.step(torch.tensor(0.0), torch.tensor(2.0))
        found.append((dict(model.named_parameters()), optimizers.state_dict()))
        batches = optimizers.optimizers[0]._batches
        assert elements > size or max(batch.place.stop - batch.place.start for batch in batches) <= size < 200
    (parameters, state), (others, other_state) = found
    for name, p in parameters.items():  # a kernel may round the elements at the end of a part differently
        torch.testing.assert_close(p, others[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state["state"][name], other_state["state"][name], rtol=2**-7, atol=1e-7)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def test_parameters_that_all_processes_have_are_rounded_alike():
    """Two processes have different numbers of rows of a sharded parameter. In the negative control it is like the others."""
    same = {}
    for names in ({"head.weight"}, set()):
        weights = []
        for rows in (3, 5):
            torch.manual_seed(0)
            model = nn.ModuleDict({"trunk": nn.Linear(40, 40), "head": nn.Linear(40, rows, bias=False), "end": nn.Linear(40, 40)})
            optimizers = build_optimizer(BF16, model, 0, names)
            optimizers.lr = 0.01
            for number in range(1, 4):
                for index, p in enumerate(model.parameters()):
                    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * number + index))
                optimizers.number = number
                optimizers.step()
            state = optimizers.state_dict()["state"]
            weights.append([state[f"{part}.{kind}"] for part in ("trunk", "end") for kind in ("weight", "bias")])
        same[bool(names)] = unequal(*weights) == []
    assert same == {True: True, False: False}


@torch.no_grad()
def test_an_update_is_that_of_adamw():
    """Moments are rounded after an update, so the first update has the bits of float32. Later ones differ by the rounding."""
    models, optimizers = [make_model(), make_model()], []
    for model, config in zip(models, (FLOAT32, BF16), strict=True):
        optimizers.append(build_optimizer(config, model))
        optimizers[-1].lr = 0.01
    for step in range(10):
        for model, one in zip(models, optimizers, strict=True):
            fill_gradients(model, step)
            one.number = step + 1
            one.step()
        same = unequal(models[0].state_dict(), models[1].state_dict()) == []
        assert same == (step == 0)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0.003)


# -- runs ----------------------------------------------------------------------------------------------------------------------


def test_a_run_continues_bit_for_bit(tmp_path, monkeypatch):
    """In the negative control the random bits depend on the number of updates in the launch."""
    config = runs.configuration("vectors", tmp_path / "cut", SETTING, "schedule.checkpoint=[2steps]", "trainer.length=2epochs")
    whole = runs.run("vectors", tmp_path / "whole", SETTING, "schedule.checkpoint=[2steps]", "trainer.length=2epochs")
    cut = runs.resumed(config, (loop, "train_one_step", 4))
    assert runs.differences(whole, cut) == []
    state = runs.newest(cut).training_state["optimizers"]["state"]
    assert {t.dtype for moments in state.values() for name, t in moments.items() if name != "step"} == {torch.bfloat16}
    launch = mock.Mock(side_effect=lambda *parts: launch.call_count)
    monkeypatch.setattr(rounded_adamw, "continued_key", launch)
    again = runs.configuration("vectors", tmp_path / "again", SETTING, "schedule.checkpoint=[2steps]", "trainer.length=2epochs")
    assert runs.differences(
        runs.run("vectors", tmp_path / "other", SETTING, "trainer.length=2epochs"), runs.resumed(again, (loop, "train_one_step", 4))
    )


def test_moments_are_converted_only_if_that_is_allowed(tmp_path):
    more = ["schedule.checkpoint=[2steps]", "trainer.length=2epochs"]
    with runs.killed(loop, "train_one_step", 4):
        runs.start(runs.configuration("vectors", tmp_path, *more))
    with pytest.raises(ConfigError, match=r'optimizer.state_precision: "float32" -> "bf16".*run.allow'):
        runs.start(runs.configuration("vectors", tmp_path, *more, SETTING))
    run = runs.resumed(runs.configuration("vectors", tmp_path, *more, SETTING, "run.allow=[optimizer.state_precision]"))
    line = "optimizer: the saved moments are converted from float32 to bfloat16, rounded to the nearest"
    assert (run / "train.log").read_text().count(line) == 1


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"set optimizer.fused=true"):
        build_optimizer(replace(BF16, fused=False), make_model())
    with pytest.raises(ConfigError, match=r"optimizer.state_precision=bf16 is for float32 parameters"):
        build_optimizer(BF16, make_model(torch.float64))
