"""Updates of a growing model: unconnected weights stay 0 everywhere; first steps of new weights are not larger than those of others."""

import math
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from linnaeus.config.schema_optimization import AdamWConfig, LinearGrowthConfig, OptimizerConfig, SGDConfig
from linnaeus.errors import ConfigError
from linnaeus.optim import build_optimizer, update
from linnaeus.optim.ema import EMA
from linnaeus.optim.growth import build_growth
from linnaeus.optim.update import GradScaler, Update
from linnaeus.workloads.base import Model

LR = 0.01
COMMON: dict[str, Any] = {"lr": LR, "lr_scaling": "none", "lr_reference_batch": 1, "layer_decay": None, "param_groups": []}


class Net(Model):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.hidden = nn.Linear(40, 30, dtype=dtype)
        self.out = nn.Linear(30, 3, dtype=dtype)

    def shared_parameters(self) -> list[nn.Parameter]:
        return [self.hidden.weight]

    def maskable_parameters(self) -> list[str]:
        return ["hidden.weight"]


class StepSchedule:
    """A schedule that connects weights only at the updates s in `counts`: `counts[s]` of `size` are connected after update s."""

    def __init__(self, size: int, counts: dict[int, int]) -> None:
        self.size, self.counts = size, counts

    def should_grow(self, step: int) -> bool:
        return step in self.counts

    def get_connection_density(self, step: int) -> float:
        return self.counts[step] / self.size


def optimizer(name: str, weight_decay: float = 0.1, beta2: float = 0.999) -> OptimizerConfig:
    fused, common = not name.endswith("unfused"), {**COMMON, "weight_decay": weight_decay}
    if name.startswith("adamw"):
        return AdamWConfig(name="adamw", fused=fused, beta1=0.9, beta2=beta2, eps=1e-12, state_precision="float32", **common)
    return SGDConfig(name="sgd", fused=fused, momentum=0.0 if "plain" in name else 0.9, nesterov="nesterov" in name, **common)


class GrowingModel:
    """A `Net` with its optimizers, growth, moving average and update."""

    def __init__(
        self,
        name: str,
        counts: dict[int, int],
        by: str = "random",
        dtype: torch.dtype = torch.float32,
        clip: float | None = None,
        scaled: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.net = Net(dtype)
        self.optimizers = build_optimizer(optimizer(name, **options), self.net)
        self.optimizers.lr = LR
        config = LinearGrowthConfig("linear", 0.2, 1.0, "0%", "100%", ["1steps"], by)
        growth = build_growth(config, self.net, self.optimizers, StepSchedule(1200, counts), 0)  # type: ignore[arg-type]
        assert growth is not None
        self.growth = growth
        self.ema = EMA(self.net, 0.9)
        self.scaler = GradScaler(torch.device("cpu")) if scaled else None
        self.update = Update(self.optimizers, clip, self.scaler, self.ema, (), growth)
        self.number = 0

    @property
    def weight(self) -> Tensor:
        return self.net.hidden.weight.detach()

    @property
    def connected(self) -> Tensor:
        """Mask of the matrix, bool [30, 40]."""
        return self.growth.masked[0].mask.bool()

    @property
    def state(self) -> dict[str, Tensor]:
        """Optimizer state of the matrix."""
        return self.optimizers.state_dict()["state"]["hidden.weight"]

    def step(self, gradient: Tensor, rest: float = 0.1) -> Tensor:
        """Make an update with `gradient` [30, 40] for the matrix and `rest` for every other weight. Return the change of the matrix."""
        before, scale = self.weight.clone(), 1.0 if self.scaler is None else float(self.scaler.value)
        self.number += 1
        for parameter in self.net.parameters():
            parameter.grad = torch.full_like(parameter, rest * scale)
        self.net.hidden.weight.grad = gradient.to(before.dtype) * scale
        self.update.start(self.number)
        self.update()
        return self.weight - before


def random_signs(seed: int, size: float = 1.0) -> Tensor:
    """Return [30, 40] of plus or minus `size`, at random."""
    return size * (torch.randint(0, 2, (30, 40), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1)


OPTIMIZERS = ("adamw", "adamw_unfused", "sgd", "sgd_nesterov", "sgd_plain", "sgd_unfused")
COUNTS = {0: 240, 4: 300, 9: 700, 12: 1200}


def test_negative_control_unconnected_weights_change_if_gradients_are_not_masked():
    g = GrowingModel("adamw", COUNTS)
    with mock.patch.object(type(g.growth), "connect", lambda self, number, grads: []):
        g.step(random_signs(0))
    assert (g.weight[~g.connected] != 0).any() and (g.state["exp_avg_sq"][~g.connected] != 0).any()


@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradient_norm_and_clipping_use_connected_weights_only(clip):
    g = GrowingModel("sgd_plain", {0: 240}, clip=clip, dtype=torch.float64, weight_decay=0.0)
    gradient = random_signs(1, 3.0).double()
    moved = g.step(gradient, rest=0.0)
    norm = float((gradient * g.connected).norm())
    assert float(g.update.grad_norm) == pytest.approx(norm, rel=1e-12) and norm == pytest.approx(3 * math.sqrt(240))
    assert float(gradient.norm()) > 2 * norm, "the norm of all gradients is larger"
    assert float(moved.norm()) == pytest.approx(LR * (clip or norm), rel=1e-12)


@pytest.mark.parametrize("name", ["adamw", "adamw_unfused"])
@pytest.mark.parametrize("beta2", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_first_step_of_a_new_weight_is_at_most_the_learning_rate(name, beta2, scaled):
    """For tiny and huge gradients, early and late in the run, with and without the loss scale of fp16 and clipping."""
    for late in (1, 2, 30, 300):
        g = GrowingModel(name, {0: 240, late: 700}, clip=5.0, scaled=scaled, weight_decay=0.0, beta2=beta2)
        for number in range(1, late):
            g.step(random_signs(number, 1e-3))
        before = g.connected.clone()
        sizes = torch.logspace(-4, 3, 1200).view(30, 40)
        moved = g.step(random_signs(7) * sizes).abs()
        new = g.connected & ~before
        assert int(new.sum()) == 460
        assert float(moved[new].max()) <= LR * (1 + 1e-4)
        assert float(moved[new].max()) > LR * 0.02, "new weights change"


def largest_after_connecting(name: str) -> tuple[float, float]:
    """Return the largest step of the new and of the old weights in 20 updates from the connection on.

    All gradients have the same size, except that the first gradient of every fourth column is near 0."""
    late, news, olds = 400, [], []
    g = GrowingModel(name, {0: 600, late: 900}, weight_decay=0.0)
    for number in range(1, late):
        g.step(random_signs(number))
    before = g.connected.clone()
    for number in range(late, late + 20):
        gradient = random_signs(number)
        if number == late:
            gradient[:, ::4] *= 1e-5
        moved = g.step(gradient).abs()
        news.append(float(moved[g.connected & ~before].max()))
        olds.append(float(moved[before].max()))
    return max(news), max(olds)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_twenty_steps_of_new_weights_are_not_larger_than_those_of_old_ones(name):
    new, old = largest_after_connecting(name)
    assert new <= old * (1 + 1e-5)


@pytest.mark.parametrize("name", ["adamw", "adamw_unfused"])
def test_negative_control_unseeded_moments_take_steps_several_times_the_learning_rate(name):
    with mock.patch.object(update, "seed_second_moments", lambda *arguments: None):
        new, old = largest_after_connecting(name)
    assert new > 1.5 * LR and new > 1.5 * old


@pytest.mark.parametrize("by", ["gradient", "random"])
def test_a_skipped_update_connects_weights_and_changes_nothing_else(by):
    """The masks follow the schedule; weights, averages and moments of old weights do not change; the next update is normal."""
    g = GrowingModel("adamw", {0: 600, 50: 900}, by, weight_decay=0.0)
    for number in range(1, 50):
        g.step(random_signs(number))
    before, kept, average = g.connected.clone(), {k: v.clone() for k, v in g.state.items()}, g.ema.averaged()["hidden.weight"].clone()
    broken = random_signs(50)
    broken[3, 4] = math.inf
    assert (g.step(broken) == 0).all() and float(g.update.skipped_updates) == 1
    new = g.connected & ~before
    assert int(new.sum()) == 300
    for name, value in g.state.items():
        old = before if value.dim() else ...
        assert torch.equal(value[old], kept[name][old])
    assert torch.equal(g.ema.averaged()["hidden.weight"], average) and (g.state["exp_avg"][new] == 0).all()
    assert g.state["exp_avg_sq"][new].isfinite().all() and (g.state["exp_avg_sq"][new] > 0).all()
    moved = g.step(random_signs(51)).abs()
    assert 0 < float(moved[new].max()) <= LR * (1 + 1e-4)


def test_a_matrix_without_gradient_grows_at_random():
    g = GrowingModel("adamw", {0: 240, 1: 500}, "gradient")
    g.net.out.weight.grad = torch.ones(3, 30)
    g.update.start(1)
    g.update()
    assert torch.equal(g.connected, GrowingModel("adamw", {0: 500}).connected) and (g.weight[~g.connected] == 0).all()


def test_masks_of_other_weights_are_refused():
    growth = GrowingModel("adamw", COUNTS).growth
    masks = growth.state_dict()["masks"]
    assert masks["hidden.weight"].numel() == 150, "a bit for each of 1200 weights"
    with pytest.raises(ConfigError, match=r"do not mask the same weights, see hidden\.weight"):
        growth.load_state_dict({"masks": {}})
    with pytest.raises(ConfigError, match=r"hidden\.weight in the checkpoint has another size"):
        growth.load_state_dict({"masks": {"hidden.weight": masks["hidden.weight"][:3]}})


def test_mask_weights_sets_unconnected_loaded_weights_to_0():
    g = GrowingModel("adamw", COUNTS)
    torch.nn.init.constant_(g.net.hidden.weight, -2.0)
    g.growth.mask_weights()
    assert torch.equal(g.weight, torch.where(g.connected, -2.0, 0.0)) and not g.weight[~g.connected].signbit().any()


# -- law 5 -----------------------------------------------------------------------------------------------------------------------

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "unique_dim", "equal", "bincount", "repeat_interleave")


class Waits(TorchDispatchMode):
    """A list of the operations that would wait for a GPU: reading a number, and results whose size depends on values."""

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
def test_no_update_waits_for_the_device_including_those_that_connect_weights(by):
    g = GrowingModel("adamw", COUNTS, by, clip=1.0)
    for parameter in g.net.parameters():
        parameter.grad = torch.ones_like(parameter)
    with Waits() as waits:
        for number in range(1, 14):
            g.update.start(number)
            g.update()
    assert waits.found == [] and int(g.connected.sum()) == 1200
    with Waits() as waits:
        g.growth.row(), g.growth.row()
    assert len(waits.found) == 1, "negative control: a row reads the device, once"
