"""Test the ring of the newest activations: fill, wrap, a batch larger than the ring, a write that ends at its end."""

from __future__ import annotations

import pytest
import torch

from linnaeus.workloads.dictionary.activation_buffer import ActivationBuffer


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(1)


def content(buffer: ActivationBuffer) -> list[float]:
    return buffer.rows.flatten().tolist()


def test_golden_values():
    buffer = ActivationBuffer(5, 1)
    buffer.add(column(0, 1, 2))
    assert (content(buffer), len(buffer), buffer.ptr) == ([0, 1, 2, 0, 0], 3, 3)
    buffer.add(column(3, 4, 5, 6))
    assert (content(buffer), len(buffer), buffer.ptr, buffer.added) == ([5, 6, 2, 3, 4], 5, 2, 7)
    assert buffer.ordered().flatten().tolist() == [2, 3, 4, 5, 6]
    assert [buffer.contains(number) for number in range(8)] == [False] * 2 + [True] * 5 + [False]


def test_a_write_that_ends_at_the_end_fills_the_ring():
    buffer = ActivationBuffer(6, 1)
    for start in (0, 3):
        buffer.add(column(start, start + 1, start + 2))
    assert (len(buffer), buffer.ptr, content(buffer)) == (6, 0, [0, 1, 2, 3, 4, 5])
    buffer.add(column(6))
    assert (len(buffer), buffer.ptr, content(buffer)) == (6, 1, [6, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("size", [1, 2, 5, 7])
@pytest.mark.parametrize("steps", [[1] * 20, [3, 3, 3], [12], [2, 12, 1], [5, 5], [0, 4, 0, 9]], ids=str)
def test_row_n_of_the_ring_is_the_newest_activation_of_that_row(size, steps):
    buffer, start = ActivationBuffer(size, 2), 0
    for step in steps:
        buffer.add(torch.arange(start, start + step, dtype=torch.float32).unsqueeze(1).expand(step, 2))
        start += step
        newest = range(max(0, start - size), start)
        assert len(buffer) == len(newest) and buffer.ptr == start % size
        assert all(buffer.rows[n % size].tolist() == [n, n] for n in newest)
        assert buffer.ordered()[:, 0].tolist() == list(newest)


def test_sequences_are_flattened_and_other_widths_refused():
    buffer = ActivationBuffer(8, 3)
    buffer.add(torch.arange(12.0).view(2, 2, 3))
    assert torch.equal(buffer.rows[:4], torch.arange(12.0).view(4, 3)) and len(buffer) == 4
    with pytest.raises(ValueError, match="the last dimension must be 3"):
        buffer.add(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="at least 1"):
        ActivationBuffer(0, 3)
