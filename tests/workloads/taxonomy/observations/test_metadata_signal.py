"""Test how much metadata tell about labels, from the nearest photographs of other observations."""

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.observations.metadata_signal import QUERIES, measure_signal


def world(count, classes=8, spread=0.1, seed=0):
    """Return places and labels of `count` observations: two ranks, the coarse one with half as many classes."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, classes, count)
    points = draw.uniform(-1, 1, (classes, 2))[label] + draw.normal(0, spread, (count, 2))
    return points, np.stack([label // 2, label], axis=1)


@pytest.mark.parametrize("count", [60, 300, QUERIES + 1])
def test_ranges_of_the_classes_are_found(count):
    signal = measure_signal(*world(count), None)
    assert signal.certain and signal.gain > 0.2


@pytest.mark.parametrize("seed", range(20))
def test_shuffled_places_have_no_signal(seed):
    points, labels = world(200, seed=seed)
    assert not measure_signal(np.random.default_rng(seed).permutation(points), labels, None).certain


def test_photographs_of_one_observation_do_not_tell_each_others_label():
    points, labels = world(60)
    points = np.random.default_rng(1).permutation(points)
    points, labels, group = (np.repeat(own, 5, axis=0) for own in (points, labels, np.arange(60)))
    assert not measure_signal(points, labels, group).certain
    assert measure_signal(points, labels, None).certain, "without groups the copies would tell it"


def test_a_coarse_rank_is_enough():
    points, labels = world(300)
    labels[:, 1] = np.arange(300)  # each photograph is a class of its own at the fine rank
    assert measure_signal(points, labels, None).certain


def test_missing_labels_are_left_out():
    points, labels = world(300)
    half = labels.copy()
    half[::2, 1] = -1
    half[1::2, 0] = -1
    assert measure_signal(points, half, None).certain
    empty = np.full_like(labels, -1)
    assert measure_signal(points, empty, None).gain == 0 and not measure_signal(points, empty, None).certain
    one = np.zeros_like(labels)
    assert not measure_signal(points, one, None).certain


def test_one_place_and_one_observation_have_no_signal():
    points, labels = world(100)
    assert not measure_signal(np.zeros_like(points), labels, None).certain
    assert not measure_signal(points, labels, np.zeros(100, np.int64)).certain
