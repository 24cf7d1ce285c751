"""Gradient surgery: the gradient of the weighted sum of losses equals surgery on the task gradients themselves."""

import sys

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.weighting import Measurements, Surgery
from linnaeus.weighting import surgery as module


def measured(rows, update=1):
    return Measurements(update, True, gramian=rows @ rows.T)


def vectors(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_the_weighted_sum_equals_the_sum_of_projected_gradients():
    """With two tasks the order has no effect: each gradient loses its component along the other (Yu et al. 2020, algorithm 1)."""
    g = vectors([1.0, 0.5, 0.0], [-2.0, 0.3, 1.0])
    projected = [g[0] - (g[0] @ g[1]) / (g[1] @ g[1]) * g[1], g[1] - (g[0] @ g[1]) / (g[0] @ g[0]) * g[0]]
    surgery = Surgery(torch.ones(2, dtype=torch.float64), "pcgrad", seed=0)
    surgery.finish(measured(g))
    combined, expected = surgery.weights @ g, projected[0] + projected[1]
    torch.testing.assert_close(combined / combined.norm(), expected / expected.norm())
    assert (g @ combined >= -1e-12).all() and (g @ g.sum(0)).min() < 0, "no task gets worse; with equal weights one would"
    assert surgery.weights.sum().item() == pytest.approx(2.0)


def test_configured_weights_scale_the_gradients_before_surgery():
    g = vectors([1.0, 0.5], [-2.0, 0.3])
    weighted, scaled = Surgery(torch.tensor([0.5, 1.5]).double(), "pcgrad", 0), Surgery(torch.ones(2).double(), "pcgrad", 0)
    weighted.finish(measured(g))
    scaled.finish(measured(g * torch.tensor([[0.5], [1.5]])))
    a, b = weighted.weights @ g, scaled.weights @ (g * torch.tensor([[0.5], [1.5]]))
    torch.testing.assert_close(a / a.norm(), b / b.norm())


def test_without_conflict_or_gradient_the_configured_weights_are_used():
    surgery = Surgery(torch.tensor([0.5, 1.5, 1.0]).double(), "pcgrad", 0)
    surgery.finish(measured(vectors([-1.0, 0.5], [2.0, 0.3], [1.0, 1.0])))
    assert surgery.weights.tolist() != [0.5, 1.5, 1.0]
    for rows in (vectors([1.0, 0.5], [2.0, 0.3], [1.0, 1.0]), vectors([1.0, 0.5], [0.0, 0.0], [1.0, 1.0])):
        surgery.finish(measured(rows))
        assert surgery.weights.tolist() == pytest.approx([0.5, 1.5, 1.0])
    surgery.finish(measured(vectors([1.0, 0.5], [torch.nan, 0.0], [-1.0, 1.0])))
    assert surgery.weights[1] == 1.5 and surgery.weights.isfinite().all()


def test_orders_depend_on_the_number_of_the_update_and_restore_the_generator():
    g = vectors([1.0, 0.2, 0.0], [-1.0, 1.0, 0.3], [-0.5, -2.0, 1.0], [0.3, -0.4, -1.0])
    found = {}
    for update in (*range(1, 40), *range(39, 0, -1)):
        surgery = Surgery(torch.ones(4).double(), "pcgrad", seed=5)
        torch.manual_seed(update)
        expected = torch.rand(3)
        torch.manual_seed(update)
        surgery.finish(measured(g, update))
        assert torch.equal(torch.rand(3), expected)
        assert torch.equal(found.setdefault(update, surgery.weights), surgery.weights)
    assert len({str(weights.tolist()) for weights in found.values()}) > 1, "the order has an effect here"


def test_a_missing_library_raises_one_line_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(ConfigError) as error:
        Surgery(torch.ones(2), "pcgrad", 0)
    assert "pip install 'linnaeus[surgery]'" in str(error.value) and "\n" not in str(error.value)


def test_the_library_has_every_method():
    for method in module.METHODS:
        try:
            found = module.library_weighting(method)
        except ConfigError as error:
            assert "quadprog" in str(error) or "qpsolvers" in str(error)
            continue
        g = vectors([1.0, 0.5, 0.0], [-2.0, 0.3, 1.0])
        assert (g @ (found(g @ g.T) @ g)).min() > -1e-3
