"""Test reading and replacing the output of a module: shapes, order of rows, edits, and mistakes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from linnaeus.errors import ConfigError
from linnaeus.workloads.dictionary.tapping import Tap, find_module, from_rows, to_rows


class Two(nn.Module):
    """Two layers of which the second is read."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.unused = first, nn.Identity(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) + 1


@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 4), (2, 4, 3, 5)], ids=str)
def test_an_output_becomes_rows_and_rows_an_output(shape):
    x = torch.randn(shape)
    rows = to_rows(x)
    assert rows.shape == (x.numel() // 4, 4) and torch.equal(from_rows(rows, x), x)
    if len(shape) == 4:
        assert torch.equal(rows[7], x[0, :, 1, 2]), "row 7 is the second row of the map and its third column"
        like = x.to(memory_format=torch.channels_last)
        assert torch.equal(from_rows(to_rows(like), like), x)
        assert from_rows(to_rows(like), like).is_contiguous(memory_format=torch.channels_last)


def test_channels_last_are_the_same_rows():
    x = torch.randn(2, 4, 3, 5)
    last = x.movedim(1, 3).contiguous()
    assert torch.equal(to_rows(last, "last"), to_rows(x)) and torch.equal(from_rows(to_rows(x), last, "last"), last)
    model = Two(nn.Identity())
    with Tap(model.second, lambda rows: rows * 2, "last") as tap:
        assert torch.equal(model(last), 2 * last + 1)
    assert tap.shape == (2, 4, 3, 5) and torch.equal(tap.rows, to_rows(x))


@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 4), (2, 4, 3, 5)], ids=str)
def test_a_tap_reads_and_replaces(shape):
    x, model = torch.randn(shape), Two(nn.Identity())
    with Tap(model.second) as tap:
        assert torch.equal(model(x), x + 1)
    assert torch.equal(tap.rows, to_rows(x)) and tap.shape == shape
    with Tap(model.second, lambda rows: rows * 2) as tap:
        assert torch.equal(model(x), 2 * x + 1) and torch.equal(tap.rows, to_rows(x)), "the rows are those before the edit"
    assert torch.equal(model(x), x + 1), "the edit ends with the context"
    with Tap(model.second, lambda rows: rows.double()):
        assert model(x).dtype == torch.float32


def test_the_last_of_several_calls_is_read_and_each_is_replaced():
    layer = nn.Identity()
    with Tap(layer, lambda rows: rows + 1) as tap:
        assert float(layer(layer(torch.zeros(1, 1)))) == 2
    assert float(tap.rows) == 1, "the last call, before its edit"


def test_mistakes_are_one_line():
    model = Two(nn.LSTM(4, 4))
    with pytest.raises(ConfigError, match="no module 'secnd'; the nearest ones are second"):
        find_module(model, "secnd")
    with pytest.raises(ConfigError, match="no module '';"):
        find_module(model, "")
    assert find_module(model, "first") is model.first
    with Tap(model.first), pytest.raises(ConfigError, match=r"LSTM.* returns tuple, not one tensor"):
        model(torch.zeros(2, 1, 4))
    with Tap(model.unused) as tap, pytest.raises(ConfigError, match="is not used"):
        tap.rows  # noqa: B018
    with Tap(model.second), pytest.raises(ConfigError, match=r"returns \[4\]"):
        model.second(torch.zeros(4))
