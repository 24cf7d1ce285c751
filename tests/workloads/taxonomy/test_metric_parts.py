"""Test the parts of the validation metrics: decisions, calibration, class buckets, risk and coverage, fixed point."""

import math

import numpy as np
import pytest
import torch
from linnaeus.workloads.taxonomy.metrics.counting import fixed_point_mean, to_fixed_point

from linnaeus.workloads.taxonomy.heads import linear_scores
from linnaeus.workloads.taxonomy.metrics import TaxonomyMetrics
from linnaeus.workloads.taxonomy.metrics.confidence import area_under_risk_coverage
from linnaeus.workloads.taxonomy.metrics.decisions import decide, taxon_probabilities, top_k
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests.workloads.taxonomy.metric_reference import Taxa
from tests.workloads.taxonomy.trees import KINDS, random_tree

CPU = torch.device("cpu")


def results(tree, logits, label, counts=None, groups=None):
    """Return all metrics of one batch for given logits per rank of a linear head."""
    metrics = TaxonomyMetrics(tree, CPU, counts or [np.zeros(size, dtype=np.int64) for size in tree.sizes], groups, len(label))
    batch = {"label": label, "weight": torch.ones(len(label)), "sample": torch.arange(len(label))}
    outputs = {"scores": linear_scores(tree, logits)}
    sums = metrics.sums(outputs, batch)
    metrics.count(outputs, batch)
    return metrics.compute(sums, metrics.counts)


def flat(classes):
    """Return a tree of one rank."""
    return TaxonomyTree.from_lineages(["rank"], np.array([[f"t{i:04d}"] for i in range(classes)]))[0]


# -- top k ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_k_sorts_ties_by_index(dtype):
    g = torch.Generator().manual_seed(0)
    for width, k in [(1, 5), (4, 5), (30, 5), (30, 20), (30, 30)]:
        values = torch.randint(-3, 4, (200, width), generator=g).to(dtype)
        values[::5] = torch.randn(40, width, generator=g, dtype=dtype)
        values[1::5, 0] = -math.inf
        expected = [sorted(range(width), key=lambda c, row=row: (-row[c], c))[:k] for row in values.tolist()]
        assert top_k(values, k).tolist() == expected


# -- conditional risk --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_conditional_risk_matches_the_dense_matrix(kind):
    tree, _ = random_tree(3, 5, 80, *KINDS[kind])
    tables, taxa = TreeTables(tree, CPU), Taxa(tree)
    heights = torch.tensor([[float(taxa.height(a, b)) for b in taxa.finest] for a in taxa.finest], dtype=torch.float64)
    log_p = torch.randn(50, tree.sizes[-1], generator=torch.Generator().manual_seed(1), dtype=torch.float64).mul(3).log_softmax(1)
    risk = log_p.exp() @ heights
    chosen = decide(tables, log_p, tables.paths[torch.zeros(50, dtype=torch.int64)], k=tree.sizes[-1])
    in_order = risk.gather(1, chosen.least_risk)
    assert (in_order.diff(dim=1) > -1e-12).all()
    assert risk.gather(1, chosen.least_risk[:, :1])[:, 0] == pytest.approx(risk.amin(1), abs=1e-12)
    assert (chosen.least_risk[:, 0] != chosen.most_probable[:, 0]).any(), "the class of least risk is not always the most probable"


def test_taxon_probabilities_are_one_distribution_on_the_tree():
    tree, _ = random_tree(3, 5, 80, *KINDS["both"])
    tables = TreeTables(tree, CPU)
    found = taxon_probabilities(tables, torch.randn(9, tree.sizes[-1]).mul(20).log_softmax(1))
    for node in range(tree.offsets[-2]):
        children = np.flatnonzero(tree.node_parent == node)
        if len(children):
            torch.testing.assert_close(found[:, node], found[:, children].sum(1), rtol=1e-12, atol=0)
    roots = found[:, np.flatnonzero(tree.node_parent < 0)].sum(1)
    torch.testing.assert_close(roots, torch.ones(9, dtype=torch.float64), rtol=1e-5, atol=0)


def test_small_probabilities_determine_the_order_of_risks():
    """The probabilities are 1e-12 under one genus. Added to that of the genus in float32 they would all be equal."""
    tree, _ = TaxonomyTree.from_lineages(("a", "b"), np.array([(f"a{i // 50}", f"b{i:03d}") for i in range(100)]))
    log_p = torch.full((1, 100), -28.0)
    log_p[0, 1:50] -= torch.arange(49, 0, -1) / 50
    log_p[0, 0] = 0.0
    chosen = decide(TreeTables(tree, CPU), log_p, torch.zeros(1, 2, dtype=torch.int64))
    assert chosen.least_risk[0].tolist() == [0, *range(49, 30, -1)]


# -- calibration ------------------------------------------------------------------------------------------------------------------


def test_calibration_error():
    """Confidence 0.75 with 60 % right, and 0.95 with 95 % right: errors of 0.15 and 0 in two bins of equal weight."""
    confidence = torch.tensor([0.75] * 100 + [0.95] * 100, dtype=torch.float64)
    logits = torch.stack([confidence.log(), (1 - confidence).log()], 1)
    wrong = torch.cat([torch.arange(100) >= 60, torch.arange(100) >= 95]).long().unsqueeze(1)
    found = results(flat(2), [logits], wrong)
    assert found["rank/ece"] == pytest.approx(0.5 * 0.15, abs=1e-9)
    assert results(flat(2), [logits[100:]], wrong[100:])["rank/ece"] == pytest.approx(0, abs=1e-9)
    assert results(flat(2), [3 * logits[100:]], wrong[100:])["rank/ece"] > 0.04  # over-confident


def test_a_confidence_on_a_bin_boundary_belongs_to_the_lower_bin():
    tree, label = flat(2), torch.zeros(2, 1, dtype=torch.int64)
    metrics = TaxonomyMetrics(tree, CPU, [np.zeros(2)], None, 2)
    p = torch.tensor([[0.6, 0.4], [0.6 + 1e-9, 0.4 - 1e-9]], dtype=torch.float64)
    metrics.count({"scores": linear_scores(tree, [p.log()])}, {"label": label, "weight": torch.ones(2), "sample": torch.arange(2)})
    assert metrics.counts["calibration"][0].nonzero()[:, 0].tolist() == [8, 9]


# -- class buckets -----------------------------------------------------------------------------------------------------------------------


def test_class_buckets_by_training_labels():
    """Classes have equal weights at any number of validation samples. A class without training samples is in `few`."""
    counts = np.array([500, 101, 100, 20, 19, 0])
    label = torch.tensor([0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5])
    predicted = torch.tensor([0, 0, 1, 1, 2, 0, 4, 5, 0, 0, 0])
    found = results(flat(6), [10 * torch.eye(6)[predicted]], label.unsqueeze(1), [counts])
    assert found["rank/many"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["rank/medium"] == pytest.approx((1 + 0) / 2)
    assert found["rank/few"] == pytest.approx((1 + 1 / 4) / 2)
    all_many = results(flat(6), [10 * torch.eye(6)[predicted]], label.unsqueeze(1), [np.full(6, 101)])
    assert math.isnan(all_many["rank/few"]) and all_many["rank/many"] == all_many["rank/macro_top1"]


# -- risk and coverage ----------------------------------------------------------------------------------------------------------------


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


def two_genera(sure, sides):
    """Return tree, logits and labels. The logits predict the first genus with certainty and its first species by `sure`; the labels are
    the species `sides`."""
    names = np.array([("x", "x1"), ("x", "x2"), ("y", "y1"), ("y", "y2")])
    tree, _ = TaxonomyTree.from_lineages(("genus", "species"), names)
    n = len(sides)
    logits = torch.full((n, 4), -30.0, dtype=torch.float64)
    logits[:, 0], logits[:, 1] = torch.tensor(sure, dtype=torch.float64), 0.0
    return tree, [torch.tensor([[9.0, -9.0]], dtype=torch.float64).repeat(n, 1), logits], torch.tensor([[s // 2, s] for s in sides])


def test_answers_at_a_coarser_rank_lower_the_risk():
    """The genus is always right, the species in half of the samples: no errors up to a coverage of 0.5, half of the answers beyond."""
    right_genus = results(*two_genera([0.01] * 8, [0, 1] * 4))
    assert right_genus["hierarchical_aurc"] == pytest.approx(0.5 * 0.5 / 2, abs=0.02)  # a triangle from coverage 0.5 to 1
    wrong_genus = results(*two_genera([0.01] * 8, [0, 2] * 4))  # the genus is wrong as often as the species
    assert wrong_genus["hierarchical_aurc"] > 0.2
    assert results(*two_genera([5.0] * 8, [0] * 8))["hierarchical_aurc"] == 0


# -- fixed point -------------------------------------------------------------------------------------------------------------------


def test_fixed_point_sums_are_exact_in_any_order():
    x = torch.rand(10000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = to_fixed_point(x).sum()
    assert total == sum(to_fixed_point(part).sum() for part in x.flip(0).split(7))
    assert fixed_point_mean(total, torch.tensor(10000)).item() == pytest.approx(x.mean().item(), abs=1.2e-10)
    assert to_fixed_point(torch.tensor([0.0, 1.0, math.nan])).tolist() == [0, 2**32, 0]
