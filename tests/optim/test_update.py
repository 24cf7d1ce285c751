"""Updates after backward, compared with clipping, scaling and optimizers of torch, and skipped updates."""

import copy
import math

import pytest
import torch
from torch import nn

from linnaeus.optim import build_optimizer
from linnaeus.optim.ema import EMA
from linnaeus.optim.update import GradScaler, Precision, RecentNorms, Update, total_norm
from tests.optim.test_optimizers import CONFIGS
from tests.runs import unequal

CPU = torch.device("cpu")
ADAMW, MUON = CONFIGS["adamw"], CONFIGS["muon"]


class Run:
    """A model with an update. Its gradients are a function of the step."""

    def __init__(self, config=ADAMW, clip=1.0, precision="float32", decay=0.9):
        torch.manual_seed(0)
        self.precision = Precision(precision, CPU)
        if self.precision.scaler:
            self.precision.scaler.value.fill_(256.0)  # low enough that the first update is applied
        self.model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 3)).to(
            self.precision.dtype
        )
        self.optimizers = build_optimizer(config, self.model)
        self.optimizers.lr = config.lr
        self.ema = EMA(self.model, decay) if decay else None
        self.update = Update(self.optimizers, clip, self.precision.scaler, self.ema, rows=4)

    def step(self, step, factor=1.0):
        inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).to(self.precision.dtype)
        self.optimizers.zero_grad()
        with self.precision.autocast():
            outputs = self.model(inputs)
        self.precision.backward(outputs.to(self.precision.dtype).square().sum() * factor)
        return self.update()

    def state(self):
        parts = {"optimizers": self.optimizers, "update": self.update, "precision": self.precision, "ema": self.ema}
        state = {name: part.state_dict() for name, part in parts.items() if part is not None}
        return copy.deepcopy({"model": self.model.state_dict(), "averaged": self.ema.averaged() if self.ema else None, **state})


def changed(a, b):
    """Return the names of parameters that differ. Buffers are excluded: the forward pass changes batch statistics."""
    return [n for n in a["model"] if "running" not in n and "num_batches" not in n and not torch.equal(a["model"][n], b["model"][n])]


def rounding_of(gradient: torch.Tensor) -> float:
    """Return the error that 32 roundings of the largest entry make. The entries are sums of terms of that size, which CPUs add in
    different orders, so an entry near zero has an error of this size too."""
    return 32 * torch.finfo(gradient.dtype).eps * gradient.abs().max().item()


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("clip", [None, 0.0, 0.5, 1e6])
def test_equals_torch_clipping_and_adamw(precision, clip):
    run = Run(clip=clip, precision=precision)
    twin = copy.deepcopy(run.model)
    groups = [
        {"params": [p for p in twin.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in twin.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), foreach=False)
    for step in range(4):
        norm = run.step(step)
        reference.zero_grad()
        twin(torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).to(run.precision.dtype)).square().sum().backward()
        expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), clip or math.inf)
        reference.step()
        torch.testing.assert_close(norm, expected)
        for p, q in zip(run.model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=rounding_of(q.grad))  # torch adds 1e-6 to the norm it divides by
    for p, q in zip(run.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)  # AdamW makes steps of 0.01 from these gradients
    norm = total_norm([p.grad for p in run.model.parameters()])
    if clip == 0.5:
        assert norm <= 0.5 * (1 + 1e-6)
    if clip == 0.5 and precision == "float64":
        assert abs(float(norm) - 0.5) < 1e-14, "a float32 divisor would leave 1e-8"


@pytest.mark.parametrize("config", [ADAMW, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_gradient_skips_everything_and_is_counted(config, bad):
    run = Run(config)
    for step in range(2):
        run.step(step)
    before = run.state()
    assert not torch.isfinite(run.step(2, bad))
    after = run.state()
    assert changed(before, after) == []
    assert unequal(before["optimizers"], after["optimizers"]) == []
    averaged = [name for name in before["averaged"] if "num_batches" not in name]
    assert all(torch.equal(before["averaged"][name], after["averaged"][name]) for name in averaged)
    skipped = lambda: {name: value for name, value in run.state()["update"].items() if name != "norms"}
    assert skipped() == {"skipped_updates": 1, "skipped_in_a_row": 1} and after["ema"] == {"applied": 2.0}
    run.step(3, bad)
    assert skipped() == {"skipped_updates": 2, "skipped_in_a_row": 2}
    run.step(4)
    assert skipped() == {"skipped_updates": 2, "skipped_in_a_row": 0}
    assert len(changed(after, run.state())) == len(list(run.model.parameters())), "negative control: an applied update changes all"


def test_skipped_updates_are_counted_with_few_slots_and_rows_between():
    skips = [step % 7 in (3, 4) or step > 95 for step in range(100)]
    norms = RecentNorms(8, CPU, torch.float32)
    for step, skip in enumerate(skips):
        norms.next_slot().fill_(math.nan if skip else 1.0)
        if step % 29 == 11:
            norms.clear()
        if step % 31 == 17:
            resumed = RecentNorms(8 if step < 50 else 3, CPU, torch.float32)
            resumed.load_state_dict(norms.state_dict())
            norms = resumed
    norms.count_skipped()
    assert (norms.skipped, norms.skipped_in_a_row) == (sum(skips), 6)


def test_one_bad_entry_in_one_of_two_optimizers_skips_both():
    run = Run(MUON)
    run.step(0)
    before = run.state()
    for p in run.model.parameters():
        p.grad = torch.ones_like(p)
    run.model[1].bias.grad[3] = math.inf  # a parameter of AdamW; the gradients of Muon are finite
    run.update()
    assert changed(before, run.state()) == []
    assert unequal(before["optimizers"], run.state()["optimizers"]) == []


def test_non_finite_loss_with_finite_gradient_skips():
    run = Run()
    run.step(0)
    before = run.state()
    run.optimizers.zero_grad()
    outputs = run.model(torch.ones(6, 4))
    run.precision.backward(outputs.sum() + torch.tensor(math.inf))
    run.update()
    assert changed(before, run.state()) == [] and run.state()["update"]["skipped_updates"] == 1
    run.optimizers.zero_grad()
    (run.model(torch.ones(6, 4)).sum() + torch.tensor(math.inf)).backward()  # negative control: plain backward does not detect it
    run.update()
    assert changed(before, run.state())


def test_fp16_scales_unscales_and_backs_off():
    run, plain = Run(precision="fp16", decay=None), Run(precision="float32", decay=None)
    scale = float(run.precision.loss_scale)
    norm, expected = run.step(0), plain.step(0)
    torch.testing.assert_close(norm, expected, rtol=2e-2, atol=0)
    assert total_norm([p.grad for p in run.model.parameters()]) <= 1.0 + 1e-5, "gradients are unscaled and clipped"
    before = run.state()
    run.step(1, 1e30)
    assert float(run.precision.loss_scale) == scale / 2 and changed(before, run.state()) == []


def test_grad_scaler_follows_the_rule_of_torch(monkeypatch):
    monkeypatch.setattr(GradScaler, "INTERVAL", 3)
    own, other = GradScaler(CPU), torch.amp.GradScaler("cpu", growth_interval=3)
    p = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.0)
    for bad in [0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0]:
        p.grad = torch.full((2,), math.inf if bad else 1.0)
        other.scale(torch.ones(()))
        other.step(optimizer), other.update()
        own.update(torch.tensor(float(bad)))
        assert float(own.value) == other.get_scale()


def test_precision_contexts():
    x = torch.ones(2, 2)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("float32", torch.float32)):
        precision = Precision(name, CPU)
        assert precision.autocast() is precision.autocast()
        for _ in range(2):
            with precision.autocast():
                assert (x @ x).dtype == dtype
        assert (x @ x).dtype == torch.float32
    assert Precision("float64", CPU).dtype == torch.float64


def test_an_update_does_not_read_the_device(monkeypatch):
    """On CUDA a read is a stall. Every way to read a tensor from Python raises during one update."""

    def refuse(*_):
        raise AssertionError("read on the step path")

    run = Run(precision="fp16")
    run.step(0)
    for name in ("item", "__bool__", "__float__", "__int__", "tolist", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    run.step(1)
    with pytest.raises(AssertionError, match="read on the step path"):
        run.update.state_dict()  # negative control


def test_a_model_changes_its_weights_after_the_optimizer_and_before_the_average():
    seen = []
    run, plain = Run(decay=0.5), Run(decay=0.5)

    def after(skipped):
        seen.append((float(skipped), run.model[3].weight.detach().clone(), run.ema.averaged()["3.weight"].clone()))
        run.model[3].weight.mul_(torch.where(skipped > 0, 1.0, 2.0))

    run.update.after = after
    first = run.ema.averaged()["3.weight"].clone()
    for each in (run, plain):
        each.step(1)
    skipped, weight, average = seen[0]
    assert skipped == 0 and torch.equal(weight, plain.model[3].weight), "called after the optimizer"
    assert torch.equal(average, first), "called before the average"
    assert torch.equal(run.model[3].weight, 2 * weight) and not torch.equal(run.ema.averaged()["3.weight"], first)
    run.step(2, math.inf)
    assert seen[1][0] == 1, "a skipped update is passed on"
