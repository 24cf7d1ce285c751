"""Task weights: GradNorm's fixed points and measurements against slow references, and the fixed weights."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from linnaeus.config.errors import ConfigError
from linnaeus.config.schema import GradNormConfig, WeightingConfig
from linnaeus.weighting import FixedWeighting, GradNorm, build_weighting

CPU = torch.device("cpu")


def alone(tensor):
    return tensor


def balance(gradnorm, norms, losses=None, updates=1, all_reduce=alone):
    """Feed measurements with the given gradient norms (one shared parameter) and loss values."""
    shared = nn.Parameter(torch.zeros(()))
    for _ in range(updates):
        values = losses if losses is not None else [1.0] * len(norms)
        gradnorm.measure([norm * shared + value for norm, value in zip(norms, values, strict=True)], [shared])
        gradnorm.finish(all_reduce)
    return gradnorm.weights


def test_norms_of_three_to_one_end_at_half_and_one_and_a_half():
    gradnorm, track = GradNorm(torch.ones(2), alpha=0.0, lr=0.1), []
    for _ in range(300):
        track.append(float(balance(gradnorm, [3.0, 1.0])[0]))
    assert gradnorm.weights.tolist() == pytest.approx([0.5, 1.5], abs=1e-5)
    assert all(b <= a + 1e-6 for a, b in pairwise(track)), "it comes down without oscillation"
    assert all(abs(math.log(b / a)) <= 2 * 0.1 for a, b in pairwise(track)), "at most a factor e^lr each way"


def test_the_other_direction_would_not_pass():
    """Negative control: multiplying by G / target (the sign turned) drives the weights apart."""
    assert balance(GradNorm(torch.ones(2), 0.0, -0.1), [3.0, 1.0], updates=300)[0] > 1.9


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_only_ratios_of_norms_matter(factor):
    weights = balance(GradNorm(torch.ones(3), 0.0, 0.05), [3.0 * factor, 1.0 * factor, 2.0 * factor], updates=7)
    torch.testing.assert_close(weights, balance(GradNorm(torch.ones(3), 0.0, 0.05), [3.0, 1.0, 2.0], updates=7))


def test_alpha_gives_slow_tasks_larger_gradients():
    gradnorm = GradNorm(torch.ones(2), alpha=1.5, lr=0.2)
    balance(gradnorm, [1.0, 1.0], [2.0, 4.0])
    weights = balance(gradnorm, [1.0, 1.0], [2.0, 1.0], updates=200)  # ratios 1 and 1/4: the first trains slowly
    assert float(weights[0] / weights[1]) == pytest.approx(4**1.5, rel=1e-3)  # at rest G_t is proportional to r_t^alpha
    assert float(weights.sum()) == pytest.approx(2.0, rel=1e-6)


def test_one_update_against_a_slow_reference():
    weights, norms, losses, initial, alpha, lr = [0.8, 1.0, 1.2], [3.0, 1.0, 0.5], [2.0, 1.0, 3.0], [4.0, 1.5, 3.5], 1.5, 0.1
    gradnorm = GradNorm(torch.tensor(weights, dtype=torch.float64), alpha, lr)
    gradnorm.load_state_dict({"weights": torch.tensor(weights), "initial_losses": torch.tensor(initial)})
    weights = gradnorm.weights.tolist()
    big = [w * g for w, g in zip(weights, norms, strict=True)]
    ratios = [loss / start for loss, start in zip(losses, initial, strict=True)]
    mean_ratio = sum(ratios) / 3
    moved = []
    for w, G, ratio in zip(weights, big, ratios, strict=True):
        target = sum(big) / 3 * (ratio / mean_ratio) ** alpha
        moved.append(w * math.exp(-lr * max(-1.0, min(1.0, math.log(G / target)))))
    expected = [3 * w / sum(moved) for w in moved]
    assert balance(gradnorm, norms, losses).tolist() == pytest.approx(expected, rel=1e-6)


def test_the_step_goes_down_the_published_loss():
    """d/dw_t sum |G_t - T_t| by autograd, targets held fixed, has the sign of our step for every task."""
    norms = torch.tensor([3.0, 1.0, 0.5, 2.2])
    w = torch.ones(4, requires_grad=True)
    (w * norms - (w * norms).mean().detach()).abs().sum().backward()
    gradnorm = GradNorm(torch.ones(4), 0.0, 1e-3)
    gradnorm.initial_losses.fill_(1.0)
    gradnorm._move(torch.ones(4), norms)
    centred = gradnorm.weights.log() - gradnorm.weights.log().mean()
    assert all(centred[i] < centred[j] for i in range(4) for j in range(4) if w.grad[i] > 0 > w.grad[j])


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_task_without_a_usable_gradient_is_left_out(bad):
    gradnorm = GradNorm(torch.ones(3), 0.5, 0.1)
    balance(gradnorm, [1.0, 1.0, 1.0])
    weights = balance(gradnorm, [3.0, bad, 1.0], [1.0, 0.0 if bad == 0.0 else 1.0, 1.0], updates=3)
    assert float(weights[1]) == 1.0
    assert float(weights.sum()) == pytest.approx(3.0, rel=1e-6) and float(weights[0]) < 1 < float(weights[2])


def test_nothing_to_compare_changes_nothing():
    for norms in ([0.0, 0.0], [math.nan, math.nan], [2.0, 0.0], [math.inf, 1.0]):
        start = torch.tensor([0.7, 1.3])
        assert torch.allclose(balance(GradNorm(start.clone(), 1.5, 0.1), norms), start, rtol=0, atol=1e-7), norms


def test_initial_losses_are_those_of_the_first_usable_measurement():
    gradnorm = GradNorm(torch.ones(3), 1.5, 0.1)
    balance(gradnorm, [1.0, 0.0, 1.0], [5.0, 0.0, math.nan])
    assert gradnorm.initial_losses.tolist() == [5.0, 0.0, 0.0]
    balance(gradnorm, [1.0, 1.0, 1.0], [4.0, 3.0, 2.0])
    assert gradnorm.initial_losses.tolist() == [5.0, 3.0, 2.0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.norm = nn.Linear(5, 8), nn.LayerNorm(8)
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 4)])

    def losses(self, x, labels):
        features = self.norm(torch.relu(self.trunk(x)))
        return torch.stack(
            [
                nn.functional.cross_entropy(head(features), labels[:, t], reduction="sum", ignore_index=-1)
                for t, head in enumerate(self.heads)
            ]
        )


def data():
    generator = torch.Generator().manual_seed(1)
    x, labels = torch.randn(12, 5, generator=generator, dtype=torch.float64), torch.randint(0, 3, (12, 2), generator=generator)
    labels[[1, 2, 3, 4, 7], 1] = -1
    return x, labels, (labels >= 0).sum(0).double()


def measured(pieces, scale=None):
    """GradNorm after one update of the same 12 samples cut into processes (lists) of micro-batches (slices)."""
    net, (x, labels, counts) = Net().double(), data()
    ranks = [GradNorm(torch.ones(2, dtype=torch.float64), 1.5, 0.1) for _ in pieces]
    messages = []
    for rank, micro_batches in zip(ranks, pieces, strict=True):
        for part in micro_batches:
            rank.measure(net.losses(x[part], labels[part]) / counts, list(net.norm.parameters()), scale)

    def collect(message):
        messages.append(message)
        return message

    if len(ranks) == 1:
        ranks[0].finish(alone)
        return ranks[0], net
    for rank in ranks:
        copy = GradNorm(torch.ones(2, dtype=torch.float64), 1.5, 0.1)
        copy.__dict__.update({"_vectors": rank._vectors, "_losses": rank._losses})
        copy.finish(collect)
    ranks[0].finish(lambda _: sum(messages))
    return ranks[0], net


def test_norms_are_of_the_summed_gradient_however_it_is_split():
    whole, net = measured([[slice(0, 12)]])
    x, labels, counts = data()
    for task in range(2):
        net.zero_grad()
        (net.losses(x, labels)[task] / counts[task]).backward()
        expected = torch.cat([p.grad.flatten() for p in net.norm.parameters()]).norm()
        assert float(whole.norms[task]) == pytest.approx(float(expected), rel=1e-12)
    for pieces in ([[slice(0, 5), slice(5, 12)]], [[slice(0, 3), slice(3, 6)], [slice(6, 9), slice(9, 12)]]):
        split, _ = measured(pieces)
        torch.testing.assert_close(split.norms, whole.norms, rtol=1e-12, atol=0)
        torch.testing.assert_close(split.weights, whole.weights, rtol=1e-12, atol=0)
        torch.testing.assert_close(split.initial_losses, whole.initial_losses, rtol=1e-12, atol=0)
    parts = [measured([[part]])[0].norms for part in (slice(0, 6), slice(6, 12))]
    assert not torch.allclose(sum(parts), whole.norms, rtol=1e-3), "negative control: a sum of norms is another quantity"


def test_the_loss_scale_is_divided_out():
    torch.testing.assert_close(measured([[slice(0, 12)]], torch.tensor(4096.0))[0].norms, measured([[slice(0, 12)]])[0].norms)


def test_the_optimizers_gradient_is_untouched():
    x, labels, counts = data()
    grads = []
    for measuring in (True, False):
        net = Net().double()
        losses = net.losses(x, labels) / counts
        if measuring:
            gradnorm = GradNorm(torch.ones(2), 1.5, 0.1)
            gradnorm.measure(losses, list(net.norm.parameters()))
            assert all(p.grad is None for p in net.parameters())
        losses.sum().backward()
        grads.append([p.grad for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_weights_are_one_tensor_and_resume_is_exact():
    gradnorm = GradNorm(torch.ones(3), 1.5, 0.1)
    address = gradnorm.weights.data_ptr()
    balance(gradnorm, [3.0, 2.0, 1.0], [1.0, 2.0, 3.0], updates=2)
    resumed = GradNorm(torch.ones(3), 1.5, 0.1)
    resumed.load_state_dict(gradnorm.state_dict())
    forgetful = GradNorm(gradnorm.weights.clone(), 1.5, 0.1)
    for each in (gradnorm, resumed, forgetful):
        balance(each, [1.0, 2.0, 3.0], [1.5, 1.0, 2.0], updates=2)
    assert torch.equal(gradnorm.weights, resumed.weights) and torch.equal(gradnorm.initial_losses, resumed.initial_losses)
    assert not torch.equal(gradnorm.weights, forgetful.weights), "negative control: the initial losses matter"
    assert gradnorm.weights.data_ptr() == address
    with pytest.raises(ConfigError, match="other tasks"):
        GradNorm(torch.ones(2), 1.5, 0.1).load_state_dict(gradnorm.state_dict())


def test_build():
    fixed = build_weighting(WeightingConfig("fixed", {"genus": 3.0}), ("genus", "species"), CPU)
    assert isinstance(fixed, FixedWeighting) and fixed.weights.tolist() == [1.5, 0.5] and fixed.weights.dtype == torch.float32
    fixed.load_state_dict(fixed.state_dict())
    gradnorm = build_weighting(GradNormConfig("gradnorm", {}, 1.5, 0.025, ["10steps"], "0steps"), ("a", "b"), CPU, torch.float64)
    assert isinstance(gradnorm, GradNorm) and gradnorm.weights.dtype == torch.float64


@pytest.mark.parametrize(
    ("name", "weights", "tasks", "words"),
    [
        ("fixed", {"kingdom": 1.0}, ("genus", "species"), "weighting.weights.kingdom: no such task; there are genus, species"),
        ("fixed", {"genus": -1.0}, ("genus", "species"), "weighting.weights.genus=-1.0"),
        ("fixed", {"genus": 0.0, "species": 0.0}, ("genus", "species"), "all tasks have weight 0"),
        ("gradnorm", {"genus": 0.0}, ("genus", "species"), "weighting.weights.genus=0"),
        ("gradnorm", {}, ("species",), "one task only"),
    ],
)
def test_refusals(name, weights, tasks, words):
    config = WeightingConfig(name, weights) if name == "fixed" else GradNormConfig(name, weights, 1.5, 0.025, [], "0steps")
    with pytest.raises(ConfigError) as error:
        build_weighting(config, tasks, CPU)
    assert words in str(error.value)
