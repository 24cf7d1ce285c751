"""Mixtures of sources: as the schedule says, without replacement within a source, and a function of (seed, epoch, position) alone."""

import pickle

import numpy as np
import pytest

from linnaeus.config.load import compose
from linnaeus.data.loader import build_loaders
from linnaeus.data.order import epoch_order
from linnaeus.data.sampler import PositionSampler, validation_batches
from linnaeus.randomness import MIXTURE, hashes, key, uniforms
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.workloads.base import SampleIndex
from linnaeus.workloads.language.dataset import TextWindows
from linnaeus.workloads.language.mixture import in_proportion, mixed_windows
from linnaeus.workloads.language.store import TokenArray

WINDOWS = np.array([30, 5, 12])
NAMES = ("a", "b", "c")
FADE = "{first: {start: 0%, end: 75%, data: {a: 1}}, second: {start: 25%, end: 100%, data: {b: 3, c: 1}}}"


def constant(weights, updates):
    return np.tile(np.array(weights, float) / sum(weights), (updates, 1))


def chi_square(counts, shares):
    expected = counts.sum() * np.array(shares)
    return ((counts - expected) ** 2 / expected).sum()


# -- the function ----------------------------------------------------------------------------------------------------------------


def test_golden_values():
    """They must not move: a run that is resumed under another version of this file draws the same."""
    assert mixed_windows(3, 1, constant([1, 2, 1], 6), 8, WINDOWS).tolist() == GOLDEN


WRITTEN = "19 38 33 35 37 20 34 36 32 31 1 43 30 18 17 11 44 30 40 16 29 15 "
WRITTEN += "33 39 32 31 34 41 0 32 31 30 14 8 46 34 33 33 31 32 30 34 45 24 21 31 42"
GOLDEN = [int(window) for window in WRITTEN.split()]


def test_it_is_what_a_slow_reference_draws_one_position_at_a_time():
    rng = np.random.default_rng(0)
    mixture = rng.dirichlet([0.3, 0.3, 0.3], 12)
    mixture[3:6] = [1, 0, 0]
    firsts, drawn, expected = [0, 30, 35], [0, 0, 0], []
    for position in range(47):
        draw, source = uniforms(key(7, MIXTURE, 2, 0), np.array([position]))[0], 0
        while draw >= mixture[position // 4][: source + 1].sum():
            source += 1
        count = int(WINDOWS[source])
        walk, place = divmod(drawn[source], count)
        order = np.argsort(hashes(key(7, MIXTURE, 2, 1, source), walk * count + np.arange(count)), kind="stable")
        expected.append(firsts[source] + int(order[place]))
        drawn[source] += 1
    assert mixed_windows(7, 2, mixture, 4, WINDOWS).tolist() == expected


@pytest.mark.parametrize("weights", [[5, 3, 2], [1, 1, 1], [1, 0, 9]])
def test_sources_are_drawn_as_often_as_they_weigh(weights):
    windows = np.array([9000, 8000, 7000])
    found = mixed_windows(0, 0, constant(weights, 750), 32, windows)
    counts = np.bincount(np.searchsorted([9000, 17000], found, side="right"), minlength=3)
    there = np.array(weights) > 0
    assert counts.sum() == 24000 and (counts[~there] == 0).all()
    shares = np.array(weights)[there] / sum(weights)
    assert chi_square(counts[there], shares) < 13.8, "p = 0.001 at two degrees of freedom"


def test_negative_control_other_weights_are_told_apart():
    found = mixed_windows(0, 0, constant([52, 28, 20], 750), 32, np.array([9000, 8000, 7000]))
    counts = np.bincount(np.searchsorted([9000, 17000], found, side="right"))
    assert chi_square(counts, [0.52, 0.28, 0.2]) < 13.8 < chi_square(counts, [0.5, 0.3, 0.2])


def test_no_window_of_a_source_comes_again_before_all_have_come():
    found = mixed_windows(0, 5, constant([1, 8, 3], 12), 4, WINDOWS)
    orders = []
    for first, count in ((0, 30), (30, 5), (35, 12)):
        mine = found[(found >= first) & (found < first + count)]
        for begin in range(0, len(mine), count):
            walk = mine[begin : begin + count]
            assert len(set(walk.tolist())) == len(walk)
            orders += [walk.tolist()] * (first == 30)
    assert len(orders) > 4 and len({tuple(order) for order in orders[:4]}) > 1, "each pass has an order of its own"


def test_a_cross_fade_is_followed_update_by_update():
    share = np.clip((np.arange(1000) - 250) / 500, 0, 1)
    found = mixed_windows(0, 0, np.stack([1 - share, share], 1), 16, np.array([8000, 8000]))
    second = (found >= 8000).reshape(100, -1)
    expected = share.reshape(100, -1).mean(1)
    assert (abs(second.mean(1) - expected) <= 5 * (expected * (1 - expected) / 160) ** 0.5).all()
    assert not second[:25].any() and second[75:].all()


def test_a_source_of_weight_0_is_not_drawn_by_rounding():
    """The weights before it sum to a little less than 1, and the largest draw there is lies between."""
    weights = np.array([[0.7, 0.1, 0.2, 0.0]])
    weights[0, :3] -= 1e-3  # a gap that is hit
    found = mixed_windows(0, 0, np.repeat(weights, 10, 0), 1000, np.array([2500] * 4))
    assert found.max() < 7500 and found.min() >= 0


def test_seed_and_epoch_are_all_that_matters():
    mixture = constant([1, 2, 3], 12)
    draws = {(seed, epoch): mixed_windows(seed, epoch, mixture, 4, WINDOWS).tolist() for seed in (0, 1) for epoch in (0, 1)}
    assert len({tuple(draw) for draw in draws.values()}) == 4
    assert mixed_windows(1, 1, mixture, 4, WINDOWS).tolist() == draws[1, 1]


def test_in_proportion_is_told_from_nearly():
    assert in_proportion(constant(WINDOWS.tolist(), 3), WINDOWS)
    assert not in_proportion(constant([30, 5, 12.001], 3), WINDOWS)


# -- windows of an array whose token at each place is the place itself --------------------------------------------------------------

PARTS = (241, 43, 100)  # 30, 5 and 12 windows of 8


def schedule_of(phases="{}", total=60, global_batch=8, more=()):
    config = compose(["workload=language", f"schedule.phases={phases}", f"trainer.global_batch={global_batch}", *more])
    return OpsSchedule(resolve_all_schedule_params(config, total, -(-47 // global_batch), ()))


def windows_of(folder, order, schedule=None, seed=0, block=8, dimensions=()):
    path = folder / "places.bin"
    np.arange(sum(PARTS), dtype="<u2").tofile(path)
    array = TokenArray(path, "<u2", sum(PARTS), PARTS)
    return TextWindows(array, block, seed, order, "f", NAMES, dimensions, schedule)


def sampler_of(windows, seed=0, micro=8, world=1, rank=0, total=60, global_batch=8):
    return PositionSampler(len(windows), seed, global_batch, micro, -(-len(windows) // global_batch), total, rank, world)


def epoch_of(windows, epoch, seed=0):
    order = epoch_order(seed, epoch, len(windows))
    return [SampleIndex(epoch, position, int(window), epoch * 6 + position // 8) for position, window in enumerate(order)]


def check(batch):
    """Targets follow inputs, and lie in the source of the window that is named."""
    known = batch["target"] >= 0
    assert ((batch["target"] == batch["input"] + 1) | ~known).all() and known.any(1).all()
    source = np.searchsorted([30, 35], batch["sample"].numpy(), side="right")
    ends = np.cumsum(PARTS)
    for tokens, target, of in zip(batch["input"], batch["target"], source):
        assert ends[of] - PARTS[of] <= int(tokens.min()) and int(tokens.max()) < ends[of] and int(target.max()) < ends[of]


@pytest.mark.parametrize("order", ["windows", "random", None])
@pytest.mark.parametrize("phases", ["{}", FADE])
def test_no_window_crosses_from_one_source_into_another(tmp_path, order, phases):
    windows = windows_of(tmp_path, order, schedule_of(phases))
    for epoch in range(8):
        batch = windows.__getitems__(epoch_of(windows, epoch))
        if order is not None:
            check(batch)


def test_without_phases_an_epoch_has_every_window_of_every_source_once(tmp_path):
    windows = windows_of(tmp_path, "windows", schedule_of())
    assert windows.windows.tolist() == [30, 5, 12]
    seen = set()
    for epoch in range(20):
        batch = windows.__getitems__(epoch_of(windows, epoch))
        found = batch["target"][batch["target"] >= 0].tolist()
        assert len(set(found)) == len(found)
        for end, size in zip(np.cumsum(PARTS), PARTS):
            mine = [place for place in found if end - size <= place < end]
            assert size - 1 - len(mine) < 16 and max(mine) - min(mine) == len(mine) - 1
        assert sorted(batch["sample"].tolist()) == list(range(47))
        seen |= set(found)
    assert seen == set(range(sum(PARTS))) - {0, 241, 284}, "the first of a source is no target, all others are"


def test_phases_that_mix_as_the_sizes_are_leave_the_order_as_it_is(tmp_path):
    plain, phased, mixed = (
        windows_of(tmp_path, "windows", schedule_of(phases)).__getitems__
        for phases in ("{}", "{one: {start: 0%, end: 60%}, two: {start: 40%, end: 100%}}", FADE)
    )
    indices = epoch_of(windows_of(tmp_path, "windows"), 1)
    assert plain(indices)["input"].tolist() == phased(indices)["input"].tolist() != mixed(indices)["input"].tolist()


def test_validation_has_every_token_but_the_first_of_each_source_once_and_says_which_it_is(tmp_path):
    windows = windows_of(tmp_path, None)
    assert windows.windows.tolist() == [30, 6, 13]
    batches = [windows.__getitems__(indices) for indices in validation_batches(len(windows), 5)]
    found = np.concatenate([batch["target"][batch["target"] >= 0].numpy() for batch in batches])
    assert sorted(found.tolist()) == sorted(set(range(sum(PARTS))) - {0, 241, 284})
    source = np.concatenate([batch["source"].numpy() for batch in batches])
    assert source.tolist() == [0] * 30 + [1] * 6 + [2] * 13


def test_the_mixture_is_that_of_the_update_which_uses_the_sample(tmp_path):
    """60 updates in 10 epochs: a alone up to the 15th, b and c alone from the 45th on, and in between both."""
    windows = windows_of(tmp_path, "windows", schedule_of(FADE))
    drawn = {epoch: windows.__getitems__(epoch_of(windows, epoch))["sample"].numpy() for epoch in range(10)}
    assert all((drawn[epoch] < 30).all() for epoch in (0, 1))
    assert all((drawn[epoch] >= 30).all() for epoch in (8, 9))
    assert (drawn[2][:24] < 30).all(), "updates 12, 13 and 14"
    between = np.concatenate([drawn[epoch] for epoch in range(3, 7)])
    assert (between < 30).any() and (between >= 35).any()
    late = np.concatenate([drawn[epoch] for epoch in (8, 9)])
    assert abs((late < 35).mean() - 0.75) < 5 * (0.75 * 0.25 / len(late)) ** 0.5


@pytest.mark.parametrize("order", ["windows", "random"])
def test_a_position_draws_the_same_however_the_run_is_split(tmp_path, order):
    """1 and 2 processes, 1 and 4 accumulation steps; and where a resume begins in the middle of an epoch, by whatever copy."""

    def sequence(micro, world, seed=0, start=0):
        found = {}
        for rank in range(world):
            windows = pickle.loads(pickle.dumps(windows_of(tmp_path, order, schedule_of(FADE), seed)))
            sampler = sampler_of(windows, seed, micro, world, rank)
            for epoch in (3, 4):
                sampler.begin(epoch, start)
                for indices in sampler:
                    batch = windows.__getitems__(indices)
                    for index, tokens, window in zip(indices, batch["input"].tolist(), batch["sample"].tolist()):
                        if index.real:
                            assert found.setdefault((epoch, index.position), (window, tokens)) == (window, tokens)
        return found

    one = sequence(8, 1)
    assert len(one) == 2 * 47
    assert one == sequence(2, 1) == sequence(4, 2) == sequence(2, 2)
    assert one != sequence(8, 1, seed=1)
    resumed = sequence(4, 1, start=3)
    assert resumed == {place: drawn for place, drawn in one.items() if place[1] >= 24}


@pytest.mark.parametrize("order", ["windows", "random"])
def test_two_workers_draw_what_the_process_itself_does(tmp_path, order):
    def batches(workers):
        windows = windows_of(tmp_path, order, schedule_of(FADE))
        sampler = sampler_of(windows)
        loader, found = build_loaders(windows, sampler, workers, 2, False), []
        for epoch, start in ((2, 4), (3, 0)):
            sampler.begin(epoch, start)
            found += [(batch["sample"].tolist(), batch["input"].tolist()) for batch in loader]
        return found

    found = batches(0)
    assert len(found) == 8 and found == batches(2)


def test_random_windows_begin_anywhere_in_the_source_of_the_mixture(tmp_path):
    schedule = schedule_of("{all: {start: 0%, end: 100%, data: {b: 1, c: 2}}}", total=6000)
    windows = windows_of(tmp_path, "random", schedule)
    batches = [windows.__getitems__(epoch_of(windows, epoch)) for epoch in range(200)]
    begins = np.concatenate([batch["input"][:, 0].numpy() for batch in batches])
    samples = np.concatenate([batch["sample"].numpy() for batch in batches])
    b, c = (begins >= 241) & (begins < 284), begins >= 284
    assert (b | c).all() and chi_square(np.array([b.sum(), c.sum()]), [1 / 3, 2 / 3]) < 10.8
    for mine, start, size in ((b, 241, 43), (c, 284, 100)):
        counts = np.bincount(begins[mine] - start, minlength=size - 8)
        assert len(counts) == size - 8, "the last window ends with the source"
        assert chi_square(counts, [1 / (size - 8)] * (size - 8)) < size - 9 + 4.5 * (2 * (size - 9)) ** 0.5
    assert (samples[b] == 30 + np.minimum((begins[b] - 241) // 8, 4)).all(), "the window in whose place it begins"
    assert (samples[c] == 35 + np.minimum((begins[c] - 284) // 8, 11)).all()


def test_without_phases_random_windows_are_of_sources_in_proportion(tmp_path):
    windows = windows_of(tmp_path, "random", schedule_of())
    batch = windows.__getitems__(epoch_of(windows, 0))
    assert np.bincount(windows.source_of(batch["sample"].numpy())).tolist() == [30, 5, 12], "exactly, in every epoch"


def test_weights_of_dimensions_come_with_training_batches_alone(tmp_path):
    phases = "{one: {start: 0%, end: 50%, dimensions: {x: 2}}, two: {start: 50%, end: 100%}}"
    schedule = schedule_of(phases, more=["model.dimensions=[x,y]"])
    windows = windows_of(tmp_path, "windows", schedule, dimensions=("x", "y"))
    weights = windows.__getitems__([SampleIndex(0, 0, 0, 0), SampleIndex(0, 1, 1, 29), SampleIndex(5, 0, 0, 30)])["dimensions"]
    assert weights.dtype.is_floating_point and weights.tolist() == pytest.approx(np.array([[2 / 3, 1 / 3]] * 2 + [[0.5, 0.5]]), rel=1e-6)
    assert "dimensions" not in windows_of(tmp_path, None, dimensions=("x", "y")).__getitems__([SampleIndex(0, 0, 0, 0)])
    assert "dimensions" not in windows_of(tmp_path, "windows", schedule).__getitems__([SampleIndex(0, 0, 0, 0)])
