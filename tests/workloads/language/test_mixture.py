"""Mixtures of sources: they follow the schedule, draw without replacement within a source, and are a function of seed and position."""

import pickle

import numpy as np
import pytest

from linnaeus.config.load import compose
from linnaeus.data.sampler import PositionSampler, ValidationBatches
from linnaeus.data.samples import SampleIndex
from linnaeus.randomness import MIXTURE, hashes, key, uniforms
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.workloads.language.mixture import Mixture, assign_windows, draw_sources
from tests.workloads.language import test_text_windows
from tests.workloads.language.test_text_windows import epoch_of

WINDOWS = np.array([30, 5, 12])
NAMES = ("a", "b", "c")
FADE = "{first: {start: 0%, end: 75%, data: {a: 1}}, second: {start: 25%, end: 100%, data: {b: 3, c: 1}}}"


def constant(weights, updates):
    return np.tile(np.array(weights, float) / sum(weights), (updates, 1))


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


def test_rounding_never_draws_a_source_of_weight_0():
    """The weights before the source sum to slightly less than 1, and draws lie in the gap."""
    weights = np.array([[0.7, 0.1, 0.2, 0.0]])
    weights[0, :3] -= 1e-3  # a gap that draws hit
    found = mixed_windows(0, 0, np.repeat(weights, 10, 0), 1000, np.array([2500] * 4))
    assert found.max() < 7500 and found.min() >= 0


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


def windows_of(folder, order, schedule=None, seed=0, dimensions=()):
    return test_text_windows.windows_of(folder, PARTS, 8, order, seed, NAMES, dimensions, schedule)


def check(batch):
    """Check that targets follow inputs and that both are in the source of their window."""
    test_text_windows.check(batch)
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
    batches = [windows.__getitems__(indices) for indices in ValidationBatches(range(len(windows)), 5)]
    found = np.concatenate([batch["target"][batch["target"] >= 0].numpy() for batch in batches])
    assert sorted(found.tolist()) == sorted(set(range(sum(PARTS))) - {0, 241, 284})
    source = np.concatenate([batch["source"].numpy() for batch in batches])
    assert source.tolist() == [0] * 30 + [1] * 6 + [2] * 13


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


@pytest.mark.parametrize("phases", ["{}", FADE])
@pytest.mark.parametrize("order", ["windows", "random"])
def test_draws_do_not_depend_on_the_split(tmp_path, order, phases):
    """1 and 2 processes, 1 and 4 accumulation steps, a resume within an epoch, and pickled copies of the dataset."""

    def sequence(micro, world, seed=0, start=0):
        found = {}
        for rank in range(world):
            windows = pickle.loads(pickle.dumps(windows_of(tmp_path, order, schedule_of(phases), seed)))
            sampler = PositionSampler(47, seed, 8, micro, 6, 60, rank, world)
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
    assert one != sequence(8, 1, seed=1) and one[3, 5] != one[4, 5]
    resumed = sequence(4, 1, start=3)
    assert resumed == {place: drawn for place, drawn in one.items() if place[1] >= 24}


def test_random_windows_start_anywhere_in_their_source(tmp_path):
    """Each is named after the window that contains its start, and the last one ends with the source."""
    schedule = schedule_of("{all: {start: 0%, end: 100%, data: {b: 1, c: 2}}}", total=6000)
    windows, begins, samples = windows_of(tmp_path, "random", schedule), [], []
    for epoch in range(200):
        batch = windows.__getitems__(epoch_of(windows, epoch))
        begins += batch["input"][:, 0].tolist()
        samples += batch["sample"].tolist()
    assert set(begins) == {*range(241, 241 + 43 - 8), *range(284, 284 + 100 - 8)}
    assert samples == [30 + min((start - 241) // 8, 4) if start < 284 else 35 + min((start - 284) // 8, 11) for start in begins]
    plain = windows_of(tmp_path, "random", schedule_of())
    found = plain.source_of(plain.__getitems__(epoch_of(plain, 0))["sample"].numpy())
    assert np.bincount(found).tolist() == [30, 5, 12], "without phases in proportion to the sources, exactly"


def test_only_training_batches_have_dimension_weights(tmp_path):
    phases = "{one: {start: 0%, end: 50%, dimensions: {x: 2}}, two: {start: 50%, end: 100%}}"
    schedule = schedule_of(phases, more=["model.dimensions=[x,y]"])
    windows = windows_of(tmp_path, "windows", schedule, dimensions=("x", "y"))
    weights = windows.__getitems__([SampleIndex(0, 0, 0, 0), SampleIndex(0, 1, 1, 29), SampleIndex(0, 2, 2, 30)])["dimensions"]
    assert weights.dtype.is_floating_point and weights.tolist() == pytest.approx(np.array([[2 / 3, 1 / 3]] * 2 + [[0.5, 0.5]]), rel=1e-6)
    assert "dimensions" not in windows_of(tmp_path, None, dimensions=("x", "y")).__getitems__([SampleIndex(0, 0, 0, 0)])
    assert "dimensions" not in windows_of(tmp_path, "windows", schedule).__getitems__([SampleIndex(0, 0, 0, 0)])
