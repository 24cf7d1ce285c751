"""Test sums and log-sum-exps over ranges and groups against Python slices, values and gradients, at many block sizes."""

import math

import pytest
import torch

from linnaeus.workloads.taxonomy.tree.ranges import argmax, range_logsumexp, range_sum
from linnaeus.workloads.taxonomy.tree.sibling_softmax import group_logsumexp, sibling_log_softmax, sibling_log_softmax_range_sums

SIZES = [1, 7, 8, 9, 100, 1000, 1025]


def case(size, by_class):
    generator = torch.Generator().manual_seed(size)
    x = 5 * torch.randn(6, size, dtype=torch.float64, generator=generator)
    x = (x.t().contiguous().t() if by_class else x).requires_grad_()
    a, b = torch.randint(0, size + 1, (2, 6, 9), generator=generator)
    first, last = torch.minimum(a, b), torch.maximum(a, b)
    first[:, 0], last[:, 0] = 0, size
    first[:, 1], last[:, 1] = size - 1, size
    return x, first, last


def slow(x, first, last, reduce):
    return torch.stack([torch.stack([reduce(row[f:t]) for f, t in zip(*pair)]) for row, *pair in zip(x, first.tolist(), last.tolist())])


def agree(found, expected, inputs, tolerance):
    """Compare values, and gradients by `inputs` of a random weighting. Values that should be -inf are left out of the gradients."""
    finite = expected > -math.inf
    weight = torch.randn_like(expected)
    grads = (torch.autograd.grad((torch.where(finite, y, 0) * weight).sum(), inputs) for y in (found, expected))
    same = [(found, expected), *zip(*grads, strict=True)]
    return all(torch.allclose(a, b, atol=tolerance) for a, b in same)


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_range_sums_and_gradients(size, by_class):
    x, first, last = case(size, by_class)
    assert agree(range_sum(x, first, last), slow(x, first, last, torch.sum), [x], 1e-10)


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_range_logsumexps_and_gradients(size, by_class):
    x, first, last = case(size, by_class)
    expected = slow(x, first, last, lambda part: part.logsumexp(0) if len(part) else part.new_tensor(-math.inf))
    assert agree(range_logsumexp(x, first, last), expected, [x], 1e-12)


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_short_ranges_read_only_their_elements(size, by_class, monkeypatch):
    monkeypatch.setattr("linnaeus.workloads.taxonomy.tree.ranges.GATHER_COST", 0)  # gather at any size
    x, first, last = case(size, by_class)
    last = torch.minimum(last, first + 5)
    expected = range_logsumexp(x, first, last)
    seen = torch.zeros(x.shape, dtype=torch.bool)
    for row, *pair in zip(seen, first.tolist(), last.tolist()):
        for f, t in zip(*pair):
            row[f:t] = True
    rest = torch.where(seen, x, math.nan)
    assert agree(range_logsumexp(rest.t().contiguous().t() if by_class else rest, first, last, 5), expected, [x], 1e-12)


def test_long_ranges_are_not_gathered(monkeypatch):
    monkeypatch.setattr("linnaeus.workloads.taxonomy.tree.ranges._ShortLogSumExp", None)
    x, first, last = case(1025, False)
    assert torch.equal(range_logsumexp(x, first, last, 1025), range_logsumexp(x, first, last))


def test_a_very_small_element_has_an_exact_gradient():
    """Computed from probabilities instead of logarithms, this gradient would be 0 or NaN."""
    x = torch.zeros(1, 400)
    x[0, 10] = -120.0
    x.requires_grad_()
    first, last = torch.tensor([[10, 0]]), torch.tensor([[11, 400]])
    own, everything = range_logsumexp(x, first, last).unbind(1)
    (own - everything).sum().backward()
    assert x.grad[0, 10] == pytest.approx(1.0, abs=1e-6) and x.grad[0, 11] == pytest.approx(-1 / 399, rel=1e-5)


@pytest.mark.parametrize("root", [False, True])
def test_logsumexps_and_softmaxes_of_groups_and_gradients(root):
    generator = torch.Generator().manual_seed(1)
    group = torch.repeat_interleave(torch.arange(30), torch.randint(1, 9, (30,), generator=generator))
    x = (20 * torch.randn(len(group), 5, dtype=torch.float64, generator=generator)).requires_grad_()
    assert agree(group_logsumexp(x, group, 30), torch.stack([x[group == g].logsumexp(0) for g in range(30)]), [x], 1e-12)
    parent = None if root else torch.randn(30, 5, dtype=torch.float64, generator=generator).requires_grad_()
    parts = [x[group == g].log_softmax(0) + (0 if parent is None else parent[g]) for g in range(30)]
    assert agree(sibling_log_softmax(x, parent, group, 30), torch.cat(parts), [x] if root else [x, parent], 1e-12)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_range_sums_of_sibling_log_softmax_and_gradients(size, root, monkeypatch):
    """Ranges cut through groups, lie within one, or are empty; chunks of the gradient end at any row."""
    monkeypatch.setattr("linnaeus.workloads.taxonomy.tree.sibling_softmax.CHUNK_BYTES", 48 * 13)
    x, first, last = case(size, True)
    generator = torch.Generator().manual_seed(2)
    group = torch.repeat_interleave(torch.arange(size), torch.randint(1, 9, (size,), generator=generator))[:size]
    groups = int(group[-1]) + 1
    starts = torch.cat([torch.bincount(group).cumsum(0).sub(torch.bincount(group)), torch.tensor([size])])
    parent = None if root else torch.randn(groups, 6, dtype=torch.float64, generator=generator).requires_grad_()
    found = sibling_log_softmax_range_sums(x.t(), parent, group, starts, first, last)
    expected = range_sum(sibling_log_softmax(x.t(), parent, group, groups).t(), first, last)
    assert agree(found, expected, [x] if root else [x, parent], 1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_argmax_returns_the_first_of_equal_elements(size):
    x = torch.randint(0, 5, (40, size), generator=torch.Generator().manual_seed(1)).float()
    first = torch.tensor([row.index(max(row)) for row in x.tolist()])
    assert torch.equal(argmax(x), first)
