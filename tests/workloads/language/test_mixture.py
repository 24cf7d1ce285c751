"""Mixtures of sources: they follow the schedule, draw without replacement within a source, and are a function of seed and position."""

import pickle

import numpy as np
import pytest

from linnaeus.config.load import compose
from linnaeus.data.loader import build_loaders
from linnaeus.data.order import epoch_order
from linnaeus.data.sampler import PositionSampler, validation_batches
from linnaeus.data.samples import SampleIndex
from linnaeus.randomness import MIXTURE, hashes, key, uniforms
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.workloads.language.mixture import Mixture, assign_windows, draw_sources, is_proportional
from linnaeus.workloads.language.text_windows import TextWindows
from linnaeus.workloads.language.token_store import TokenArray

WINDOWS = np.array([30, 5, 12])
NAMES = ("a", "b", "c")
FADE = "{first: {start: 0%, end: 75%, data: {a: 1}}, second: {start: 25%, end: 100%, data: {b: 3, c: 1}}}"


def constant(weights, updates):
    return np.tile(np.array(weights, float) / sum(weights), (updates, 1))


def chi_square(counts, shares):
    expected = counts.sum() * np.array(shares)
    return ((counts - expected) ** 2 / expected).sum()


def mixed_windows(seed, epoch, mixture, global_batch_size, windows, before=(0, 0, 0, 0)):
    """Return the window at each position. `before`: draws of each source in earlier epochs."""
    source = draw_sources(seed, epoch, mixture, global_batch_size, int(windows.sum()))
    return assign_windows(seed, source, np.array(before[: len(windows)]), windows)[0]


# -- the functions ---------------------------------------------------------------------------------------------------------------


def test_golden_values():
    """They must not change, so that a run resumed with a later version draws the same windows."""
    assert mixed_windows(3, 1, constant([1, 2, 1], 6), 8, WINDOWS, (28, 4, 10)).tolist() == GOLDEN


WRITTEN = "6 42 31 46 36 19 32 41 30 31 18 39 33 22 12 11 40 34 45 24 8 3 "
WRITTEN += "30 44 31 33 34 38 27 32 32 34 5 21 37 31 30 33 30 34 33 31 43 15 20 32 42"
GOLDEN = [int(window) for window in WRITTEN.split()]


def test_draws_equal_a_slow_reference():
    rng = np.random.default_rng(0)
    mixture = rng.dirichlet([0.3, 0.3, 0.3], 12)
    mixture[3:6] = [1, 0, 0]
    firsts, drawn, expected = [0, 30, 35], [71, 3, 12], []
    for position in range(47):
        draw, source = uniforms(key(7, MIXTURE, 2, 0), np.array([position]))[0], 0
        while draw >= mixture[position // 4][: source + 1].sum():
            source += 1
        count = int(WINDOWS[source])
        turn, place = divmod(drawn[source], count)
        order = np.argsort(hashes(key(7, MIXTURE, source, 1), turn * count + np.arange(count)), kind="stable")
        expected.append(firsts[source] + int(order[place]))
        drawn[source] += 1
    assert mixed_windows(7, 2, mixture, 4, WINDOWS, (71, 3, 12)).tolist() == expected


@pytest.mark.parametrize("weights", [[5, 3, 2], [1, 1, 1], [1, 0, 9]])
def test_sources_are_drawn_in_proportion_to_their_weights(weights):
    windows = np.array([9000, 8000, 7000])
    found = mixed_windows(0, 0, constant(weights, 750), 32, windows)
    counts = np.bincount(np.searchsorted([9000, 17000], found, side="right"), minlength=3)
    there = np.array(weights) > 0
    assert counts.sum() == 24000 and (counts[~there] == 0).all()
    shares = np.array(weights)[there] / sum(weights)
    assert chi_square(counts[there], shares) < 13.8, "p = 0.001 at two degrees of freedom"


def test_negative_control_the_test_rejects_other_weights():
    found = mixed_windows(0, 0, constant([52, 28, 20], 750), 32, np.array([9000, 8000, 7000]))
    counts = np.bincount(np.searchsorted([9000, 17000], found, side="right"))
    assert chi_square(counts, [0.52, 0.28, 0.2]) < 13.8 < chi_square(counts, [0.5, 0.3, 0.2])


def test_windows_of_a_source_are_drawn_without_replacement():
    found = mixed_windows(0, 5, constant([1, 8, 3], 12), 4, WINDOWS)
    orders = []
    for first, count in ((0, 30), (30, 5), (35, 12)):
        own = found[(found >= first) & (found < first + count)]
        for begin in range(0, len(own), count):
            turn = own[begin : begin + count]
            assert len(set(turn.tolist())) == len(turn)
            orders += [turn.tolist()] * (first == 30)
    assert len(orders) > 4 and len({tuple(order) for order in orders[:4]}) > 1, "each pass has its own order"


def test_a_cross_fade_changes_the_mixture_at_every_update():
    share = np.clip((np.arange(1000) - 250) / 500, 0, 1)
    found = mixed_windows(0, 0, np.stack([1 - share, share], 1), 16, np.array([8000, 8000]))
    second = (found >= 8000).reshape(100, -1)
    expected = share.reshape(100, -1).mean(1)
    assert (abs(second.mean(1) - expected) <= 5 * (expected * (1 - expected) / 160) ** 0.5).all()
    assert not second[:25].any() and second[75:].all()


def test_rounding_never_draws_a_source_of_weight_0():
    """The weights before the source sum to slightly less than 1, and draws lie in the gap."""
    weights = np.array([[0.7, 0.1, 0.2, 0.0]])
    weights[0, :3] -= 1e-3  # a gap that draws hit
    found = mixed_windows(0, 0, np.repeat(weights, 10, 0), 1000, np.array([2500] * 4))
    assert found.max() < 7500 and found.min() >= 0


def test_draws_are_a_function_of_seed_and_epoch():
    mixture = constant([1, 2, 3], 12)
    draws = {(seed, epoch): mixed_windows(seed, epoch, mixture, 4, WINDOWS).tolist() for seed in (0, 1) for epoch in (0, 1)}
    assert len({tuple(draw) for draw in draws.values()}) == 4
    assert mixed_windows(1, 1, mixture, 4, WINDOWS).tolist() == draws[1, 1]


def test_is_proportional_is_exact():
    assert is_proportional(constant(WINDOWS.tolist(), 3), WINDOWS)
    assert not is_proportional(constant([30, 5, 12.001], 3), WINDOWS)


# -- a run -----------------------------------------------------------------------------------------------------------------------


def schedule_of(phases="{}", total=60, global_batch_size=8, more=(), steps_per_epoch=None):
    config = compose(["workload=language", f"schedule.phases={phases}", f"trainer.global_batch_size={global_batch_size}", *more])
    return OpsSchedule(resolve_all_schedule_params(config, total, steps_per_epoch or -(-47 // global_batch_size), ()))


RUN = "{first: {start: 0%, end: 55%, data: {a: 2, b: 1, c: 1}}, whole: {start: 50%, end: 70%}, "
RUN += "last: {start: 70%, end: 100%, data: {b: 1, c: 4}}}"
MANY = np.array([300, 50, 120])


def run_of(mixture, epochs):
    """Return the windows of each epoch: those of the mixture, or every window."""
    every = np.arange(mixture.window_counts.sum())
    return [every if (found := mixture.epoch_draws(epoch)) is None else found[0] for epoch in range(epochs)]


def counted(epochs):
    """Return how often each window was drawn, one array per source."""
    times = np.bincount(np.concatenate(epochs), minlength=470)
    return times[:300], times[300:350], times[350:]


def mixture_of(phases, windows=MANY, total=590, global_batch_size=8, more=()):
    """Return a mixture of 10 epochs."""
    return Mixture(5, schedule_of(phases, total, global_batch_size, more, total // 10), NAMES, windows)


def test_windows_are_drawn_without_replacement_over_several_epochs():
    mixture = mixture_of(RUN)
    epochs = run_of(mixture, 10)
    assert [found is None for found in map(mixture.epoch_draws, range(10))] == [False] * 6 + [True] + [False] * 3
    for number in range(1, 11):
        for times in counted(epochs[:number]):
            assert times.max() - times.min() <= 1
    assert min(times.max() for times in counted(epochs)) > 4


def test_negative_control_epochs_that_restart_repeat_some_windows():
    mixture = mixture_of(RUN)
    restarted = [assign_windows(5, mixture.epoch_sources(epoch), np.zeros(3, np.int64), MANY)[0] for epoch in range(4)]
    times, _, _ = counted(restarted)
    assert times.max() - times.min() >= 3
    assert sum(len(set(epoch[epoch < 300].tolist())) == (epoch < 300).sum() for epoch in restarted) == 4, "no repeats within an epoch"


def test_draws_before_counts_mixed_epochs_only():
    mixture = mixture_of(RUN)
    counts = [np.bincount(source, minlength=3) for epoch in range(9) if (source := mixture.epoch_sources(epoch)) is not None]
    assert len(counts) == 8
    assert mixture.draws_before(9).tolist() == np.sum(counts, 0).tolist() and mixture.draws_before(0).tolist() == [0, 0, 0]


def test_an_epoch_does_not_depend_on_which_epochs_were_computed_before():
    mixture, late = mixture_of(RUN), mixture_of(RUN)
    epochs = run_of(mixture, 10)
    assert late.epoch_draws(8)[0].tolist() == epochs[8].tolist() != epochs[7].tolist()
    assert late.epoch_draws(2)[0].tolist() == epochs[2].tolist(), "in any order"
    assert pickle.loads(pickle.dumps(mixture)).epoch_draws(9)[0].tolist() == epochs[9].tolist()


def test_dropped_positions_draw_nothing():
    """470 windows are 58 updates of 8, and 6 that `data.last_batch=drop` leaves out."""
    mixture = mixture_of("{one: {start: 0%, end: 100%, data: {a: 1}}}", total=580, more=["data.last_batch=drop"])
    epochs = run_of(mixture, 10)
    assert {len(epoch) for epoch in epochs} == {464}
    for number in range(1, 11):
        times, *_ = counted(epochs[:number])
        assert times.max() - times.min() <= 1


def test_only_the_needed_permutations_are_computed(monkeypatch):
    made = []
    monkeypatch.setattr("linnaeus.workloads.language.mixture.hashes", lambda stream, index: made.append(index) or hashes(stream, index))
    found, turn = assign_windows(0, np.zeros(25, np.int64), np.array([10_000 * 30 + 20]), np.array([30]))
    assert [(index[0], len(index)) for index in made] == [(300_000, 60)], "the 10,000th pass and the one after"
    assert turn.tolist() == [10_000] * 10 + [10_001] * 15 and len(set(found[:10].tolist())) == 10


# -- windows of an array whose tokens are their own positions --------------------------------------------------------------

PARTS = (241, 43, 100)  # 30, 5 and 12 windows of 8


def windows_of(folder, order, schedule=None, seed=0, block=8, dimensions=()):
    path = folder / "places.bin"
    np.arange(sum(PARTS), dtype="<u2").tofile(path)
    array = TokenArray(path, "<u2", sum(PARTS), PARTS)
    return TextWindows(array, block, seed, order, "f", NAMES, dimensions, schedule)


def sampler_of(windows, seed=0, micro=8, world=1, rank=0, total=60, global_batch_size=8):
    return PositionSampler(len(windows), seed, global_batch_size, micro, -(-len(windows) // global_batch_size), total, rank, world)


def epoch_of(windows, epoch, seed=0):
    order = epoch_order(seed, epoch, len(windows))
    return [SampleIndex(epoch, position, int(window), epoch * 6 + position // 8) for position, window in enumerate(order)]


def check(batch):
    """Check that targets follow inputs and lie in the source of their window."""
    known = batch["target"] >= 0
    assert ((batch["target"] == batch["input"] + 1) | ~known).all() and known.any(1).all()
    source = np.searchsorted([30, 35], batch["sample"].numpy(), side="right")
    ends = np.cumsum(PARTS)
    for tokens, target, of in zip(batch["input"], batch["target"], source):
        assert ends[of] - PARTS[of] <= int(tokens.min()) and int(tokens.max()) < ends[of] and int(target.max()) < ends[of]


@pytest.mark.parametrize("order", ["windows", "random", None])
@pytest.mark.parametrize("phases", ["{}", FADE])
def test_no_window_crosses_two_sources(tmp_path, order, phases):
    windows = windows_of(tmp_path, order, schedule_of(phases))
    for epoch in range(8):
        batch = windows.__getitems__(epoch_of(windows, epoch))
        if order is not None:
            check(batch)


def test_without_phases_an_epoch_has_every_window_once(tmp_path):
    windows = windows_of(tmp_path, "windows", schedule_of())
    assert windows.window_counts.tolist() == [30, 5, 12]
    seen = set()
    for epoch in range(20):
        batch = windows.__getitems__(epoch_of(windows, epoch))
        found = batch["target"][batch["target"] >= 0].tolist()
        assert len(set(found)) == len(found)
        for end, size in zip(np.cumsum(PARTS), PARTS):
            own = [place for place in found if end - size <= place < end]
            assert size - 1 - len(own) < 16 and max(own) - min(own) == len(own) - 1
        assert sorted(batch["sample"].tolist()) == list(range(47))
        seen |= set(found)
    assert seen == set(range(sum(PARTS))) - {0, 241, 284}, "all but the first token of each source"


def test_phases_without_data_weights_keep_the_usual_order(tmp_path):
    plain, phased, mixed = (
        windows_of(tmp_path, "windows", schedule_of(phases)).__getitems__
        for phases in ("{}", "{one: {start: 0%, end: 60%}, two: {start: 40%, end: 100%}}", FADE)
    )
    indices = epoch_of(windows_of(tmp_path, "windows"), 1)
    assert plain(indices)["input"].tolist() == phased(indices)["input"].tolist() != mixed(indices)["input"].tolist()


def test_validation_targets_each_token_of_each_source_once(tmp_path):
    windows = windows_of(tmp_path, None)
    assert windows.window_counts.tolist() == [30, 6, 13]
    batches = [windows.__getitems__(indices) for indices in validation_batches(len(windows), 5)]
    found = np.concatenate([batch["target"][batch["target"] >= 0].numpy() for batch in batches])
    assert sorted(found.tolist()) == sorted(set(range(sum(PARTS))) - {0, 241, 284})
    source = np.concatenate([batch["source"].numpy() for batch in batches])
    assert source.tolist() == [0] * 30 + [1] * 6 + [2] * 13


def test_a_sample_is_drawn_from_the_mixture_of_its_update(tmp_path):
    """60 updates in 10 epochs: only a in the first 15, only b and c from update 45 on, all between."""
    windows = windows_of(tmp_path, "windows", schedule_of(FADE))
    drawn = {epoch: windows.__getitems__(epoch_of(windows, epoch))["sample"].numpy() for epoch in range(10)}
    assert all((drawn[epoch] < 30).all() for epoch in (0, 1))
    assert all((drawn[epoch] >= 30).all() for epoch in (8, 9))
    assert (drawn[2][:24] < 30).all(), "updates 12, 13 and 14"
    between = np.concatenate([drawn[epoch] for epoch in range(3, 7)])
    assert (between < 30).any() and (between >= 35).any()
    late = np.concatenate([drawn[epoch] for epoch in (8, 9)])
    assert abs((late < 35).mean() - 0.75) < 5 * (0.75 * 0.25 / len(late)) ** 0.5


def test_no_token_is_a_target_twice_in_a_pass(tmp_path):
    """Also if an epoch ends within the pass: all windows of a pass have the same shift."""
    windows = windows_of(tmp_path, "windows", schedule_of("{all: {start: 0%, end: 100%, data: {a: 3, b: 1, c: 2}}}"))
    drawn, shifts = {0: [], 1: [], 2: []}, set()
    for epoch in range(10):
        batch = windows.__getitems__(epoch_of(windows, epoch))
        for source, target in zip(windows.source_of(batch["sample"].numpy()).tolist(), batch["target"].tolist()):
            drawn[source].append([token for token in target if token >= 0])
    for source, count in enumerate((30, 5, 12)):
        for begin in range(0, len(drawn[source]), count):
            tokens = [token for target in drawn[source][begin : begin + count] for token in target]
            assert len(set(tokens)) == len(tokens)
            shifts.add((source, min(tokens)))
    assert len(shifts) > 20, "each pass has its own shift"


@pytest.mark.parametrize("order", ["windows", "random"])
def test_draws_do_not_depend_on_the_split(tmp_path, order):
    """1 and 2 processes, 1 and 4 accumulation steps, a resume within an epoch, and pickled copies of the dataset."""

    def sequence(micro, world, seed=0, start=0):
        found = {}
        for rank in range(world):
            windows = pickle.loads(pickle.dumps(windows_of(tmp_path, order, schedule_of(FADE), seed)))
            sampler = sampler_of(windows, seed, micro, world, rank)
            for epoch in (3, 4):
                sampler.set_epoch(epoch, start)
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
def test_two_workers_give_the_batches_of_none(tmp_path, order):
    def batches(workers):
        windows = windows_of(tmp_path, order, schedule_of(FADE))
        sampler = sampler_of(windows)
        loader, found = build_loaders(windows, sampler, workers, 2, False), []
        for epoch, start in ((2, 4), (3, 0)):
            sampler.set_epoch(epoch, start)
            found += [(batch["sample"].tolist(), batch["input"].tolist()) for batch in loader]
        return found

    found = batches(0)
    assert len(found) == 8 and found == batches(2)


def test_random_windows_start_anywhere_in_their_source(tmp_path):
    schedule = schedule_of("{all: {start: 0%, end: 100%, data: {b: 1, c: 2}}}", total=6000)
    windows = windows_of(tmp_path, "random", schedule)
    batches = [windows.__getitems__(epoch_of(windows, epoch)) for epoch in range(200)]
    begins = np.concatenate([batch["input"][:, 0].numpy() for batch in batches])
    samples = np.concatenate([batch["sample"].numpy() for batch in batches])
    b, c = (begins >= 241) & (begins < 284), begins >= 284
    assert (b | c).all() and chi_square(np.array([b.sum(), c.sum()]), [1 / 3, 2 / 3]) < 10.8
    for own, start, size in ((b, 241, 43), (c, 284, 100)):
        counts = np.bincount(begins[own] - start, minlength=size - 8)
        assert len(counts) == size - 8, "the last window ends with the source"
        assert chi_square(counts, [1 / (size - 8)] * (size - 8)) < size - 9 + 4.5 * (2 * (size - 9)) ** 0.5
    assert (samples[b] == 30 + np.minimum((begins[b] - 241) // 8, 4)).all(), "the window that contains its start"
    assert (samples[c] == 35 + np.minimum((begins[c] - 284) // 8, 11)).all()


def test_without_phases_random_windows_are_proportional_to_the_sources(tmp_path):
    windows = windows_of(tmp_path, "random", schedule_of())
    batch = windows.__getitems__(epoch_of(windows, 0))
    assert np.bincount(windows.source_of(batch["sample"].numpy())).tolist() == [30, 5, 12], "exactly, in every epoch"


def test_only_training_batches_have_dimension_weights(tmp_path):
    phases = "{one: {start: 0%, end: 50%, dimensions: {x: 2}}, two: {start: 50%, end: 100%}}"
    schedule = schedule_of(phases, more=["model.dimensions=[x,y]"])
    windows = windows_of(tmp_path, "windows", schedule, dimensions=("x", "y"))
    weights = windows.__getitems__([SampleIndex(0, 0, 0, 0), SampleIndex(0, 1, 1, 29), SampleIndex(0, 2, 2, 30)])["dimensions"]
    assert weights.dtype.is_floating_point and weights.tolist() == pytest.approx(np.array([[2 / 3, 1 / 3]] * 2 + [[0.5, 0.5]]), rel=1e-6)
    assert "dimensions" not in windows_of(tmp_path, None, dimensions=("x", "y")).__getitems__([SampleIndex(0, 0, 0, 0)])
    assert "dimensions" not in windows_of(tmp_path, "windows", schedule).__getitems__([SampleIndex(0, 0, 0, 0)])
