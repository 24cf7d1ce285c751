"""Test the order of an epoch and its micro-batches: equal for any number of processes and accumulation steps."""

import numpy as np
import pytest

from linnaeus.data.loader import DevicePrefetcher, InProcessLoader
from linnaeus.data.order import epoch_order
from linnaeus.data.sampler import PositionSampler, ValidationBatches, validation_part


def sampler(size=103, rank=0, world=1, micro=4, batch=16, total=10_000, last="keep", groups=None, resampling=None):
    steps = -(-size // batch) if last == "keep" else size // batch
    return PositionSampler(size, 5, batch, micro, steps, total, rank, world, lambda epoch: groups, resampling)


def global_batches(world, micro, epoch=1, start=0, **kwargs):
    """Return the (position, sample) pairs of each global batch, from all processes, by step."""
    batches: dict[int, list] = {}
    for rank in range(world):
        s = sampler(rank=rank, world=world, micro=micro, **kwargs)
        s.set_epoch(epoch, start)
        for indices in s:
            batches.setdefault(indices[0].global_step, []).extend((i.position, i.sample) for i in indices if i.real)
    return {step: sorted(pairs) for step, pairs in batches.items()}


@pytest.mark.parametrize("world, micro", [(1, 16), (1, 4), (2, 8), (2, 2), (4, 4), (8, 2)])
def test_global_batches_do_not_depend_on_the_split(world, micro):
    assert global_batches(world, micro) == global_batches(1, 8)


def test_an_epoch_contains_every_sample_once_and_orders_differ():
    samples = [[s for pairs in global_batches(2, 4, epoch=e).values() for _, s in pairs] for e in (0, 1)]
    assert sorted(samples[0]) == sorted(samples[1]) == list(range(103))
    assert samples[0] != samples[1]


def test_resume_is_a_start_offset():
    whole = global_batches(2, 4)
    rest = global_batches(2, 4, start=3)
    assert rest == {step: pairs for step, pairs in whole.items() if step >= 7 + 3}


def test_processes_run_the_same_number_of_micro_batches_and_placeholders_are_marked():
    runs = []
    for rank in range(4):
        s = sampler(size=33, rank=rank, world=4, micro=2, batch=16)
        s.set_epoch(0)
        runs.append([[i.real for i in indices] for indices in s])
    assert {len(r) for r in runs} == {3 * 2}
    assert sum(sum(map(sum, r)) for r in runs) == 33
    assert all(len(micro) == 2 for r in runs for micro in r if not micro[0])


def test_drop_omits_other_samples_in_each_epoch():
    omitted = []
    for epoch in range(3):
        seen = {s for pairs in global_batches(1, 16, epoch=epoch, last="drop").values() for _, s in pairs}
        assert len(seen) == 96
        omitted.append(frozenset(range(103)) - seen)
    assert len(set(omitted)) == 3


def test_a_run_that_ends_mid_epoch_stops_there():
    s = sampler(total=10)
    s.set_epoch(1)
    assert list(s.steps()) == [0, 1, 2]


def test_slots_contain_as_many_pairs_of_one_group_as_possible():
    groups = np.array([0] * 7 + [1] * 4 + [2] * 1 + [-1] * 5)
    for epoch in range(4):
        order = epoch_order(3, epoch, len(groups), groups)
        assert sorted(order.tolist()) == list(range(17))
        slots = groups[order[:16]].reshape(-1, 2)
        same = (slots[:, 0] == slots[:, 1]) & (slots[:, 0] >= 0)
        assert same.sum() == 7 // 2 + 4 // 2
    assert (epoch_order(3, 0, 17, groups) != epoch_order(3, 1, 17, groups)).any()


def test_golden_order():
    assert epoch_order(0, 0, 12).tolist() == GOLDEN


GOLDEN = [1, 7, 2, 6, 5, 4, 11, 8, 9, 0, 10, 3]


def test_whole_validation_batches_are_assigned_to_processes():
    assigned = [ValidationBatches(range(13), 4, r, 3) for r in range(3)]
    assert [[i.sample for i in b] for b in assigned[0]] == [[0, 1, 2, 3], [12]]
    assert assigned[2][0][0].sample == 8
    flat = sorted(i.sample for rank in assigned for b in rank for i in b)
    assert flat == list(range(13))
    assert list(ValidationBatches(range(3), 4, 2, 3)) == []


def test_a_part_of_the_validation_samples_is_spread_and_always_the_same():
    part = validation_part(1000, 50)
    assert part == validation_part(1000, 50) == sorted(set(part)) and len(part) == 50
    assert 15 < sum(sample < 500 for sample in part) < 35, "not the first ones"
    assert part[:6] == GOLDEN_PART, "the same on every machine"
    assert list(validation_part(10, None)) == list(validation_part(10, 10)) == list(range(10))
    (batch, *_) = ValidationBatches(part, 4)
    assert [index.sample for index in batch] == part[:4] and [index.position for index in batch] == [0, 1, 2, 3]


GOLDEN_PART = [13, 60, 88, 123, 124, 125]


def test_the_prefetcher_measures_the_waiting_time_and_keeps_the_order():
    import torch

    class Rows:
        fingerprint = ""

        def __len__(self):
            return 4

        def groups(self, level):
            return None

        def resampling(self):
            return None

        def __getitems__(self, indices):
            return {"x": torch.tensor([i.sample for i in indices])}

    prefetcher = DevicePrefetcher(InProcessLoader(Rows(), ValidationBatches(range(4), 2)), torch.device("cpu"))
    assert [host["x"].tolist() for host, _ in prefetcher] == [[0, 1], [2, 3]]
    assert prefetcher.waited > 0
