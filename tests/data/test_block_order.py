"""Test the order of blocks: a permutation of each epoch, in windows of few blocks, equal for any number of processes."""

import numpy as np
import pytest

from linnaeus.data.order import Blocks, block_order, epoch_order
from linnaeus.data.sampler import PositionSampler
from linnaeus.errors import ConfigError
from linnaeus.rundir.identity import update_hash
from linnaeus.workloads.taxonomy.inputs.image_dataset import blocks_note, build_blocks
from tests import runs

SIZES = [(1000, 8, 5), (1003, 8, 5), (1, 8, 5), (7, 8, 5), (100, 1, 1), (65, 64, 2), (999, 10, 33)]


@pytest.mark.parametrize("size, records, window", SIZES)
def test_every_epoch_contains_every_sample_once(size, records, window):
    for epoch in range(3):
        assert sorted(block_order(3, epoch, size, Blocks(records, window)).tolist()) == list(range(size))


@pytest.mark.parametrize("size, records, window", SIZES)
def test_a_stretch_of_positions_reads_few_blocks(size, records, window):
    order = block_order(3, 1, size, Blocks(records, window))
    count = -(-size // records)
    for first in range(0, size, 7):
        touched = np.unique(order[first : first + records * window] // records)
        assert len(touched) <= min(count, 3 * window), "a stretch is as long as a window, which may be shorter by a block or two"
    ends = np.array([len(set((order[: i + 1] // records).tolist())) for i in range(size)])
    assert ends[: max(size // 2, 1)].max() <= count // 2 + window + 1, "other blocks are not opened before a window is used up"


def test_windows_have_equal_numbers_of_blocks_and_each_is_shuffled_as_a_whole():
    order = block_order(3, 0, 1100, Blocks(10, 50))  # 110 blocks: windows of 37, 37 and 36
    for window in np.split(order, [370, 740]):
        blocks, counts = np.unique(window // 10, return_counts=True)
        assert len(blocks) in (36, 37) and (counts == 10).all()
        neighbours = np.abs(np.diff(window)) == 1
        assert neighbours.mean() < 0.02 and (np.diff(window) > 0).mean() == pytest.approx(0.5, abs=0.1)


def test_a_sample_is_anywhere_in_its_window_and_its_block_in_any_window():
    places = np.array([np.flatnonzero(block_order(seed, 0, 400, Blocks(10, 10)) == 37)[0] for seed in range(400)])
    for counts in (np.bincount(places // 100, minlength=4), np.bincount(places % 100 // 25, minlength=4)):
        assert len(counts) == 4 and ((counts - 100.0) ** 2 / 100).sum() < 16.3, "chi-square of 3 degrees of freedom, p = 0.001"


def test_epochs_and_seeds_differ_in_blocks_and_in_samples():
    orders = [block_order(seed, epoch, 400, Blocks(10, 10)) for seed in (0, 1) for epoch in (0, 1)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (one != other).mean() > 0.9 and set(one[:100].tolist()) != set(other[:100].tolist())


def test_one_window_is_the_usual_order():
    np.testing.assert_array_equal(block_order(5, 2, 97, Blocks(8, 13)), epoch_order(5, 2, 97))


def test_golden_order():
    assert block_order(0, 0, 12, Blocks(2, 3)).tolist() == [1, 2, 8, 9, 0, 3, 7, 6, 5, 4, 11, 10]


def batches(world, micro, start=0, epoch=1):
    found: dict[int, list] = {}
    for rank in range(world):
        sampler = PositionSampler(103, 5, 16, micro, 7, 10_000, rank, world, blocks=Blocks(4, 6))
        sampler.set_epoch(epoch, start)
        for indices in sampler:
            found.setdefault(indices[0].global_step, []).extend((i.position, i.sample) for i in indices if i.real)
    return {step: sorted(pairs) for step, pairs in found.items()}


@pytest.mark.parametrize("world, micro", [(1, 16), (1, 4), (2, 2), (4, 4)])
def test_batches_are_equal_for_any_number_of_processes_and_a_resume_is_an_offset(world, micro):
    whole = batches(1, 8)
    order = block_order(5, 1, 103, Blocks(4, 6)).tolist()
    assert [sample for step in sorted(whole) for _, sample in whole[step]] == order
    assert batches(world, micro) == whole
    assert batches(world, micro, start=3) == {step: pairs for step, pairs in whole.items() if step >= 7 + 3}


def composed(*overrides):
    return runs.composed(["data=manifest", "data.path=x", "data.order=blocks", *overrides])


def test_the_blocks_of_a_configuration():
    assert build_blocks(composed()) == Blocks(64, 512) and build_blocks(composed("data.order=shuffle")) is None
    assert build_blocks(runs.composed([])) is None
    note = "order of blocks: 1,563 blocks of 64 records in 4 windows; a window is shuffled as a whole"
    assert blocks_note(Blocks(64, 512), 100_000) == note


def test_the_order_is_part_of_the_identity_of_a_run():
    def digest(**keys):
        return update_hash({"data": {"order": "blocks", "block_records": 64, "window_blocks": 512} | keys})

    assert len({digest(), digest(order="shuffle"), digest(block_records=32), digest(window_blocks=9)}) == 4


@pytest.mark.parametrize(
    "override, message",
    [
        ("data.sampling=square_root", "data.order=blocks reads every record once; data.sampling=square_root needs data.order=shuffle"),
        ("schedule.mixup_prob.end=0.5", "data.order=blocks has no pairs for schedule.mixup_prob; set its start and end to 0"),
    ],
)
def test_what_needs_other_orders_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        build_blocks(composed(override))


def test_blocks_of_different_sizes_are_kept_together():
    starts = np.array([0, 3, 4, 10, 12])
    equal, own = Blocks(4, 2), Blocks(4, 2, starts)
    order = block_order(7, 0, 20, own)
    assert sorted(order.tolist()) == list(range(20)) and order.tolist() != block_order(7, 0, 20, equal).tolist()
    block = np.searchsorted(starts, order, side="right") - 1
    first, last = np.array([np.flatnonzero(block == number)[[0, -1]] for number in range(5)]).T
    windows = [set(block[start:end]) for start, end in zip(sorted(set(first)), [*sorted(set(first))[1:], 20])]
    assert max(len(np.unique(block[a : b + 1])) for a, b in zip(first, last)) <= 2, windows
    assert block_order(7, 0, 20, Blocks(4, 2, np.arange(0, 20, 4))).tolist() == block_order(7, 0, 20, equal).tolist()
