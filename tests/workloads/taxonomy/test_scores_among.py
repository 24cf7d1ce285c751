"""Scores among some of the taxa, `Scores.among`: the conditional probabilities of every head, computed leaf by leaf in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linnaeus.workloads.taxonomy.heads import LinearScores, Scores
from tests.workloads.taxonomy.test_heads import CONFIGS, TREES, make, node_probabilities
from tests.workloads.taxonomy.trees import KINDS, is_path


def some_leaves(tree, share: float = 0.3, seed: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """Return a share of the leaves, bool [T], and `possible`: these and the taxa above them."""
    allowed = ~tree.has_children[:-1] & (np.random.default_rng(seed).random(tree.offsets[-1]) < share)
    possible = allowed.copy()
    for node in np.flatnonzero(allowed).tolist():
        while (node := int(tree.node_parent[node])) >= 0:
            possible[node] = True
    return allowed, torch.from_numpy(possible)


@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TREES)
@torch.no_grad()
def test_probabilities_are_those_given_an_allowed_leaf(name, kind, null):
    tree, _, head, features = make(name, kind, null)
    allowed, possible = some_leaves(tree)
    scores = head.eval()(features)
    nodes, nulls = node_probabilities(name, tree, head, scores)
    kept = {node: nodes[node] for node in np.flatnonzero(allowed).tolist()}
    kept_nulls = {node: p for node, p in nulls.items() if node < 0 or possible[node]}
    total = sum(kept.values()) + sum(kept_nulls.values())
    below = lambda node, leaf: leaf == node or (leaf > node and below(node, int(tree.node_parent[leaf])))
    found = scores.among(possible)
    for r in range(4):
        for cls in range(tree.sizes[r]):
            node = tree.offsets[r] + cls
            mass = sum(p for leaf, p in kept.items() if below(node, leaf))
            mass = mass + sum(p for leaf, p in kept_nulls.items() if leaf >= 0 and below(node, leaf))
            expected = mass / total if possible[node] else torch.zeros(len(features), dtype=torch.float64)
            assert torch.allclose(found.log_probs()[r][:, cls].exp(), expected, rtol=1e-9, atol=0)
    path = found.path()
    assert is_path(tree, path.numpy()).all()
    offsets = torch.tensor(tree.offsets[:-1])
    assert possible[(path + offsets)[path >= 0]].all() and (path >= 0).any(1).all()
    finest = torch.where(path >= 0, path + offsets, -1).amax(1)
    assert set(finest.tolist()) <= set(kept), "the path does not end at an allowed leaf"


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_independent_ranks_are_restricted_one_by_one(kind):
    tree, _, head, features = make("linear", kind)
    _, possible = some_leaves(tree)
    scores = head(features)
    for own, before, after in zip(possible.split(tree.sizes), scores.log_probs(), scores.among(possible).log_probs(), strict=True):
        kept = before.exp() * own
        assert torch.allclose(after.exp()[:, own], (kept / kept.sum(1, keepdim=True))[:, own], rtol=1e-9)
        assert not after.exp()[:, ~own].any() or not own.any()


@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_all_taxa_change_nothing(name, kind, null):
    tree, _, head, features = make(name, kind, null)
    scores = head.eval()(features)
    found = scores.among(torch.ones(tree.offsets[-1], dtype=torch.bool))
    for before, after in zip(scores.log_probs(), found.log_probs(), strict=True):
        assert torch.allclose(before, after, rtol=1e-9, atol=1e-9)
    assert torch.equal(found.path(), scores.path())


@pytest.mark.parametrize("name", TREES)
@torch.no_grad()
def test_the_most_improbable_leaf_alone_gets_all_of_the_probability(name):
    """Its probability is below the smallest float32."""
    tree, _, head, features = make(name, dtype=torch.float32, std=40.0)
    scores = head.eval()(features)
    worst = int(scores.log_probs()[-1][0].argmin())
    assert scores.log_probs()[-1][0, worst] < -150
    possible = torch.zeros(tree.offsets[-1], dtype=torch.bool)
    possible[(torch.from_numpy(tree.paths[tree.offsets[-2] + worst]) + torch.tensor(tree.offsets[:-1]))] = True
    found = scores.among(possible)
    for r, log_p in enumerate(found.log_probs()):
        assert log_p.exp().sum(1).tolist() == pytest.approx([1] * len(features))
        assert log_p.argmax(1).eq(int(tree.paths[tree.offsets[-2] + worst, r])).all()


def test_scores_of_a_plugin_without_it_are_refused():
    class Without(LinearScores):
        among = Scores.among

    tree, _, head, features = make("linear")
    with pytest.raises(ValueError, match=r"need `among`, but .*Without does not define it"):
        Without(tree, head(features).logits).among(torch.ones(tree.offsets[-1], dtype=torch.bool))


@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@pytest.mark.parametrize("name", ["linear", *(name for name in TREES if name != "hard")])
def test_the_gradient_of_a_restricted_probability_is_its_derivative(name, null):
    """Heat maps need it. The finite difference is along a random direction, in float64. Hard routing has the gradient of soft routing."""
    tree, _, head, features = make(name, "both", null)
    _, possible = some_leaves(tree)
    number = int(np.flatnonzero(possible.numpy()[tree.offsets[2] : tree.offsets[3]])[0])
    log_probability = lambda x: head.eval()(x).among(possible).log_probs()[2][0, number]
    direction = torch.randn(features.shape, generator=torch.Generator().manual_seed(0), dtype=features.dtype)
    (gradient,) = torch.autograd.grad(log_probability(features.requires_grad_()), features)
    with torch.no_grad():
        expected = (log_probability(features + 1e-5 * direction) - log_probability(features - 1e-5 * direction)) / 2e-5
    assert float((gradient * direction).sum()) == pytest.approx(float(expected), rel=1e-4, abs=1e-7)
