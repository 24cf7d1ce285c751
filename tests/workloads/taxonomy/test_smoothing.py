"""Test smoothed targets: ranges, limits, tables linear in the classes. `test_taxonomy_losses.py` compares the losses with dense targets."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from linnaeus.workloads.taxonomy.losses.smoothed_targets import ranges_around, smoothed_losses, smoothing_target, soft_target
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.taxonomy.tree.ranges import range_sum
from tests.workloads.taxonomy import slow_losses as slow


def scores_of(log_p):
    """Return an object with the methods of `Scores` that these losses call."""
    return SimpleNamespace(range_sums=lambda rank, first, last: range_sum(log_p, first, last))


@pytest.mark.parametrize("seed", range(4))
def test_range_k_contains_the_classes_up_to_height_k(seed):
    tree, _ = slow.random_tree(seed)
    heights = set()
    for r, size in enumerate(tree.sizes):
        first, last = ranges_around(tree, r)
        for y in range(size):
            height = np.array([slow.height(tree, r, y, c) for c in range(size)])
            heights |= {(r, int(h)) for h in height}
            for k in range(r + 2):
                assert np.flatnonzero(height <= k).tolist() == list(range(first[y, k], last[y, k]))
    assert len(heights) == 2 + 3 + 4 + 5, "every height occurs at every rank, that of the virtual root included"


def test_limits():
    """With a large beta only the closest relatives or the label remain; beta 0 spreads evenly; a single class gets the whole target."""
    count = np.array([[1, 2, 0, 3], [1, 0, 0, 5], [1, 0, 0, 0]])
    assert np.allclose(smoothing_target(count, 0.1, 1e6) * count, [[0.9, 0.1, 0, 0], [0.9, 0, 0, 0.1], [1, 0, 0, 0]])
    assert np.allclose(soft_target(count, 1e6) * count, [[1, 0, 0, 0]] * 3)
    assert np.allclose(soft_target(count, 0.0)[:2], np.where(count[:2] > 0, 1 / 6, 0)) and np.allclose(soft_target(count, 0.0)[2, 0], 1)


def test_tables_are_linear_in_the_classes():
    """For 20,000 species the tables have below 100 bytes per taxon; a dense target would have 160,000."""
    species = np.arange(20_000)
    codes = np.stack([species // 4000, species // 300, species // 7, species], 1)
    tree, _ = TaxonomyTree.from_codes(slow.RANKS, [np.array([f"t{i}" for i in range(column.max() + 1)]) for column in codes.T], codes)
    losses = smoothed_losses(slow.loss_config("taxonomic_smoothing"), tree)
    assert sum(b.numel() * b.element_size() for b in losses.buffers()) < 100 * tree.offsets[-1]
    log_p = torch.log_softmax(torch.randn(4, 20_000), 1).requires_grad_()
    loss = losses[3](scores_of(log_p), torch.tensor([[0], [77], [19_999], [-1]]))
    loss.sum().backward()
    assert -log_p.grad[1].sum().item() == pytest.approx(1, abs=1e-4) and loss[3] == 0 and not log_p.grad[3].any()
    dense = -(-log_p.grad[:3].double() * log_p[:3].detach().double()).sum(1)
    assert loss[:3, 0].tolist() == pytest.approx(dense.tolist(), rel=1e-5)
