"""Class resampling: exact mean quotas, no repeats before a class is exhausted, slots of two, a pure function of (seed, epoch)."""

from fractions import Fraction

import numpy as np
import pytest

from linnaeus.data.order import epoch_order
from linnaeus.data.resampling import POWERS, Resampling
from linnaeus.randomness import permutation
from tests.data.test_order import global_batches

TAIL = np.array([400, 120, 37, 9, 4, 1, 1])  # samples of each class
NULLS = 28


def long_tailed(seed=0, nulls=NULLS):
    """Return the class of each sample, shuffled."""
    classes = np.concatenate([np.repeat(np.arange(len(TAIL)), TAIL), np.full(nulls, -1)])
    return classes[permutation(seed, len(classes))]


@pytest.mark.parametrize("name", POWERS)
def test_quotas_are_exact_on_average_and_rounded_in_each_epoch(name):
    """A class of n samples has on average total x n^power / sum of n^power positions."""
    resampling, weights = Resampling(long_tailed(), POWERS[name], 3), [Fraction(float(n) ** POWERS[name]) for n in TAIL]
    exact = [float(TAIL.sum() * w / sum(weights)) for w in weights]
    assert resampling.expected == pytest.approx(exact, rel=1e-6)
    quotas = np.array([resampling.quotas(epoch) for epoch in range(3000)])
    assert (quotas.sum(1) == TAIL.sum()).all()
    assert (np.abs(quotas - resampling.expected) < 1).all()
    assert np.abs(quotas.mean(0) - resampling.expected).max() < 0.05  # five standard errors of a fair coin
    assert np.abs(np.round(exact) - exact).max() > 0.2, "negative control: rounding to the nearest integer is biased"


@pytest.mark.parametrize("name", POWERS)
def test_an_epoch_contains_each_class_by_its_quota_and_null_labels_once(name):
    classes = long_tailed()
    resampling = Resampling(classes, POWERS[name], 3)
    for epoch in range(5):
        order = epoch_order(3, epoch, len(classes), None, resampling)
        assert len(order) == len(classes)
        assert np.array_equal(np.bincount(classes[order][classes[order] >= 0]), resampling.quotas(epoch))
        counts = np.bincount(order, minlength=len(classes))
        assert (counts[classes < 0] == 1).all()
        for c in range(len(TAIL)):
            assert np.ptp(counts[classes == c]) <= 1, "no sample repeats before all of its class were drawn"
    assert resampling.draws.sum() == pytest.approx(len(classes))


def test_an_epoch_continues_where_the_last_one_ended():
    """A class of 400 samples has about 82 positions per epoch, so five epochs draw all of it, except one sample at each border.
    Independent epochs would omit a third."""
    classes = long_tailed()
    resampling = Resampling(classes, 0.0, 3)
    seen = set(np.concatenate([resampling.multiset(epoch) for epoch in range(5)]))
    assert sum(classes[s] == 0 for s in seen) >= 395
    independent = set(np.concatenate([resampling.multiset(0)] + [Resampling(classes, 0.0, seed).multiset(0) for seed in range(4)]))
    assert sum(classes[s] == 0 for s in independent) < 330


def test_the_order_depends_on_seed_and_epoch_and_not_on_earlier_calls():
    classes = long_tailed()

    def order(seed, epoch):
        return epoch_order(seed, epoch, len(classes), None, Resampling(classes, 0.5, seed)).tolist()

    first, used = order(1, 4), Resampling(classes, 0.5, 1)
    for epoch in range(5):
        last = epoch_order(1, epoch, len(classes), None, used).tolist()
    assert last == first
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize("groups", (None, long_tailed() // 2), ids=("plain", "slots"))
def test_the_split_over_processes_and_a_resume_change_nothing(groups):
    classes = long_tailed()

    def batches(world, micro, start=0):
        data = {"size": len(classes), "groups": groups, "resampling": Resampling(classes, 0.0, 5)}
        return global_batches(world, micro, epoch=2, start=start, batch=64, **data)

    whole = batches(1, 64)
    assert all(batches(world, micro) == whole for world, micro in ((1, 8), (2, 8), (4, 16), (8, 2)))
    first = min(whole)
    assert batches(2, 8, start=4) == {step: pairs for step, pairs in whole.items() if step >= first + 4}
    assert [p for pairs in whole.values() for p, _ in pairs] == list(range(len(classes)))


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("seed", range(12))
def test_slots_pair_as_many_different_samples_of_a_group_as_possible(name, seed):
    """Groups are coarser than the classes, finer, or independent. A group of T with m copies of one sample has min(T / 2, T - m) pairs."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 60))
    classes = np.minimum(rng.integers(-1, 6, size), rng.integers(-1, 6, size))
    groups = {0: classes // 2, 1: np.where(rng.random(size) < 0.5, classes, -1), 2: rng.integers(-1, 3, size)}[seed % 3]
    groups = np.where(classes < 0, -1, groups) if seed % 3 == 0 else groups
    resampling = Resampling(classes, POWERS[name], seed)
    for epoch in range(6):
        order = epoch_order(seed, epoch, size, groups, resampling)
        assert sorted(order) == sorted(resampling.multiset(epoch))
        slots = order[: size // 2 * 2].reshape(-1, 2)
        one, two = slots.T
        pairs = (groups[one] == groups[two]) & (groups[one] >= 0) & (one != two)
        copies = [np.bincount(order[groups[order] == g]) for g in np.unique(groups[order]) if g >= 0]
        assert pairs.sum() == sum(min(c.sum() // 2, c.sum() - c.max()) for c in copies)


def test_negative_control_pairing_without_regard_to_copies():
    """It pairs a sample with itself."""
    from linnaeus.data.order import _pair_samples

    resampling = Resampling(np.array([0] * 50 + [1, 1]), 0.0, 0)
    pairs, _ = _pair_samples(resampling.multiset(0)[permutation(1, 52)], resampling.classes)
    assert (pairs[:, 0] == pairs[:, 1]).any()


def test_pairs_vary_over_epochs():
    """Ten samples are drawn three times each. Their partners differ within an epoch and between epochs."""
    classes = np.concatenate([np.zeros(10, int), np.ones(50, int)])
    resampling = Resampling(classes, 0.0, 0)
    found_pairs = set()
    for epoch in range(20):
        slots = epoch_order(0, epoch, 60, classes, resampling).reshape(-1, 2)
        found_pairs |= {tuple(sorted(slot)) for slot in slots.tolist() if max(slot) < 10}
    assert len(found_pairs) > 40, "of 45 possible pairs"


@pytest.mark.parametrize("classes", [np.arange(9), np.full(9, -1)], ids=["classes of one sample", "no classes"])
def test_every_sample_is_drawn_once(classes):
    for name in POWERS:
        assert sorted(epoch_order(0, 1, 9, None, Resampling(classes, POWERS[name], 0))) == list(range(9))


def test_the_summary_contains_the_counts_of_the_first_epoch():
    resampling = Resampling(long_tailed(), 0.0, 3)
    order = epoch_order(3, 0, 600, None, resampling)
    times = np.bincount(order, minlength=600)
    distinct, omitted = (times > 0).sum(), (times == 0).sum()
    expected = f"an epoch of 600 contains {distinct} different samples, each at most {times.max()} times, and omits {omitted}"
    assert resampling.summary().startswith(expected)
    assert "classes of 1 to 400 samples are drawn 81 to 82 times" in resampling.summary()


@pytest.mark.parametrize("number", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_ten_rows_of_each_of_very_many_classes(number):
    counts = np.maximum(1, (3 * number / np.arange(1, number + 1) ** 1.1).astype(np.int64))
    classes = np.repeat(np.arange(len(counts)), counts)
    for name in POWERS:
        resampling = Resampling(classes, POWERS[name], 0)
        quotas = resampling.quotas(7)
        assert quotas.sum() == len(classes) and (np.abs(quotas - resampling.expected) < 1).all() and quotas.min() >= 1
        exact = len(classes) * counts ** POWERS[name] / (counts ** POWERS[name]).sum()
        assert resampling.expected == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("name", POWERS)
def test_golden_order(name):
    classes = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, -1])
    orders = [
        epoch_order(0, epoch, 12, groups, Resampling(classes, POWERS[name], 0)).tolist() for epoch in (0, 3) for groups in (None, classes)
    ]
    assert orders == GOLDEN[name]


GOLDEN = {
    "square_root": [
        [5, 7, 1, 6, 3, 0, 9, 8, 6, 11, 10, 4],
        [6, 8, 1, 3, 10, 9, 6, 7, 4, 11, 0, 5],
        [7, 10, 9, 5, 4, 11, 3, 10, 6, 2, 0, 8],
        [4, 2, 0, 3, 9, 10, 7, 6, 11, 10, 5, 8],
    ],
    "class_balanced": [
        [5, 6, 1, 8, 7, 6, 9, 10, 9, 11, 10, 4],
        [9, 10, 6, 7, 9, 10, 6, 8, 4, 11, 1, 5],
        [6, 10, 9, 8, 2, 11, 1, 10, 9, 4, 5, 7],
        [5, 2, 1, 4, 10, 9, 8, 7, 10, 9, 11, 6],
    ],
}
