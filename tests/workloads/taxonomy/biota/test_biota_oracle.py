"""The ceilings agree with an independent Monte Carlo simulation, and other predictors score lower."""

from types import SimpleNamespace

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.biota import ceilings
from linnaeus.workloads.taxonomy.biota.individuals import COMPONENT_OF, MISSING, PERIODS, build_distributions, log_densities
from linnaeus.workloads.taxonomy.biota.oracle import COMPONENTS, CONDITIONS, expected_accuracy, format_ceilings, posteriors, sum_to_rank
from linnaeus.workloads.taxonomy.biota.world import build_world
from linnaeus.workloads.taxonomy.observations import Metadata

CONFIG = SimpleNamespace(world=0, train_samples=8000, validation_samples=4000, image_size=48)


def simulate(masked: tuple[str, ...], n: int, seed: int, ignore_prior: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return (true, predicted) species. Metadata are drawn by numpy's generator; only the parameters of the world are shared with
    `individuals` and `oracle`."""
    rng = np.random.default_rng(seed)
    world, (centres, spreads) = build_world(0), build_distributions(0)
    true = rng.choice(120, n, p=world.prior)
    score = np.zeros((n, 120)) if ignore_prior else np.log(world.prior)[None].repeat(n, 0)
    present = {component: rng.random(n) >= rate for component, rate in MISSING.items() if component not in masked}
    for name in (name for name in centres if COMPONENT_OF[name] in present):
        centre, spread = centres[name], spreads[name]
        gap = (centre[true] + spread[true] * rng.standard_normal(n))[:, None] - centre
        if period := PERIODS.get(name):
            gap = (gap + period / 2) % period - period / 2  # the nearest period only
        score += np.where(present[COMPONENT_OF[name]][:, None], -0.5 * np.square(gap / spread) - np.log(spread), 0)
    score[world.form[true][:, None] != world.form[None]] = -np.inf
    return true, score.argmax(axis=1)


QUICK = ("with_meta", "without_meta", "mask_SPATIAL")


@pytest.mark.parametrize("condition", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONDITIONS])
def test_simulation_agrees_with_the_ceilings(condition):
    n = 12000
    true, predicted = simulate(CONDITIONS[condition], n, seed=5)
    top1 = (true == predicted).mean()
    best = ceilings(CONFIG)[f"{condition}/species/top1"]
    # both sides vary: the simulation's individuals and the 4,000 of the validation set
    assert abs(top1 - best) < 4 * np.sqrt(top1 * (1 - top1) * (1 / n + 1 / CONFIG.validation_samples))
    true, predicted = simulate(CONDITIONS[condition], n, seed=6, ignore_prior=True)
    recall = np.array([(predicted[true == c] == c).mean() for c in range(120)])
    assert abs(recall.mean() - ceilings(CONFIG)[f"{condition}/species/macro"]) < 0.015


def test_posteriors_are_distributions_within_the_form_and_worse_predictors_score_lower(drawn):
    """Negative control: densities of other individuals, and the second choice among cryptic species, score lower."""
    world, species = drawn.world, drawn.species[:8000]
    metadata = Metadata(**{name: values[:8000] for name, values in vars(drawn.metadata).items()})
    densities = log_densities(world, metadata)
    posterior = posteriors(world, world.form[species], densities)
    for rank in range(4):
        np.testing.assert_allclose(sum_to_rank(world, posterior, rank).sum(axis=1), 1, rtol=1e-12)
    assert (posterior[world.form[species][:, None] != world.form[None]] == 0).all()
    right, best = posterior.argmax(axis=1), posterior.max(axis=1).mean()
    assert (right == species).mean() == pytest.approx(best, abs=0.006)
    others = {name: np.roll(value, 1, axis=0) for name, value in densities.items()}
    assert (posteriors(world, world.form[species], others).argmax(axis=1) == species).mean() < best - 0.04
    ambiguous = np.flatnonzero(np.array(world.cryptic_size)[species] > 1)
    second = np.argsort(posterior[ambiguous], axis=1)[:, -2]
    assert (second == species[ambiguous]).mean() < (right[ambiguous] == species[ambiguous]).mean() - 0.3
    cryptic = posterior[ambiguous].max(axis=1)
    assert ((cryptic > 0.5) & (cryptic < 0.95)).mean() > 0.15
    prior = np.where(world.form == world.form[species[0]], world.prior, 0)
    np.testing.assert_allclose(posteriors(world, world.form[species], densities, COMPONENTS)[0], prior / prior.sum())


def test_each_decision_rule_is_best_for_its_own_measure():
    posterior = np.random.default_rng(0).dirichlet(np.full(5, 0.3), 4000) * [3, 1, 1, 0.5, 0.2]
    posterior /= posterior.sum(axis=1, keepdims=True)
    prior = posterior.mean(axis=0)
    best = expected_accuracy(posterior, prior)
    recall_of_top = np.bincount(posterior.argmax(axis=1), posterior.max(axis=1), 5) / posterior.sum(axis=0)
    assert best["macro"] > recall_of_top.mean() + 0.01
    balanced = (posterior / prior).argmax(axis=1)
    assert best["top1"] > posterior[np.arange(4000), balanced].mean() + 0.005


def test_masking_lowers_the_ceilings():
    best = ceilings(CONFIG)
    assert len(best) == 5 * 4 * 2
    assert all(0 < v <= 1 for v in best.values())
    for measure in ("top1", "macro"):
        assert best[f"with_meta/genus/{measure}"] == pytest.approx(1)  # cryptic species are of one genus
        with_meta, without = best[f"with_meta/species/{measure}"], best[f"without_meta/species/{measure}"]
        assert 0.94 < with_meta < 0.99
        assert 0.04 < with_meta - without < 0.12
        for name in COMPONENTS:
            assert without < best[f"mask_{name}/species/{measure}"] < with_meta - 0.005
    assert f"{100 * best['with_meta/species/top1']:.1f}" in format_ceilings(best)
