"""GradNorm: its fixed points, and its steps compared with slow references."""

import math
from itertools import pairwise

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.weighting import GradNorm, Measurements


def balance(gradnorm, norms, losses=None, updates=1):
    """Finish `updates` with these gradient norms and mean losses (default 1). Return the weights."""
    means = torch.tensor(losses or [1.0] * len(norms), dtype=torch.float64)
    for _ in range(updates):
        gradnorm.finish(Measurements(1, True, losses=means, grad_norms=torch.tensor(norms, dtype=torch.float64)))
    return gradnorm.weights


def test_norms_of_3_to_1_converge_to_weights_of_half_and_one_and_a_half():
    gradnorm, track = GradNorm(torch.ones(2), alpha=0.0, lr=0.1), []
    for _ in range(300):
        track.append(float(balance(gradnorm, [3.0, 1.0])[0]))
    assert gradnorm.weights.tolist() == pytest.approx([0.5, 1.5], abs=1e-5)
    assert all(b <= a + 1e-6 for a, b in pairwise(track)), "converges without oscillation"
    assert all(abs(math.log(b / a)) <= 2 * 0.1 for a, b in pairwise(track)), "at most a factor e^lr in either direction"


def test_negative_control_the_opposite_sign_diverges():
    """Multiplying by G / target instead of dividing drives the weights apart."""
    assert balance(GradNorm(torch.ones(2), 0.0, -0.1), [3.0, 1.0], updates=300)[0] > 1.9


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_only_ratios_of_norms_matter(factor):
    weights = balance(GradNorm(torch.ones(3), 0.0, 0.05), [3.0 * factor, 1.0 * factor, 2.0 * factor], updates=7)
    torch.testing.assert_close(weights, balance(GradNorm(torch.ones(3), 0.0, 0.05), [3.0, 1.0, 2.0], updates=7))


def test_alpha_gives_slow_tasks_larger_gradients():
    gradnorm = GradNorm(torch.ones(2), alpha=1.5, lr=0.2)
    balance(gradnorm, [1.0, 1.0], [2.0, 4.0])
    weights = balance(gradnorm, [1.0, 1.0], [2.0, 1.0], updates=200)  # ratios 1 and 1/4: the first trains slowly
    assert float(weights[0] / weights[1]) == pytest.approx(4**1.5, rel=1e-3)  # at the fixed point G_t is proportional to r_t^alpha
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


def test_the_step_descends_the_loss_of_the_paper():
    """Order the tasks by the gradient of sum |G_t - T_t| by autograd, with constant targets: it is the order of the step."""
    norms = torch.tensor([3.0, 1.0, 0.5, 2.2])
    w = torch.ones(4, requires_grad=True)
    (w * norms - (w * norms).mean().detach()).abs().sum().backward()
    weights = balance(GradNorm(torch.ones(4), 0.0, 1e-3), norms.tolist())
    centred = weights.log() - weights.log().mean()
    assert all(centred[i] < centred[j] for i in range(4) for j in range(4) if w.grad[i] > 0 > w.grad[j])


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_task_without_a_usable_gradient_is_left_out(bad):
    gradnorm = GradNorm(torch.ones(3), 0.5, 0.1)
    balance(gradnorm, [1.0, 1.0, 1.0])
    weights = balance(gradnorm, [3.0, bad, 1.0], [1.0, 0.0 if bad == 0.0 else 1.0, 1.0], updates=3)
    assert float(weights[1]) == 1.0
    assert float(weights.sum()) == pytest.approx(3.0, rel=1e-6) and float(weights[0]) < 1 < float(weights[2])


def test_fewer_than_two_usable_tasks_change_nothing():
    for norms in ([0.0, 0.0], [math.nan, math.nan], [2.0, 0.0], [math.inf, 1.0]):
        start = torch.tensor([0.7, 1.3])
        assert torch.allclose(balance(GradNorm(start.clone(), 1.5, 0.1), norms), start, rtol=0, atol=1e-7), norms


def test_initial_losses_are_from_the_first_usable_measurement():
    gradnorm = GradNorm(torch.ones(3), 1.5, 0.1)
    balance(gradnorm, [1.0, 0.0, 1.0], [5.0, 0.0, math.nan])
    assert gradnorm.initial_losses.tolist() == [5.0, 0.0, 0.0]
    balance(gradnorm, [1.0, 1.0, 1.0], [4.0, 3.0, 2.0])
    assert gradnorm.initial_losses.tolist() == [5.0, 3.0, 2.0]


def test_weights_are_one_tensor_and_another_number_of_tasks_raises():
    gradnorm = GradNorm(torch.ones(3), 1.5, 0.1)
    address = gradnorm.weights.data_ptr()
    balance(gradnorm, [3.0, 2.0, 1.0], [1.0, 2.0, 3.0], updates=2)
    assert gradnorm.weights.data_ptr() == address and not torch.equal(gradnorm.weights, torch.ones(3))
    with pytest.raises(ConfigError, match="other tasks"):
        GradNorm(torch.ones(2), 1.5, 0.1).load_state_dict(gradnorm.state_dict())
