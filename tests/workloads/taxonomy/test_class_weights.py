"""Test the counts of training labels, class weights, and the priors of logit adjustment."""

import numpy as np
import pytest
import torch

from linnaeus.config import compose
from linnaeus.workloads.taxonomy.heads import LinearScores
from linnaeus.workloads.taxonomy.inputs.masking import NullPolicy
from linnaeus.workloads.taxonomy.losses import LabelCounts, TaxonomyLoss, class_weights
from tests.workloads.taxonomy import slow_losses as slow


def long_tail(seed, classes=12):
    rng = np.random.default_rng(seed)
    counts = (rng.pareto(0.7, classes) * 3).astype(np.int64)
    counts[rng.integers(classes)] = 0
    return counts


@pytest.mark.parametrize("cap", [None, 1.2, 4.0])
@pytest.mark.parametrize("kind, beta", [("inverse", None), ("effective", 0.9), ("none", None)])
@pytest.mark.parametrize("seed", range(5))
def test_class_weights_have_mean_1_and_stay_below_the_cap(kind, beta, cap, seed):
    counts = long_tail(seed)
    found = class_weights(counts, kind, beta, cap)
    config = slow.loss_config("cross_entropy", class_weights=kind, effective_beta=beta, class_weight_cap=cap)
    seen = counts > 0
    assert found[seen].tolist() == pytest.approx(np.array(slow.slow_weights(config, counts.tolist()))[seen].tolist(), rel=1e-9)
    assert (counts * found).sum() / counts.sum() == pytest.approx(1, rel=1e-12)
    assert cap is None or found.max() <= cap
    assert (np.diff(found[np.argsort(counts)]) <= 1e-12).all(), "a rarer class never has a smaller weight"


@pytest.mark.parametrize("counts", [[0, 0], [5], [5, 0], [0]])
def test_classes_without_rows(counts):
    for kind, beta in (("inverse", None), ("effective", 0.9)):
        for cap in (None, 2.0):
            found = class_weights(np.array(counts), kind, beta, cap)
            assert np.isfinite(found).all() and (found > 0).all() and (found[np.array(counts) > 0] == pytest.approx(1))


def small_tree():
    """Return a tree of three classes with 1, 2 and 4 rows and one row without a label, the labels, and their counts."""
    tree, labels = slow.TaxonomyTree.from_lineages(("species",), np.array([["a"], *[["b"]] * 2, *[["c"]] * 4, [""]]))
    return tree, labels, LabelCounts.from_labels(tree, labels)


@pytest.mark.parametrize("head, null_rows", [("conditional", 10), ("linear", 980)])
def test_null_labels_that_cannot_be_learnt_are_not_counted(head, null_rows):
    """On a tree, null labels below a taxon without children cannot be learnt. There are 10 rows of each species, 10 of a genus only, and
    970 of an order without children."""
    rows = [("o", "g", "s1")] * 10 + [("o", "g", "s2")] * 10 + [("o", "g", "")] * 10 + [("p", "", "")] * 970
    tree, labels = slow.TaxonomyTree.from_lineages(("order", "genus", "species"), np.array(rows))
    policy = NullPolicy.from_config(compose([f"head={head}", "head.nulls=predict"]), tree)
    assert policy is not None
    counts = LabelCounts.from_labels(tree, labels, learnable=policy.learnable(labels))
    assert counts.ranks[2].tolist() == [10, 10, null_rows] and int(counts.finest.sum()) == len(rows)
    loss = TaxonomyLoss(slow.loss_config("cross_entropy", class_weights="inverse"), tree, counts, nulls=True)
    converted = policy.apply(np.zeros(1000, np.int64), np.arange(1000), labels, np.zeros(1000), np.ones(1000, bool))
    batch = {"label": torch.from_numpy(converted), "weight": torch.ones(1000)}
    assert float(loss.valid_counts(batch)[2]) == pytest.approx(20 + null_rows), "the mean weight of the counted labels is 1"


def test_counts_and_priors_match_the_slow_reference():
    tree, labels = slow.random_tree(2)
    counts, priors = LabelCounts.from_labels(tree, labels), slow.slow_priors(tree, labels)
    found = counts.priors(torch.float64)
    assert all(torch.allclose(a, b, rtol=1e-14) for a, b in zip(found.ranks, priors.ranks, strict=True))
    assert torch.allclose(found.null, priors.null, rtol=1e-14)
    assert int(counts.finest.sum()) == len(labels) == int(counts.ranks[0].sum())


def test_a_row_weight_equals_copies_of_the_row():
    """Fractional weights work, also for a class whose total is below 1."""
    tree, labels = slow.random_tree(2)
    times = np.random.default_rng(0).integers(0, 4, len(labels))
    counts, copies = (
        LabelCounts.from_labels(tree, labels, times.astype(float)),
        LabelCounts.from_labels(tree, np.repeat(labels, times, axis=0)),
    )
    for a, b in zip((*counts.ranks, counts.finest), (*copies.ranks, copies.finest), strict=True):
        np.testing.assert_array_equal(a, b)
    found, expected = counts.priors(torch.float64), copies.priors(torch.float64)
    assert all(torch.equal(a, b) for a, b in zip((*found.ranks, found.null), (*expected.ranks, expected.null), strict=True))
    tree, labels, _ = small_tree()
    even = LabelCounts.from_labels(tree, labels, np.array([0.5, 0.25, 0.25, 0.125, 0.125, 0.125, 0.125, 1.0]))
    assert even.priors(torch.float64).ranks[0][:3].tolist() == pytest.approx([np.log(0.5 / 2.5)] * 3)
    assert class_weights(even.ranks[0][:3], "inverse", None, None) == pytest.approx([1.0] * 3)


def test_logit_adjustment_moves_the_optimum_to_balanced_scores():
    """Without adjustment the gradient is zero at scores equal to the log shares of the classes, with adjustment at equal scores."""
    tree, labels, counts = small_tree()
    rows = labels[labels[:, 0] >= 0]
    batch = {"label": torch.from_numpy(rows), "weight": torch.ones(7)}
    shares = torch.log(torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64) / 7)

    def gradient(tau, z):
        z = z.clone().requires_grad_()
        loss = TaxonomyLoss(slow.loss_config("cross_entropy", logit_adjustment=tau), tree, counts, dtype=torch.float64)
        loss.sums({"scores": LinearScores(tree, [z.expand(7, -1)])}, batch).sum().backward()
        return z.grad.abs().max().item()

    assert gradient(0.0, shares) < 1e-12 and gradient(1.0, torch.zeros_like(shares)) < 1e-12
    assert gradient(1.0, shares) > 0.1 and gradient(0.0, torch.zeros_like(shares)) > 0.1, "negative control"
