"""Optimizers compared with torch.optim, their state after a resume, and skipped updates."""

import copy
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from linnaeus.config.schema_optimization import AdamWConfig, ConstantConfig, MuonConfig, SGDConfig, TimmOptimizerConfig
from linnaeus.errors import ConfigError
from linnaeus.optim import build_optimizer, build_scheduler, scaled_lr
from linnaeus.optim.wrapped_optimizers import TorchOptimizer
from tests import runs, watching
from tests.runs import unequal

CPU = torch.device("cpu")
COMMON = {"lr": 0.01, "lr_scaling": "none", "lr_reference_batch": 256, "weight_decay": 0.1, "layer_decay": None, "param_groups": []}
ADAMW = {"state_precision": "float32"}
CONFIGS = {
    "adamw": AdamWConfig(name="adamw", fused=True, beta1=0.9, beta2=0.99, eps=1e-8, **ADAMW, **COMMON),
    "adamw_unfused": AdamWConfig(name="adamw", fused=False, beta1=0.9, beta2=0.99, eps=1e-8, **ADAMW, **COMMON),
    "adamw_bf16": AdamWConfig(name="adamw", fused=True, beta1=0.9, beta2=0.99, eps=1e-8, state_precision="bf16", **COMMON),
    "sgd": SGDConfig(name="sgd", fused=True, momentum=0.9, nesterov=True, **COMMON),
    "sgd_plain": SGDConfig(name="sgd", fused=True, momentum=0.0, nesterov=False, **COMMON),
    "sgd_unfused": SGDConfig(name="sgd", fused=False, momentum=0.9, nesterov=False, **COMMON),
    "muon": MuonConfig(name="muon", fused=True, momentum=0.95, adamw_lr_scale=0.1, beta1=0.9, beta2=0.99, eps=1e-8, **COMMON),
}


def built(config, model):
    """Return the optimizers of a config at its learning rate."""
    optimizers = build_optimizer(config, model)
    optimizers.lr = config.lr
    return optimizers


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 2))
    return model.to(dtype, memory_format=torch.channels_last)


def fill_gradients(model, step, value=None):
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator))
        p.grad = grad if value is None else torch.full_like(p, value)


def snapshot(model, optimizers):
    return copy.deepcopy((dict(model.named_parameters()), optimizers.state_dict()["state"]))


def torch_reference(name, model):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    not_decayed = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": not_decayed, "weight_decay": 0.0}]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), fused=True)
    return torch.optim.SGD(groups, lr=0.01, momentum=0.0 if name == "sgd_plain" else 0.9, nesterov=name == "sgd", fused=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["adamw", "sgd", "sgd_plain"])
@torch.no_grad()
def test_fused_optimizers_equal_torch_to_the_bit(name, dtype):
    own, other = make_model(dtype), make_model(dtype)
    optimizers, reference = built(CONFIGS[name], own), torch_reference(name, other)
    for step in range(5):
        scale = (step + 1) / 5
        fill_gradients(own, step), fill_gradients(other, step)
        optimizers.lr = 0.01 * scale
        optimizers.step()
        for group in reference.param_groups:
            group["lr"] = 0.01 * scale
        reference.step()
    assert unequal(own.state_dict(), other.state_dict()) == []


@torch.no_grad()
def test_unfused_adamw_agrees_and_has_the_same_state_format():
    a, b = make_model(), make_model()
    first, second = built(CONFIGS["adamw"], a), built(CONFIGS["adamw_unfused"], b)
    assert isinstance(second.optimizers[0], TorchOptimizer)
    for step in range(3):
        fill_gradients(a, step), fill_gradients(b, step)
        first.step(), second.step()
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
    second.load_state_dict(first.state_dict())
    assert unequal(second.state_dict()["state"], first.state_dict()["state"]) == []


@torch.no_grad()
def test_muon_optimizes_hidden_matrices_only_and_equals_torch():
    own, other = make_model(), make_model()
    head = nn.Sequential()
    head.add_module("trunk", own)
    head.add_module("head", nn.Linear(2, 3))
    head.add_module("embedding", nn.Embedding(5, 4))
    optimizers = built(CONFIGS["muon"], head)
    muon, adamw = optimizers.optimizers
    assert set(muon.names) == {"trunk.2.weight", "trunk.4.weight", "trunk.5.weight"}
    assert {"head.weight", "embedding.weight", "trunk.0.weight", "trunk.3.weight"} <= set(adamw.names)
    assert adamw.lr_scales[0] == pytest.approx(0.1 * muon.lr_scales[0])
    reference = torch.optim.Muon([p for p in other.parameters() if p.ndim == 2], lr=0.01, weight_decay=0.1, momentum=0.95)
    for step in range(3):
        fill_gradients(own, step), fill_gradients(other, step)
        optimizers.step(), reference.step()
    assert torch.equal(own[2].weight, other[2].weight) and torch.equal(own[5].weight, other[5].weight)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@torch.no_grad()
def test_found_inf_changes_no_bit(name, value):
    model = make_model()
    optimizers = built(CONFIGS[name], model)
    for first in (0, 1):  # at the very first step and at a later one
        before = snapshot(model, optimizers)
        fill_gradients(model, 2 * first, value)
        optimizers.step(torch.tensor(1.0), torch.tensor(math.nan))
        assert unequal(before, snapshot(model, optimizers)) == []
        fill_gradients(model, 2 * first + 1)
        optimizers.step(torch.tensor(0.0))  # negative control: an update without found_inf changes the state
        assert unequal(before, snapshot(model, optimizers))


@pytest.mark.parametrize("name", ["adamw_unfused", "sgd_unfused", "muon"])
@torch.no_grad()
def test_selection_on_the_device_equals_the_direct_check(name):
    """Run on the CPU the selection that CUDA uses for optimizers that do not support `found_inf`."""
    model, twin = make_model(), make_model()
    own, direct = built(CONFIGS[name], model), built(CONFIGS[name], twin)
    for step, bad in enumerate([True, False, True, False]):
        fill_gradients(model, step, math.nan if bad else None), fill_gradients(twin, step, math.nan if bad else None)
        found = torch.tensor(float(bad))
        for optimizer in own.optimizers:
            with torch.no_grad():
                if isinstance(optimizer, TorchOptimizer):
                    for group, scale in zip(optimizer.optimizer.param_groups, optimizer.lr_scales, strict=True):
                        group["lr"] = own.lr * scale
                    optimizer.step_and_select(found)
                else:
                    optimizer.step([p.grad for p in optimizer.params], True, own.lr, found, None)
        direct.step(found)
    assert unequal(snapshot(model, own), snapshot(twin, direct)) == []


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_divisor_divides_gradients(name):
    results = []
    for divisor in (1.0, 8.0):
        model = make_model()
        fill_gradients(model, 0)
        for p in model.parameters():
            p.grad.mul_(divisor)
        built(CONFIGS[name], model).step(torch.tensor(0.0), torch.tensor(divisor))
        results.append({n: (p, p.grad) for n, p in model.named_parameters()})
    assert unequal(*results) == []


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "adamw_unfused"])
@torch.no_grad()
def test_parameters_without_gradient_do_not_change_or_count_steps(name):
    model = make_model()
    optimizers = built(CONFIGS[name], model)
    fill_gradients(model, 0)
    frozen = model[2].weight.detach().clone()
    for p in (model[2].weight, model[3].weight, model[3].bias, model[0].bias, model[2].bias, model[4].bias, model[5].bias):
        p.grad = None  # no bias and no norm has a gradient, so a whole group is without
    moving = model[4].weight.detach().clone()
    optimizers.step(torch.tensor(0.0), torch.tensor(2.0))
    assert torch.equal(model[2].weight, frozen) and not torch.equal(model[4].weight, moving)
    if name == "adamw":
        steps = {name: float(kept["step"]) for name, kept in optimizers.state_dict()["state"].items()}
        assert steps["2.weight"] == 0 and steps["4.weight"] == 1
        optimizers.step(torch.tensor(1.0))
        assert float(optimizers.state_dict()["state"]["4.weight"]["step"]) == 1


def test_loading_a_wrong_state_names_the_difference():
    optimizers = built(CONFIGS["adamw"], make_model())
    good = copy.deepcopy(optimizers.state_dict())
    state = good["state"]
    wrong = {
        "of sgd": {"optimizer": "sgd"},
        r"lacks parameters: 0\.bias": {"state": {k: v for k, v in state.items() if k != "0.bias"}},
        "unknown parameters: x": {"state": {**state, "x": {}}},
        r"exp_avg of 0.bias has shape \(7,\)": {"state": {**state, "0.bias": {**state["0.bias"], "exp_avg": torch.zeros(7)}}},
    }
    for message, part in wrong.items():
        with pytest.raises(ConfigError, match=message):
            optimizers.load_state_dict({**good, **part})


@pytest.mark.parametrize(("scaling", "expected"), [("none", 0.01), ("linear", 0.04), ("sqrt", 0.02)])
def test_learning_rate_scales_with_the_global_batch(scaling, expected):
    lr, note = scaled_lr(replace(CONFIGS["adamw"], lr_scaling=scaling), 1024)
    assert lr == pytest.approx(expected) and "1024" in note and f"{expected:g}" in note
    schedule = build_scheduler(ConstantConfig("constant", "4steps"), lr, 10, 10)
    assert [schedule.at(step) for step in (1, 9)] == pytest.approx([expected / 2, expected])


@torch.no_grad()
def test_groups_reach_the_kernels():
    config = replace(CONFIGS["sgd_plain"], param_groups=[{"filter": {"name": "0.*"}, "lr_scale": 0.0}])
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    fill_gradients(model, 0)
    built(config, model).step()
    moved = {name: not torch.equal(p, q) for (name, p), q in zip(model.named_parameters(), before, strict=True)}
    assert not moved["0.weight"] and not moved["0.bias"] and moved["2.weight"]


def test_impossible_configurations_raise():
    with pytest.raises(ConfigError, match="does not have a 2-d hidden weight"):
        build_optimizer(CONFIGS["muon"], nn.Sequential(nn.Conv2d(3, 4, 3)))
    with pytest.raises(ConfigError, match=r"optimizer.nesterov"):
        built(replace(CONFIGS["sgd_plain"], nesterov=True), make_model())
    with pytest.raises(ConfigError, match="nothing to train"):
        build_optimizer(CONFIGS["adamw"], make_model().requires_grad_(False))


@pytest.mark.parametrize(
    "opt, options, message",
    [
        ("lion", {"betas": [2, 3]}, r"optimizer.opt=lion optimizer.options=.*Invalid beta"),
        ("bnbadam", {}, r"optimizer.opt=bnbadam .*"),
        ("adahessian", {}, r"optimizer.opt=adahessian needs second derivatives"),
    ],
)
def test_a_timm_optimizer_that_cannot_be_built_raises_one_line(monkeypatch, opt, options, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = TimmOptimizerConfig(name="timm", fused=False, opt=opt, options=options, **COMMON)
    with pytest.raises(ConfigError, match=message):
        build_optimizer(config, make_model())


def test_a_corrected_weight_decay_knows_the_learning_rate_scaled_with_the_global_batch(tmp_path):
    """adamc decays by lr^2 / (rate that it is built with): at the peak by lr."""
    found = []
    settings = ["optimizer=timm", "optimizer.opt=adamc", "optimizer.lr_scaling=linear", "optimizer.lr_reference_batch=8"]
    with watching.around_updates(before=lambda t: found.append((t.optimizers.optimizers[0].optimizer.defaults["lr"], t.lr.base_lr))):
        runs.run("vectors", tmp_path, *settings, "optimizer.lr=0.01", "trainer.length=1steps")
    assert found == [(0.04, 0.04)]


class Lists(torch.optim.SGD):
    """An optimizer with lists in its state, as kron of timm, whose first step compiles for a minute."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["Q"] = [torch.zeros(1)]


def test_a_state_that_cannot_be_saved_is_refused_at_the_first_update(monkeypatch):
    monkeypatch.setattr("timm.optim.create_optimizer_v2", lambda groups, opt, **options: Lists(groups))
    config, model = TimmOptimizerConfig(name="timm", fused=False, opt="kron", options={}, **COMMON), make_model()
    optimizers = built(config, model)
    fill_gradients(model, 0)
    with pytest.raises(ConfigError, match="has Q of type list, which cannot be saved"):
        optimizers.step()


@pytest.mark.slow
def test_adamw_does_not_import_the_compiler():
    """Importing torch._dynamo costs 1 s of start-up. The first torch.optim optimizer imports it; the fused optimizers must not."""
    code = """
import sys, torch
from torch import nn
from linnaeus.config.schema_optimization import AdamWConfig
from linnaeus.optim import build_optimizer
from linnaeus.optim.update import Update
from linnaeus.optim.ema import EMA
from linnaeus.optim.update import Precision
for fused in (True, False):
    numbers = dict(lr=.1, lr_reference_batch=1, weight_decay=.1, beta1=.9, beta2=.99, eps=1e-8, state_precision='float32')
    config = AdamWConfig(name='adamw', lr_scaling='none', fused=fused, layer_decay=None, param_groups=[], **numbers)
    model = nn.Linear(2, 2)
    update = Update(build_optimizer(config, model), 1.0, None, EMA(model, 0.9))
    Precision('float32', torch.device('cpu')).backward(model(torch.ones(1, 2)).sum())
    update()
    print('torch._dynamo' in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "True"], "the second, with torch.optim, is the negative control"
