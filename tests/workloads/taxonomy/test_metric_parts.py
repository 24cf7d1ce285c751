"""Test parts of the validation metrics that a comparison with the reference does not reach: ties, bin bounds, rounding."""

import math

import numpy as np
import pytest
import torch

from linnaeus.workloads.taxonomy.heads import LinearScores
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics
from linnaeus.workloads.taxonomy.metrics.batch_view import decide, top_k
from linnaeus.workloads.taxonomy.metrics.sample_record import area_under_risk_coverage
from linnaeus.workloads.taxonomy.metrics.training_metrics import to_fixed_point
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_k_sorts_ties_by_index(dtype):
    g = torch.Generator().manual_seed(0)
    for width, k in [(1, 5), (4, 5), (30, 5), (30, 20), (30, 30)]:
        values = torch.randint(-3, 4, (200, width), generator=g).to(dtype)
        values[::5] = torch.randn(40, width, generator=g, dtype=dtype)
        values[1::5, 0] = -math.inf
        expected = [sorted(range(width), key=lambda c, row=row: (-row[c], c))[:k] for row in values.tolist()]
        assert top_k(values, k).tolist() == expected


def test_small_probabilities_determine_the_order_of_risks():
    """The probabilities are 1e-12 under one genus. Added to that of the genus in float32 they would all be equal."""
    tree, _ = TaxonomyTree.from_lineages(("a", "b"), np.array([(f"a{i // 50}", f"b{i:03d}") for i in range(100)]))
    log_p = torch.full((1, 100), -28.0)
    log_p[0, 1:50] -= torch.arange(49, 0, -1) / 50
    log_p[0, 0] = 0.0
    chosen = decide(TreeTables(tree, CPU), log_p, torch.zeros(1, 2, dtype=torch.int64))
    assert chosen.least_risk[0].tolist() == [0, *range(49, 30, -1)]


def test_a_confidence_on_a_bin_boundary_belongs_to_the_lower_bin():
    tree, label = TaxonomyTree.from_lineages(["rank"], np.array([["a"], ["b"]]))[0], torch.zeros(2, 1, dtype=torch.int64)
    metrics = TaxonomyMetrics(tree, CPU, [np.zeros(2)], None, 2)
    p = torch.tensor([[0.6, 0.4], [0.6 + 1e-9, 0.4 - 1e-9]], dtype=torch.float64)
    metrics.count({"scores": LinearScores(tree, [p.log()])}, {"label": label, "weight": torch.ones(2), "sample": torch.arange(2)})
    assert metrics.counts["calibration"][0].nonzero()[:, 0].tolist() == [8, 9]


def test_risk_coverage_of_the_best_the_worst_and_random_orders():
    wrong = np.array([False] * 6 + [True] * 4)
    best = area_under_risk_coverage(wrong, np.arange(10, 0, -1))
    assert best == pytest.approx(sum(k / (6 + k) for k in range(1, 5)) / 10)
    worst = area_under_risk_coverage(wrong, np.arange(10))
    assert worst == pytest.approx((4 + sum(4 / n for n in range(5, 11))) / 10)
    assert area_under_risk_coverage(wrong, np.ones(10)) == pytest.approx(0.4)
    shuffled = [area_under_risk_coverage(wrong[order], np.arange(10)) for order in map(np.random.default_rng(0).permutation, [10] * 4000)]
    assert np.mean(shuffled) == pytest.approx(0.4, abs=0.01)
    assert math.isnan(area_under_risk_coverage(wrong[:0], np.ones(0)))


def test_fixed_point_sums_are_exact_in_any_order():
    x = torch.rand(10000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = to_fixed_point(x).sum()
    assert total == sum(to_fixed_point(part).sum() for part in x.flip(0).split(7))
    assert total.item() / 2**32 == pytest.approx(x.sum().item(), abs=1.2e-6)
    assert to_fixed_point(torch.tensor([0.0, 1.0, math.nan])).tolist() == [0, 2**32, 0]
