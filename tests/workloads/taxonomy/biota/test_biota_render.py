"""Photographs are pure functions of (world, individual), and hard for a pixel-wise classifier."""

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.biota import build_source
from linnaeus.workloads.taxonomy.biota.body_plans import BODY_PLANS
from linnaeus.workloads.taxonomy.biota.individuals import species_of
from linnaeus.workloads.taxonomy.biota.oracle import ceilings
from linnaeus.workloads.taxonomy.biota.render import nuisance_draws, render, render_forms
from linnaeus.workloads.taxonomy.biota.world import build_world


@pytest.mark.parametrize("size", [32, 31])  # 31: vectorised loops have remainders, at pixels that depend on the batch
def test_a_photograph_does_not_depend_on_its_batch(size):
    samples = np.array([901, 5, 77, 5, 12000, 33])
    together = render(0, samples, size)
    assert together.dtype == np.uint8 and together.shape == (6, size, size, 3)
    for i, s in enumerate(samples):
        np.testing.assert_array_equal(together[i], render(0, np.array([s]), size)[0])
    assert not np.array_equal(render(1, samples, size), together)


@pytest.mark.parametrize("size", [8, 31, 48, 96])
def test_every_form_is_visible_at_every_size(size):
    """Pictures of an individual with two forms of the same body plan differ on enough pixels."""
    forms = build_world(0).forms
    for plan in range(len(BODY_PLANS)):
        a = np.flatnonzero(forms.plan == plan)[:6]
        samples = np.arange(len(a)) + 50
        change = np.abs(render_forms(0, a, samples, size).astype(int) - render_forms(0, np.roll(a, 1), samples, size)).max(axis=3) > 24
        assert (change.mean(axis=(1, 2)) > 0.01).mean() > 0.8


def test_exposure_is_neither_too_dark_nor_overexposed():
    pictures = render(0, np.arange(200), 32).reshape(200, -1)
    assert 45 < pictures.mean() < 180 and (pictures == 255).mean() < 0.05
    assert (pictures.mean(axis=1) > 20).all() and (pictures.std(axis=1) > 8).all()


def test_nuisance_draws_are_uniform_and_independent_of_the_species(drawn):
    draws = nuisance_draws(0, np.arange(4000))
    assert draws.min() >= 0 and draws.max() < 1.0001
    np.testing.assert_allclose(draws.mean(axis=0), 0.5, atol=0.03)
    rank = np.argsort(np.argsort(drawn.world.prior[drawn.species[:4000]]))
    correlation = [abs(np.corrcoef(rank, draws[:, i])[0, 1]) for i in range(draws.shape[1])]
    assert max(correlation) < 0.07


def pixel_classifiers(train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray) -> dict[str, float]:
    """Return the top-1 accuracy of the nearest centroid and of k nearest neighbours, on float32 [N, D]."""
    train, test = train - train.mean(axis=0), test - train.mean(axis=0)
    classes = np.unique(train_labels)
    centroids = np.stack([train[train_labels == c].mean(axis=0) for c in classes])
    nearest = lambda points: np.argsort(np.square(points).sum(axis=1) - 2 * test @ points.T, axis=1)
    near = train_labels[nearest(train)[:, :15]]
    scores = {"centroid": (classes[nearest(centroids)[:, 0]] == test_labels).mean()}
    for k in (1, 5, 15):
        scores[f"knn{k}"] = ([np.bincount(row[:k]).argmax() for row in near] == test_labels).mean()
    return scores


@pytest.mark.slow
def test_pixel_classifiers_do_not_reach_the_ceiling(biota):
    """Nearest centroid and kNN on 16 x 16 pixels stay under 40 % of the ceiling.

    Negative control: with one pose, place and light for all individuals they exceed 60 %."""
    config = biota(6000, 400, 32)
    source = build_source(config)
    pictures = np.stack(source.images.read(np.arange(6400))).astype(np.float32)
    small = pictures.reshape(6400, 16, 2, 16, 2, 3).mean(axis=(2, 4)).reshape(6400, -1)
    labels = source.labels[:, 3]
    train, test = np.flatnonzero(labels[:6000] >= 0), 6000 + np.flatnonzero(labels[6000:] >= 0)
    ceiling = ceilings(config)["without_meta/species/top1"]
    scores = pixel_classifiers(small[train], labels[train], small[test], labels[test])
    assert max(scores.values()) < 0.4 * ceiling

    world = build_world(0)
    species = species_of(world, np.arange(1600))
    posed = render_forms(0, world.form[species], np.full(1600, 3), 16).reshape(1600, -1).astype(np.float32)
    easy = pixel_classifiers(posed[:1300], species[:1300], posed[1300:], species[1300:])
    assert min(easy["knn1"], easy["centroid"]) > 0.6 * ceiling
