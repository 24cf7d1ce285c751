"""Sums in the tree of `trainer.deterministic=anywhere`: the same bits on any possible number of processes; the order of places matters."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from linnaeus.distributed.summation_tree import BlockwiseSum, PairwiseSum, SumOrder, tree_partners
from linnaeus.distributed.tree_reduction import TreeReduction, make_buckets
from linnaeus.errors import ConfigError
from linnaeus.schedule import accumulation_steps
from linnaeus.schedule.length import possible_processes, tree_block
from tests import runs
from tests.vectors.workload import MLP


def summed(values: list[torch.Tensor], processes: int) -> list[torch.Tensor]:
    """Return the sum of the values of all micro-batches as each process computes it."""
    block, share = tree_block(len(values)), len(values) // processes
    order = SumOrder(block, lambda tensor: tensor, anywhere=True)
    sums = [order.sum(values[rank * share : (rank + 1) * share]) for rank in range(processes)]
    partners = [tree_partners(SimpleNamespace(rank=rank, world_size=processes)) for rank in range(processes)]  # type: ignore[arg-type]
    for round_ in range(len(partners[0])):
        sums = [own + sums[partners[rank][round_]] for rank, own in enumerate(sums)]
    return sums


def values_of(number: int, seed: int) -> list[torch.Tensor]:
    return list(torch.randn(number, 50, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("number", (1, 2, 3, 4, 6, 7, 8, 12, 16, 20, 24, 32, 96))
def test_every_possible_number_of_processes_gives_the_same_bits(number):
    values, draw = values_of(number, number), random.Random(number)
    whole = summed(values, 1)[0]
    assert torch.allclose(whole, torch.stack(values).double().sum(0).float(), atol=1e-4)
    possible = possible_processes(number)
    assert possible == [w for w in (1, 2, 4, 8, 16, 32, 64) if number % w == 0]
    for processes in possible:
        for found in summed(values, processes):
            assert torch.equal(found, whole)
    if number > 2:  # negative controls: the order of the places, and an ordinary sum
        shuffled = draw.sample(values, number)
        assert not torch.equal(summed(shuffled, 1)[0], whole)
    if number > 3 and number % 2 == 0:
        own = [BlockwiseSum(number // 2) for _ in range(2)]
        for place, value in enumerate(values):
            own[place % 2].add(value)
        assert not torch.equal(own[0].total() + own[1].total(), whole), "micro-batches dealt out in turn"


def test_the_stack_holds_one_value_for_each_level_and_the_last_value_may_come_in_parts():
    values = [[value, value[:7]] for value in values_of(8, 0)]
    whole, parts, most = PairwiseSum(), PairwiseSum(), 0
    for value in values[:-1]:
        whole.push([tensor.clone() for tensor in value])
        parts.push([tensor.clone() for tensor in value])
        most = max(most, len(whole._subtrees))
    assert most == 3
    last = values[-1]
    second, first = parts.part_of_total([1], [last[1].clone()]), parts.part_of_total([0], [last[0].clone()])
    whole.push([tensor.clone() for tensor in last])
    for found, expected in zip([*first, *second], whole.total(), strict=True):
        assert torch.equal(found, expected)


def test_gradients_of_one_process_are_summed_in_the_order_of_the_tree():
    """Six micro-batches: blocks of three, added from left to right, and then the sum of the two blocks."""
    model = torch.nn.Linear(3, 64, bias=False)  # 192 sums: hardly all equal in both orders
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
    inputs = values_of(6, 1)
    reduction = TreeReduction(model, SimpleNamespace(rank=0, world_size=1), 3, 6)  # type: ignore[arg-type]
    assert reduction.copies == 1
    grads = []
    for _ in range(2):  # the second update does not contain the gradients of the first
        for number, x in enumerate(inputs):
            with reduction.micro_batch(last=number == 5):
                model(x[:3].reshape(1, 3)).square().sum().backward()
        reduction.finish()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
        model.zero_grad(set_to_none=True)
    single = [torch.autograd.grad(model(x[:3].reshape(1, 3)).square().sum(), model.weight)[0] for x in inputs]
    expected = (single[0] + single[1] + single[2]) + (single[3] + single[4] + single[5])
    for weight, unused in grads:
        assert torch.equal(weight, expected) and not torch.equal(weight, sum(single[1:], single[0]))
        assert torch.equal(unused, torch.zeros(2)), "no process may decide alone that a parameter has no gradient"


def test_gradients_in_a_bucket_have_the_strides_of_their_parameters_and_their_own_cache_lines():
    image = torch.nn.Parameter(torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last))
    plain, wide = torch.nn.Parameter(torch.randn(7)), torch.nn.Parameter(torch.randn(3).double())
    buckets = make_buckets([image, plain, wide])
    assert [bucket.indices for bucket in buckets] == [[2], [1, 0]]
    views = buckets[1].views
    assert [view.stride() for view in views] == [plain.stride(), image.stride()]
    assert [view.storage_offset() for view in views] == [0, 16]


def test_splits_that_the_tree_does_not_allow_are_refused_in_one_line():
    anywhere = ["trainer.deterministic=anywhere", "trainer.global_batch_size=48", "trainer.micro_batch_size=4"]
    config = runs.configuration("vectors", runs.ROOT / "outputs", *anywhere)
    assert [accumulation_steps(config, processes) for processes in (1, 2, 4)] == [12, 6, 3]
    with pytest.raises(ConfigError, match=r"^trainer.deterministic=anywhere: 3 processes cannot share the 12 .*; use 1, 2 or 4$"):
        accumulation_steps(config, 3)
    config = runs.configuration("vectors", runs.ROOT / "outputs", *anywhere, "trainer.micro_batch_size=null")
    with pytest.raises(ConfigError, match=r"needs trainer.micro_batch_size, .* with trainer.micro_batch_size=6 .* 1, 2, 4 or 8$"):
        accumulation_steps(config, 1)


REFUSED = {
    "batch statistics": ("vectors", ["model.batch_norm=true"], "1 layer with batch statistics, such as trunk.1: freeze them"),
    "surgery": ("vectors", ["weighting=surgery"], "weighting=surgery needs one micro-batch per process"),
    "floats of a model": ("vectors", ["model.hidden=7"], "MLP adds floats over the forward passes of a process"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_have_the_same_bits_is_refused_in_one_line(tmp_path, name, monkeypatch):
    workload, settings, reason = REFUSED[name]
    monkeypatch.setattr(MLP, "exact_counts", "hidden" not in settings[0])
    with pytest.raises(ConfigError, match=f"^trainer.deterministic=anywhere: .*{reason}.*, or use trainer.deterministic=true$"):
        runs.start(runs.configuration(workload, tmp_path, "trainer.deterministic=anywhere", *settings))
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("text, value", [("true", True), ("false", False), ("anywhere", "anywhere"), ("'true'", True)])
def test_the_key_takes_a_bool_or_the_word(tmp_path, text, value):
    assert runs.configuration("vectors", tmp_path, f"trainer.deterministic={text}").trainer.deterministic == value


@pytest.mark.parametrize("text", ("somewhere", "1", "null"))
def test_other_values_are_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"^trainer.deterministic is .*; it must be one of false, true, anywhere$"):
        runs.configuration("vectors", tmp_path, f"trainer.deterministic={text}")
