"""An update of a model that grows: what is missing stays 0 everywhere, and the first steps of what is new are no larger than anyone's."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linnaeus.config.schema_optimization import LinearGrowthConfig
from linnaeus.errors import ConfigError
from linnaeus.optim import build_optimizer, update
from linnaeus.optim.growth import build_growth
from linnaeus.workloads.base import Model
from tests.optim.growth_model import LR, Growing, Net, Steps, optimizer, signs

OPTIMIZERS = ("adamw", "adamw_unfused", "sgd", "sgd_nesterov", "sgd_plain", "sgd_unfused")
COUNTS = {0: 240, 4: 300, 9: 700, 12: 1200}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("by", ["gradient", "random"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_missing_is_zero_in_weights_moments_and_average(name, by, dtype):
    g = Growing(name, COUNTS, by, dtype, clip=1.0, weight_decay=0.5)
    wanted, before = 240, g.connected.clone()
    for number in range(1, 14):
        wanted = COUNTS.get(number, wanted)
        g.step(torch.randn(30, 40, generator=torch.Generator().manual_seed(number)))
        missing = ~g.connected
        assert int(g.connected.sum()) == wanted and (g.connected | ~before).all(), "as many as scheduled, and none is taken away"
        averages = g.ema.averaged()["hidden.weight"]
        tensors = [g.weight, averages, *(kept for kept in g.kept.values() if kept.dim())]
        assert all((tensor[missing] == 0).all() for tensor in tensors)
        assert g.growth.row()["growth/density"] == wanted / 1200 == float(g.connected.double().mean())
        assert g.growth.row()["growth/active_parameters"] == wanted + 30 + 30 * 3 + 3
        assert (g.weight[g.connected] != 0).all() and (averages[g.connected] != 0).all(), "all that is connected moves"
        before = g.connected.clone()


def test_negative_control_without_masked_gradients_they_do_move():
    g = Growing("adamw", COUNTS)
    with mock.patch.object(type(g.growth), "connect", lambda self, number, grads: []):
        g.step(signs(0))
    assert (g.weight[~g.connected] != 0).any() and (g.kept["exp_avg_sq"][~g.connected] != 0).any()


@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_norm_and_the_clipping_are_of_connected_weights(clip):
    g = Growing("sgd_plain", {0: 240}, clip=clip, dtype=torch.float64, weight_decay=0.0)
    gradient = signs(1, 3.0).double()
    moved = g.step(gradient, rest=0.0)
    norm = float((gradient * g.connected).norm())
    assert float(g.update.grad_norm) == pytest.approx(norm, rel=1e-12) and norm == pytest.approx(3 * math.sqrt(240))
    assert float(gradient.norm()) > 2 * norm, "the gradient of all weights is another"
    assert float(moved.norm()) == pytest.approx(LR * (clip or norm), rel=1e-12)


@pytest.mark.parametrize("name", ["adamw", "adamw_unfused"])
@pytest.mark.parametrize("beta2", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_first_step_of_a_new_weight_is_at_most_the_learning_rate(name, beta2, scaled):
    """Whatever the gradient is, tiny or huge, and however late it comes; fp16's loss scale and clipping change nothing."""
    for late in (1, 2, 30, 300):
        g = Growing(name, {0: 240, late: 700}, clip=5.0, scaled=scaled, weight_decay=0.0, beta2=beta2)
        for number in range(1, late):
            g.step(signs(number, 1e-3))
        before = g.connected.clone()
        sizes = torch.logspace(-4, 3, 1200).view(30, 40)
        moved = g.step(signs(7) * sizes).abs()
        new = g.connected & ~before
        assert int(new.sum()) == 460
        assert float(moved[new].max()) <= LR * (1 + 1e-4)
        assert float(moved[new].max()) > LR * 0.02, "they do move"


def largest_after_connecting(g: Growing, late: int, steps: int) -> tuple[float, float]:
    """(of the new, of the old) weights the largest step in `steps` updates from the connection on, under gradients that are alike for
    all but the first of every fourth weight, which is near 0 by chance."""
    for number in range(1, late):
        g.step(signs(number))
    before, news, olds = g.connected.clone(), [], []
    for number in range(late, late + steps):
        gradient = signs(number)
        if number == late:
            gradient[:, ::4] *= 1e-5
        moved = g.step(gradient).abs()
        news.append(float(moved[g.connected & ~before].max()))
        olds.append(float(moved[before].max()))
    return max(news), max(olds)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_twenty_steps_of_new_weights_are_no_larger_than_those_of_old_ones(name):
    late = 400
    new, old = largest_after_connecting(Growing(name, {0: 600, late: 900}, weight_decay=0.0), late, 20)
    assert new <= old * (1 + 1e-5)


@pytest.mark.parametrize("name", ["adamw", "adamw_unfused"])
def test_negative_control_unseeded_moments_take_steps_several_times_the_learning_rate(name):
    late = 400
    with mock.patch.object(update, "seed_second_moments", lambda *arguments: None):
        new, old = largest_after_connecting(Growing(name, {0: 600, late: 900}, weight_decay=0.0), late, 20)
    assert new > 1.5 * LR and new > 1.5 * old


@pytest.mark.parametrize("by", ["gradient", "random"])
def test_a_skipped_update_grows_all_the_same_and_poisons_nothing(by):
    """The masks keep to the schedule; weights, averages and the moments of old weights keep their bits; the next update is sane."""
    g = Growing("adamw", {0: 600, 50: 900}, by, weight_decay=0.0)
    for number in range(1, 50):
        g.step(signs(number))
    before, kept, average = g.connected.clone(), {k: v.clone() for k, v in g.kept.items()}, g.ema.averaged()["hidden.weight"].clone()
    broken = signs(50)
    broken[3, 4] = math.inf
    assert (g.step(broken) == 0).all() and float(g.update.skipped_updates) == 1
    new = g.connected & ~before
    assert int(new.sum()) == 300
    assert all(
        torch.equal(value[before] if value.dim() else value, kept[k][before] if value.dim() else kept[k]) for k, value in g.kept.items()
    )
    assert torch.equal(g.ema.averaged()["hidden.weight"], average) and (g.kept["exp_avg"][new] == 0).all()
    assert g.kept["exp_avg_sq"][new].isfinite().all() and (g.kept["exp_avg_sq"][new] > 0).all()
    moved = g.step(signs(51)).abs()
    assert 0 < float(moved[new].max()) <= LR * (1 + 1e-4)


def test_a_matrix_without_gradient_grows_at_random():
    g = Growing("adamw", {0: 240, 1: 500}, "gradient")
    g.net.out.weight.grad = torch.ones(3, 30)
    g.update.start(1)
    g.update()
    assert torch.equal(g.connected, Growing("adamw", {0: 500}).connected) and (g.weight[~g.connected] == 0).all()


def test_masks_and_what_is_told_survive_a_state():
    g, other = Growing("adamw", COUNTS, "gradient"), Growing("adamw", COUNTS, "gradient")
    for number in range(1, 10):
        g.step(signs(number) * torch.rand(30, 40))
    assert not torch.equal(g.connected, other.connected)
    other.growth.load_state_dict(g.growth.state_dict())
    assert torch.equal(g.connected, other.connected) and other.growth.row() == g.growth.row()
    assert g.growth.state_dict()["masks"]["hidden.weight"].numel() == 150, "a bit for each of 1200 weights"
    with pytest.raises(ConfigError, match=r"do not mask the same weights, see hidden\.weight"):
        other.growth.load_state_dict({"masks": {}})
    with pytest.raises(ConfigError, match=r"hidden\.weight in the checkpoint has another size"):
        other.growth.load_state_dict({"masks": {"hidden.weight": torch.zeros(3, dtype=torch.uint8)}})


def test_weights_from_elsewhere_are_masked():
    g = Growing("adamw", COUNTS)
    torch.nn.init.constant_(g.net.hidden.weight, -2.0)
    g.growth.mask_weights()
    assert torch.equal(g.weight, torch.where(g.connected, -2.0, 0.0)) and not g.weight[~g.connected].signbit().any()


# -- refusals --------------------------------------------------------------------------------------------------------------------


class Unmaskable(Model):
    """A model without maskable parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)


def refusal(net: torch.nn.Module, name: str, counts: dict[int, int]) -> str:
    optimizers = build_optimizer(optimizer(name), net, torch.device("cpu"))
    config = LinearGrowthConfig("linear", 0.2, 1.0, "0%", "100%", ["1steps"], "random")
    with pytest.raises(ConfigError) as caught:
        build_growth(config, net, optimizers, Steps(1200, counts), 0)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_grow_is_refused_in_one_line():
    assert "does not support growth" in refusal(Unmaskable(), "adamw", COUNTS)
    assert "muon may change unconnected weights of hidden.weight" in refusal(Net(torch.float32), "muon", COUNTS)
    assert "connects none of the 1200 weights of hidden.weight" in refusal(Net(torch.float32), "sgd", {0: 0})
    frozen = Net(torch.float32)
    frozen.hidden.weight.requires_grad_(False)
    assert "are frozen" in refusal(frozen, "adamw", COUNTS)


# -- law 5 -----------------------------------------------------------------------------------------------------------------------

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "bincount", "repeat_interleave")


class Waits(TorchDispatchMode):
    """Lists the operations that would wait for a GPU: a number read, or a result whose size depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.__name__
        by_bool = name.startswith("index.") and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name.startswith(WAITS) or by_bool:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("by", ["gradient", "random"])
def test_no_update_waits_for_the_device_not_even_one_that_grows(by):
    g = Growing("adamw", COUNTS, by, clip=1.0)
    for parameter in g.net.parameters():
        parameter.grad = torch.ones_like(parameter)
    with Waits() as waits:
        for number in range(1, 14):
            g.update.start(number)
            g.update()
    assert waits.found == [] and int(g.connected.sum()) == 1200
    with Waits() as waits:
        g.growth.row(), g.growth.row()
    assert len(waits.found) == 1, "the guard sees what a row reads, once"
