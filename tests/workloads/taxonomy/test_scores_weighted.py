"""Scores with weights of taxa, `Scores.weighted`: the normalised products of every head, computed leaf by leaf in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linnaeus.workloads.taxonomy.heads import LinearScores, Scores
from tests.workloads.taxonomy.test_heads import CONFIGS, TREES, make, node_probabilities
from tests.workloads.taxonomy.trees import KINDS, is_path


def weights_of(tree, features: torch.Tensor) -> torch.Tensor:
    """Return random log-weights, float64 [B, T], from -3 to 3."""
    return 6 * torch.rand(len(features), tree.offsets[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 3


@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TREES)
@torch.no_grad()
def test_probabilities_are_those_of_leaves_times_their_weights(name, kind, null):
    tree, _, head, features = make(name, kind, null)
    weights = weights_of(tree, features)
    scores = head.eval()(features)
    nodes, nulls = node_probabilities(name, tree, head, scores)
    leaves = {node: nodes[node] * weights[:, node].exp() for node in np.flatnonzero(~tree.has_children[:-1]).tolist()}
    nulls = {node: p * (weights[:, node].exp() if node >= 0 else 1.0) for node, p in nulls.items()}
    total = sum(leaves.values()) + sum(nulls.values())
    below = lambda node, leaf: leaf == node or (leaf > node and below(node, int(tree.node_parent[leaf])))
    found = scores.weighted(weights)
    for r in range(4):
        for cls in range(tree.sizes[r]):
            node = tree.offsets[r] + cls
            mass = sum(p for leaf, p in leaves.items() if below(node, leaf))
            mass = mass + sum(p for leaf, p in nulls.items() if leaf >= 0 and below(node, leaf))
            assert torch.allclose(found.log_probs()[r][:, cls].exp(), mass / total, rtol=1e-9, atol=0)
    assert is_path(tree, found.path().numpy()).all()


@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_independent_ranks_have_the_weights_of_their_classes(kind, null):
    tree, _, head, features = make("linear", kind, null)
    weights, scores = weights_of(tree, features), head(features)
    found = zip(weights.split(tree.sizes, 1), scores.log_probs(), scores.weighted(weights).log_probs(), strict=True)
    for own, before, after in found:
        mass = before.exp() * torch.cat([own.exp(), torch.ones_like(before[:, own.shape[1] :])], 1)
        assert torch.allclose(after.exp(), mass / mass.sum(1, keepdim=True), rtol=1e-9)


@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_weights_of_one_change_nothing(name, kind, null):
    tree, _, head, features = make(name, kind, null)
    scores = head.eval()(features)
    found = scores.weighted(torch.zeros(len(features), tree.offsets[-1]))
    for before, after in zip(scores.log_probs(), found.log_probs(), strict=True):
        assert torch.allclose(before, after, rtol=1e-9, atol=1e-9)
    assert torch.equal(found.path(), scores.path())


def test_scores_of_a_plugin_without_it_are_refused():
    class Without(LinearScores):
        weighted = Scores.weighted

    tree, _, head, features = make("linear")
    with pytest.raises(ValueError, match=r"needs `weighted`, but .*Without does not define it"):
        Without(tree, head(features).logits).weighted(weights_of(tree, features))
