"""Selection of entries to connect, compared with slow references; masks as bits."""

import numpy as np
import pytest
import torch

from linnaeus.optim.growth_selection import initial_mask, order_stream, pack, select_new, top_entries, unpack
from linnaeus.randomness import key, uniforms, uniforms_on

CPU = torch.device("cpu")


def reference_selection(scores: list[float], taken: list[bool], count: int) -> list[bool]:
    order = sorted((i for i in range(len(scores)) if not taken[i]), key=lambda i: (-scores[i], i))
    return [i in order[:count] for i in range(len(scores))]


@pytest.mark.parametrize("stream", [0, 5, key(7), key(3, 1), 2**64 - 1])
def test_device_and_host_draw_the_same_bits(stream):
    assert np.array_equal(uniforms_on(CPU, stream, 1000).numpy(), uniforms(stream, np.arange(1000)))
    assert not np.array_equal(uniforms_on(CPU, stream, 1000).numpy(), uniforms(stream ^ 1, np.arange(1000)))


@pytest.mark.parametrize("count", [1, 7, 60, 119, 120])
def test_of_equal_scores_the_lowest_indices_are_selected(count):
    scores = torch.tensor([i * i % 7 for i in range(120)], dtype=torch.float64)  # four distinct values
    assert top_entries(scores, count).tolist() == reference_selection(scores.tolist(), [False] * 120, count)


def test_random_masks_are_nested_and_independent_of_the_cadence():
    shape, stream = torch.Size((10, 9)), order_stream(3, "blocks.0.up")
    whole = initial_mask(shape, 50, stream, CPU)
    mask = initial_mask(shape, 10, stream, CPU)
    for count in (1, 19, 20):
        more = select_new(mask, count, stream, None)
        assert int(more.sum()) == count and not (more & mask).any()
        mask = mask | more
    assert torch.equal(mask, whole)
    others = [initial_mask(shape, 50, order_stream(seed, name), CPU) for seed, name in ((4, "blocks.0.up"), (3, "blocks.1.up"))]
    assert not any(torch.equal(whole, other) for other in others)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_gradient_selects_by_the_random_order(bad):
    stream, connected = order_stream(0, "x"), torch.zeros(8, 8, dtype=torch.bool)
    gradient = torch.arange(64.0).view(8, 8)
    gradient[0, 0] = bad
    assert torch.equal(select_new(connected, 9, stream, gradient), select_new(connected, 9, stream, None))


@pytest.mark.parametrize("shape", [(1,), (8,), (3, 5), (4, 3, 7)])
def test_pack_and_unpack(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.5
    packed = pack(mask)
    assert packed.dtype == torch.uint8 and packed.numel() == -(-mask.numel() // 8)
    assert packed.tolist() == np.packbits(mask.numpy(), bitorder="little").tolist()
    assert torch.equal(unpack(packed, mask.shape), mask)
