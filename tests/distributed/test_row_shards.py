"""Test the division of parameters into rows: whole tensors from the shards and back, for any number of processes."""

from itertools import pairwise

import pytest
import torch

from linnaeus.distributed import row_shards
from linnaeus.distributed.row_shards import RowShards, row_bounds
from tests.thread_group import ThreadGroup

STATE = {"head.weight": torch.randn(11, 3), "head.bias": torch.randn(11), "few": torch.randn(2, 3), "trunk": torch.randn(4)}
ROWS = {name: len(tensor) for name, tensor in STATE.items() if name != "trunk"}


@pytest.mark.parametrize("rows, processes", [(10, 1), (10, 2), (11, 3), (2, 5), (10**6, 7)])
def test_each_row_has_one_process_and_the_processes_have_equally_many(rows, processes):
    bounds = row_bounds(rows, processes)
    assert bounds[0][0] == 0 and bounds[-1][1] == rows and all(a[1] == b[0] for a, b in pairwise(bounds))
    sizes = [last - first for first, last in bounds]
    assert min(sizes) >= 0 and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_whole_tensors_are_the_same_bits_on_any_number_of_processes(processes, monkeypatch):
    """Weights, averages and moments; the rows of a process are sent in pieces of two."""
    monkeypatch.setattr(row_shards, "PIECE_BYTES", 24)
    optimizer = {"optimizer": "adamw", "state": {n: {"step": torch.tensor(3.0), "exp_avg": t * 2} for n, t in STATE.items()}}

    def there_and_back(member):
        shards = RowShards(member, ROWS)
        own = shards.own_state(STATE)
        assert all(shards.whole_shape(name, tensor) == STATE[name].shape for name, tensor in own.items())
        state = shards.whole_optimizer_state(shards.own_optimizer_state(optimizer))["state"]
        return own, shards.whole_state(own), state

    found = ThreadGroup(processes).run(there_and_back)
    assert processes == 1 or found[0][0]["head.weight"].shape[0] < 11
    for name, tensor in STATE.items():
        assert torch.equal(found[0][1][name], tensor)
        assert torch.equal(found[0][2][name]["exp_avg"], tensor * 2) and found[0][2][name]["step"] == 3


def test_a_tensor_of_another_model_never_has_the_shape_of_a_shard():
    """5 rows in the file, 11 in the model: a process with 5 rows must not take them for its own."""
    (shapes,) = {tuple(own.shape) for own in ThreadGroup(2).run(lambda member: RowShards(member, ROWS).own("head.bias", torch.zeros(5)))}
    assert shapes == (1, 5)


def test_without_divided_parameters_nothing_is_copied():
    (same,) = ThreadGroup(1).run(lambda member: RowShards(member).whole_state(STATE))
    assert all(same[name] is tensor for name, tensor in STATE.items())
