"""Weightings that use losses only, compared with the formulas of their papers in autograd and torch.optim."""

import math

import pytest
import torch

import linnaeus.optim.update
from linnaeus.weighting import FAMO, DynamicWeightAverage, Measurements, UncertaintyWeighting
from tests import runs


def vector(values):
    return torch.tensor(list(values), dtype=torch.float64)


def losses(sums, valid=None, after=None, due=True):
    """Return measurements with these loss sums over `valid` labels (default 1), before and after the update."""
    labels = vector(valid or [1.0] * len(sums))
    return Measurements(1, due, loss_sums=vector(sums), valid=labels, loss_sums_after=None if after is None else vector(after))


def even(tasks: int = 3) -> torch.Tensor:
    return torch.ones(tasks, dtype=torch.float64)


def normed(values: torch.Tensor) -> torch.Tensor:
    return values * len(values) / values.sum()


# -- uncertainty (Kendall et al. 2018) -----------------------------------------------------------------------------------------


def test_variances_follow_the_gradient_of_the_papers_objective():
    """Compare the closed form with 4,000 small steps of autograd on sum e^(-s) L + s / 2."""
    found, s = UncertaintyWeighting(even(), lr=0.8), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    means = vector([2.0, 0.3, 0.7])
    for _ in range(4_000):
        (gradient,) = torch.autograd.grad((torch.exp(-s) * means + s / 2).sum(), s)
        with torch.no_grad():
            s -= 0.8 / 4_000 * gradient
    found.finish(losses([20.0, 1.2, 7.0], [10.0, 4.0, 10.0]))
    torch.testing.assert_close(found.log_variances, s.detach(), rtol=0, atol=5e-4)
    torch.testing.assert_close(found.weights, normed(torch.exp(-found.log_variances)))


def test_variances_converge_to_twice_the_loss_from_below():
    found, track = UncertaintyWeighting(even(2), lr=0.5), []
    for _ in range(100):
        found.finish(losses([1e6, 0.25]))
        track.append(found.log_variances.exp()[0].item())
    assert found.log_variances.exp().tolist() == pytest.approx([2e6, 0.5], rel=1e-6)
    assert track == sorted(track) and track[-1] <= 2e6 * (1 + 1e-12)
    assert found.weights.tolist() == pytest.approx(normed(vector([1 / 2e6, 2.0])).tolist())


def test_initial_variances_are_the_inverse_configured_weights():
    found = UncertaintyWeighting(normed(vector([1.0, 3.0])), lr=1e-9)
    found.finish(losses([5.0, 5.0]))
    assert found.weights.tolist() == pytest.approx([0.5, 1.5], rel=1e-6)


# -- dynamic weight average (Liu et al. 2019) ------------------------------------------------------------------------------------


def test_weights_follow_the_ratio_of_mean_losses_of_two_intervals():
    found = DynamicWeightAverage(even(), temperature=2.0)
    intervals = [[((8.0, 3.0, 1.0), (4.0, 2.0, 1.0)), ((4.0, 9.0, 2.0), (2.0, 4.0, 1.0))], [((2.0, 4.5, 0.5), (2.0, 3.0, 1.0))]]
    means = []
    for updates in intervals:
        for number, (sums, valid) in enumerate(updates, 1):
            found.finish(losses(sums, valid, due=number == len(updates)))
        means.append(sum(vector(s) for s, _ in updates) / sum(vector(v) for _, v in updates))
        if len(means) == 1:
            assert torch.equal(found.weights, even()), "the first interval has no previous one"
    torch.testing.assert_close(found.weights, normed(torch.exp(means[1] / means[0] / 2.0)))
    assert found.weights.argmax() == 1 and found.weights.argmin() == 2, "the slowest task has the largest weight"
    assert found.sums.sum() == found.valid.sum() == 0


def test_updates_that_are_not_due_move_nothing_and_non_finite_losses_are_left_out():
    found, clean = DynamicWeightAverage(even(2), 1.0), DynamicWeightAverage(even(2), 1.0)
    for weighting, broken in ((found, True), (clean, False)):
        for due, sums in ((False, [2.0, 2.0]), (True, [3.0, 2.0]), (False, [1.0, 2.0]), (True, [1.0, 1.0])):
            if broken:
                weighting.finish(losses([math.nan, math.inf], due=False))
            before = weighting.weights.clone()
            weighting.finish(losses(sums, due=due))
            assert due or torch.equal(weighting.weights, before)
    assert torch.equal(found.weights, clean.weights) and not torch.equal(found.weights, even(2))


def test_a_task_absent_from_an_interval_keeps_its_previous_loss():
    found = DynamicWeightAverage(even(), 1.0)
    for sums, valid in (([4.0, 4.0, 4.0], [1.0, 1.0, 1.0]), ([2.0, 0.0, 4.0], [1.0, 0.0, 1.0])):
        found.finish(losses(sums, valid))
    assert found.weights[1] == 1.0 and found.weights.sum().item() == pytest.approx(3.0)
    assert found.previous.tolist() == [2.0, 4.0, 4.0]


# -- FAMO (Liu et al. 2023) --------------------------------------------------------------------------------------------------------

STEPS = [([4.0, 2.0, 1.0], [3.0, 1.9, 1.0]), ([2.5, 1.8, 1.1], [2.6, 1.2, 0.9]), ([2.0, 1.5, 0.8], [1.0, 1.4, 0.7])] * 4


def reference_famo(steps, sign=1.0, lr=0.025, decay=0.001):
    """Return logits and weights from torch's Adam and the autograd gradient of sum_t z_t delta_t."""
    logits = torch.zeros(len(steps[0][0]), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=lr, weight_decay=decay)
    for before, after in steps:
        improvement = vector(before).log() - vector(after).log()
        logits.grad = sign * torch.autograd.grad((torch.softmax(logits, 0) * improvement).sum(), logits)[0]
        optimizer.step()
    return logits.detach(), normed(torch.softmax(logits.detach(), 0) / vector(steps[-1][1]))


def test_logits_and_weights_equal_the_formulas_of_the_paper():
    found = FAMO(even(), lr=0.025, decay=0.001)
    for before, after in STEPS:
        found.finish(losses(before, after=after))
    logits, weights = reference_famo(STEPS)
    torch.testing.assert_close(found.logits, logits, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.weights, weights, rtol=1e-12, atol=0)
    assert found.weights.dtype == torch.float64 and found.logits.abs().max() > 0.1
    assert not torch.allclose(found.logits, reference_famo(STEPS, sign=-1.0)[0], atol=1e-3), "negative control: the sign matters"


def test_famo_without_a_task_equals_famo_of_the_others():
    found, alone = FAMO(even(), 0.025, 0.001), FAMO(even(2), 0.025, 0.001)
    for before, after in STEPS:
        found.finish(losses([before[0], 0.0, before[2]], after=[after[0], 0.0, after[2]]))
        alone.finish(losses(before[::2], after=after[::2]))
    torch.testing.assert_close(found.logits[::2], alone.logits)
    torch.testing.assert_close(found.weights[::2], alone.weights)
    assert found.logits[1] == found.moves[1] == 0 and found.weights[1] == 1


@pytest.mark.parametrize("skipped", [True, False])
def test_famo_does_not_move_in_a_skipped_update(tmp_path, monkeypatch, skipped):
    """Train three updates. In the third the losses are finite and the gradient norm is not; the negative control has a finite norm."""
    states, norm = [], linnaeus.optim.update.total_norm

    def keep_state(famo, measured):
        before = famo.state_dict()
        finish(famo, measured)
        states.append([torch.equal(before[name], value) for name, value in famo.state_dict().items()])

    def not_finite(grads, out=None):
        found = norm(grads, out)
        return found.fill_(math.inf) if skipped and len(states) == 2 else found

    finish = FAMO.finish
    monkeypatch.setattr(FAMO, "finish", keep_state)
    monkeypatch.setattr(linnaeus.optim.update, "total_norm", not_finite)
    runs.run("vectors", tmp_path, "trainer.length=3steps", "weighting=famo", "weighting.every=[1steps]")
    assert [all(kept) for kept in states] == [False, False, skipped]
    assert states[-1] == [skipped] * 4


# -- all weightings ----------------------------------------------------------------------------------------------------------------

KINDS = {
    "uncertainty": lambda weights: UncertaintyWeighting(weights, 0.3),
    "dwa": lambda weights: DynamicWeightAverage(weights, 0.5),
    "famo": lambda weights: FAMO(weights, 0.1, 0.01),
}
UPDATES = [losses([5.0, 2.0, 1.0], after=[4.0, 2.0, 0.8]), losses([4.0, 1.0, 1.5], [1.0, 2.0, 1.0], after=[3.0, 1.1, 1.0])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_task_without_a_usable_loss_keeps_its_weight(kind, bad):
    found = KINDS[kind](even())
    for update in UPDATES:
        found.finish(update)
    kept, state = found.weights[1].item(), found.state_dict()
    found.finish(losses([3.0, bad, 2.0], [1.0, 0.0 if bad == 0 else 1.0, 1.0], after=[2.0, bad, 2.0]))
    assert found.weights[1].item() == kept and found.weights[0].item() != state["weights"][0].item()
    assert found.weights.sum().item() == pytest.approx(3.0) and all(torch.isfinite(t).all() for t in found.state_dict().values())


@pytest.mark.parametrize("kind", KINDS)
def test_labels_with_weights_below_1_count_by_their_weight(kind):
    found, scaled = KINDS[kind](even()), KINDS[kind](even())
    for _ in range(2):
        found.finish(losses([5.0, 2.0, 1.0], [8.0, 4.0, 2.0], after=[4.0, 2.0, 0.8]))
        scaled.finish(losses([0.5, 0.2, 0.1], [0.8, 0.4, 0.2], after=[0.4, 0.2, 0.08]))
    torch.testing.assert_close(found.weights, scaled.weights)
