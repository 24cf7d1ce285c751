"""Test confidence intervals: against a slow loop over the same draws, their coverage, and which validations of a run have them."""

import json
import math

import numpy as np
import pytest
import torch

from linnaeus import randomness
from linnaeus.metrics import bootstrap
from linnaeus.metrics.bootstrap import intervals, times_drawn
from linnaeus.train import validation
from linnaeus.workloads.taxonomy.metrics.sample_record import Samples, confidence_intervals
from tests import runs, watching

RANKS = ("genus", "species")
GOLDEN = [[1, 0, 2, 1, 0, 2], [0, 0, 1, 0, 3, 2]]  # how often each of 6 groups is drawn in the first two resamples


def record(known, right, height):
    """Return the sample record of samples with these flags [N, 2]."""
    bits = torch.from_numpy((np.concatenate([known, right & known], 1) * (1 << np.arange(4))).sum(1))
    return Samples(torch.stack([bits, torch.from_numpy(height), torch.zeros(len(bits), dtype=torch.int64)], 1), 2)


def draws(groups, resample):
    """Return the groups of one resample, from one hash at a time: each gives two draws, all upper halves first."""
    stream, pairs = randomness.key(0, randomness.BOOTSTRAP, groups), (groups + 1) // 2
    bits = [int(randomness.hashes(stream, np.array(resample * pairs + i))) for i in range(pairs)]
    return [(half * groups) >> 32 for half in [b >> 32 for b in bits] + [b & 0xFFFFFFFF for b in bits]][:groups]


def percentile(values, share):
    ordered = sorted(v for v in values if not math.isnan(v))
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    return ordered[below] + (position - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def share(hits):
    return sum(hits) / len(hits) if hits else math.nan


@pytest.mark.parametrize("grouped", [True, False])
def test_intervals_match_a_slow_loop(grouped):
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
    found = confidence_intervals(RANKS, record(known, right, height), groups)
    for name, column in values.items():
        assert found[f"{name}_low"] == pytest.approx(percentile(column, 0.025)), name
        assert found[f"{name}_high"] == pytest.approx(percentile(column, 0.975)), name


def test_draws_are_fixed(monkeypatch):
    """They do not depend on the version of numpy or on the number of draws at once."""
    assert times_drawn(6, 0, 2).tolist() == GOLDEN
    sums = np.random.default_rng(0).integers(0, 100, (37, 3)).astype(float)
    whole = bootstrap.resampled_sums(sums)
    monkeypatch.setattr(bootstrap, "BLOCK", 37 * 9)
    assert np.array_equal(bootstrap.resampled_sums(sums), whole)


def test_intervals_of_groups_have_their_nominal_coverage():
    """There are 50 observations of 4 photographs, all right or all wrong. Resampling groups gives 95 % coverage, resampling single
    photographs far less."""
    covered = np.zeros(2)
    rng = np.random.default_rng(1)
    for _ in range(150):
        right = rng.random(50) < 0.7
        photographs = np.repeat(right, 4).astype(float)[:, None]
        for i, (hits, count) in enumerate(((photographs, np.ones((200, 1))), (4.0 * right[:, None], np.full((50, 1), 4.0)))):
            low, high = intervals(hits, count)
            covered[i] += low[0] <= 0.7 <= high[0]
    single, grouped = covered / 150
    assert 0.88 <= grouped <= 0.99 and single < 0.8


def test_one_group_gives_nan():
    known = np.ones((5, 2), dtype=bool)
    samples = record(known, known, np.zeros(5, dtype=np.int64))
    assert all(math.isnan(v) for v in confidence_intervals(RANKS, samples, np.zeros(5)).values())
    ungrouped = confidence_intervals(RANKS, samples, None)
    assert ungrouped["chain_low"] == ungrouped["chain_high"] == 1 and math.isnan(ungrouped["severity_low"])


# -- in a run ------------------------------------------------------------------------------------------------------------------

RUN = [
    "trainer.length=6steps",
    "trainer.global_batch_size=8",
    "schedule.validate=[2steps]",
    "schedule.validate_mask_meta=[100%]",
    "schedule.validate_partial_mask_meta=[]",
]
PATIENT = [
    *RUN,
    "trainer.length=20steps",
    "schedule.early_stop.patience=2",
    "schedule.early_stop.min_delta=1000",
    "schedule.early_stop.monitor=val/loss",
]
ENDED = {
    "at the last step": (RUN, [6]),
    "at a limit": ([*RUN, "schedule.early_stop.max_steps=3"], [3]),
    "by patience": (PATIENT, [6]),
    # Each validation may end the run.
    "by a bound": ([*RUN, "schedule.early_stop.metric_bound=0", "schedule.early_stop.monitor=val/loss"], [2, 4, 6]),
}


def with_intervals(run):
    """Return the (step, pass) of results with intervals, and of results without."""
    found = {True: [], False: []}
    for row in runs.rows(run / "metrics.jsonl"):
        for key in sorted({name.split("/")[0] for name in row if name.endswith("/hd1")}):
            found[f"{key}/hd1_low" in row].append((row["global_step"], key))
    return found[True], found[False]


@pytest.mark.parametrize("ends", ENDED)
def test_the_last_validations_of_a_run_have_intervals(ends, tmp_path):
    settings, steps = ENDED[ends]
    run = runs.run("biota", tmp_path, *settings)
    present, missing = with_intervals(run)
    passes = [(step, "val") for step in steps]
    assert sorted(present) == sorted([*passes, (steps[-1], "val_mask_meta")])
    assert missing == [(step, "val") for step in range(2, steps[-1], 2) if step not in steps]
    assert ("val/hd1_low" in json.loads((run / "summary.json").read_text())["final"]) is True


@pytest.mark.slow
def test_a_run_killed_in_its_last_validation_has_the_same_intervals(tmp_path):
    whole = runs.run("biota", tmp_path / "whole", *PATIENT)
    config = runs.configuration("biota", tmp_path / "cut", *PATIENT)
    with watching.signalled_in_validation(3 + 3 + 2):  # each pass has 3 batches: in the third pass
        assert runs.start(config) == 75
    with runs.killed(validation, "apply_results", 1):
        runs.start(config)
    assert runs.start(config) == 0
    assert runs.differences(whole, runs.run_path(config)) == []
    assert with_intervals(whole)[0] == [(6, "val"), (6, "val_mask_meta")]
