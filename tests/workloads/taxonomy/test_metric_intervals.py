"""Confidence intervals: against a slow loop over the same draws, and how often they hold the truth."""

import math

import numpy as np
import pytest
import torch

from linnaeus import randomness
from linnaeus.workloads.taxonomy.metrics import bootstrap
from linnaeus.workloads.taxonomy.metrics.bootstrap import Intervals, intervals, times_drawn
from linnaeus.workloads.taxonomy.metrics.sample_record import Samples

RANKS = ("genus", "species")
GOLDEN = [[1, 0, 2, 1, 0, 2], [0, 0, 1, 0, 3, 2]]  # how often each of 6 groups is drawn in the first two resamples


def record(known, right, height):
    """What `SampleRecord` keeps of samples with these flags [N, 2]."""
    bits = torch.from_numpy((np.concatenate([known, right & known], 1) * (1 << np.arange(4))).sum(1))
    return Samples(torch.stack([bits, torch.from_numpy(height), torch.zeros(len(bits), dtype=torch.int64)], 1), 2)


def draws(groups, resample):
    """The groups of one resample, one hash at a time: each makes two draws, the upper halves first."""
    stream, pairs = randomness.key(0, randomness.BOOTSTRAP, groups), (groups + 1) // 2
    bits = [int(randomness.hashes(stream, np.array(resample * pairs + i))) for i in range(pairs)]
    return [(half * groups) >> 32 for half in [b >> 32 for b in bits] + [b & 0xFFFFFFFF for b in bits]][:groups]


def percentile(values, share):
    ordered = sorted(v for v in values if not math.isnan(v))
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def share(hits):
    return sum(hits) / len(hits) if hits else math.nan


@pytest.mark.parametrize("grouped", [True, False])
def test_intervals_are_those_of_a_slow_loop(grouped):
    rng = np.random.default_rng(0)
    known, right = rng.random((23, 2)) < 0.8, rng.random((23, 2)) < 0.6
    height = np.where(known[:, 1] & ~right[:, 1], rng.integers(1, 3, 23), 0)
    groups = rng.integers(0, 9, 23) * 10 + 5 if grouped else None
    names = sorted(set(groups.tolist())) if grouped else list(range(23))
    members = [[i for i in range(23) if (groups[i] if grouped else i) == name] for name in names]
    values = {name: [] for name in ("genus/top1", "species/top1", "chain", "hd1", "severity")}
    for resample in range(1000):
        rows = [i for group in draws(len(names), resample) for i in members[group]]
        for r, rank in enumerate(RANKS):
            values[f"{rank}/top1"].append(share([right[i, r] for i in rows if known[i, r]]))
        values["chain"].append(share([right[i].all() for i in rows if known[i].all()]))
        values["hd1"].append(share([height[i] for i in rows if known[i, 1]]))
        values["severity"].append(share([height[i] for i in rows if known[i, 1] and not right[i, 1]]))
    found = Intervals(RANKS, 23, groups).compute(record(known, right, height))
    for name, column in values.items():
        assert found[f"{name}_low"] == pytest.approx(percentile(column, 0.025)), name
        assert found[f"{name}_high"] == pytest.approx(percentile(column, 0.975)), name


def test_draws_do_not_move(monkeypatch):
    """With the version of numpy, or with how many are drawn at once."""
    assert times_drawn(6, 0, 2).tolist() == GOLDEN
    sums = np.random.default_rng(0).integers(0, 100, (37, 3)).astype(float)
    whole = bootstrap.resampled_sums(sums)
    monkeypatch.setattr(bootstrap, "BLOCK", 37 * 9)
    assert np.array_equal(bootstrap.resampled_sums(sums), whole)


def test_every_group_is_drawn_as_often():
    drawn = times_drawn(50, 0, 1000)
    assert (drawn.sum(1) == 50).all()
    assert drawn.mean(0) == pytest.approx(np.ones(50), abs=5 * 1000**-0.5)  # five standard errors
    assert drawn.var() == pytest.approx(1 - 1 / 50, abs=0.05)
    assert np.abs(np.corrcoef(drawn.T) + 1 / 49 - np.eye(50) * 50 / 49).max() < 0.2


def test_intervals_hold_the_truth_as_often_as_they_say():
    """50 observations of 4 photographs that are all right or all wrong: groups give 95 %, single photographs far less."""
    held = np.zeros(2)
    rng = np.random.default_rng(1)
    for _ in range(150):
        right = rng.random(50) < 0.7
        photographs = np.repeat(right, 4).astype(float)[:, None]
        for i, (hits, count) in enumerate(((photographs, np.ones((200, 1))), (4.0 * right[:, None], np.full((50, 1), 4.0)))):
            low, high = intervals(hits, count)
            held[i] += low[0] <= 0.7 <= high[0]
    alone, grouped = held / 150
    assert 0.88 <= grouped <= 0.99 and alone < 0.8


def test_one_group_says_nothing_of_the_spread():
    known = np.ones((5, 2), dtype=bool)
    samples = record(known, known, np.zeros(5, dtype=np.int64))
    assert all(math.isnan(v) for v in Intervals(RANKS, 5, np.zeros(5)).compute(samples).values())
    apart = Intervals(RANKS, 5, None).compute(samples)
    assert apart["chain_low"] == apart["chain_high"] == 1 and math.isnan(apart["severity_low"])
