"""Scores made from scores of every head: among some of the taxa, with weights of taxa (both compared with products computed leaf by leaf in
float64), and of several samples together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.heads import LinearScores, Scores
from tests.workloads.taxonomy.test_heads import CONFIGS, TREES, children_of, every, make, node_probabilities
from tests.workloads.taxonomy.trees import KINDS, is_path


def some_leaves(tree, share: float = 0.3, seed: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """Return a share of the leaves, bool [T], and `possible`: these and the taxa above them."""
    allowed = ~tree.has_children[:-1] & (np.random.default_rng(seed).random(tree.offsets[-1]) < share)
    possible = allowed.copy()
    for node in np.flatnonzero(allowed).tolist():
        while (node := int(tree.node_parent[node])) >= 0:
            possible[node] = True
    return allowed, torch.from_numpy(possible)


def weights_of(tree, features: torch.Tensor) -> torch.Tensor:
    """Return random log-weights, float64 [B, T], from -3 to 3."""
    return 6 * torch.rand(len(features), tree.offsets[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 3


def check_probabilities(tree, found, leaves, nulls) -> None:
    """Check the probability of each taxon. Shares [B]: `leaves` of nodes, `nulls` of null nodes by the taxon above (-1: none)."""
    total = sum(leaves.values()) + sum(nulls.values())
    below = lambda node, leaf: leaf == node or (leaf > node and below(node, int(tree.node_parent[leaf])))
    for r in range(4):
        for cls in range(tree.sizes[r]):
            node = tree.offsets[r] + cls
            mass = sum(p for leaf, p in leaves.items() if below(node, leaf))
            mass = mass + sum(p for leaf, p in nulls.items() if leaf >= 0 and below(node, leaf))
            assert torch.allclose(found.log_probs()[r][:, cls].exp(), mass / total, rtol=1e-9, atol=0)
    assert is_path(tree, found.path().numpy()).all()


@every(TREES)
@torch.no_grad()
def test_probabilities_are_those_given_an_allowed_leaf(name, kind, null):
    tree, _, head, features = make(name, kind, null)
    allowed, possible = some_leaves(tree)
    scores = head.eval()(features)
    nodes, nulls = node_probabilities(name, tree, head, scores)
    kept = {node: nodes[node] for node in np.flatnonzero(allowed).tolist()}
    found = scores.among(possible)
    check_probabilities(tree, found, kept, {node: p for node, p in nulls.items() if node < 0 or possible[node]})
    path = found.path()
    offsets = torch.tensor(tree.offsets[:-1])
    assert possible[(path + offsets)[path >= 0]].all() and (path >= 0).any(1).all()
    finest = torch.where(path >= 0, path + offsets, -1).amax(1)
    assert set(finest.tolist()) <= set(kept), "the path does not end at an allowed leaf"


@every(TREES)
@torch.no_grad()
def test_probabilities_are_those_of_leaves_times_their_weights(name, kind, null):
    tree, _, head, features = make(name, kind, null)
    weights = weights_of(tree, features)
    scores = head.eval()(features)
    nodes, nulls = node_probabilities(name, tree, head, scores)
    leaves = {node: nodes[node] * weights[:, node].exp() for node in np.flatnonzero(~tree.has_children[:-1]).tolist()}
    nulls = {node: p * (weights[:, node].exp() if node >= 0 else 1.0) for node, p in nulls.items()}
    check_probabilities(tree, scores.weighted(weights), leaves, nulls)


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
@torch.no_grad()
def test_independent_ranks_have_the_weights_of_their_classes(kind, null):
    tree, _, head, features = make("linear", kind, null)
    weights, scores = weights_of(tree, features), head(features)
    found = zip(weights.split(tree.sizes, 1), scores.log_probs(), scores.weighted(weights).log_probs(), strict=True)
    for own, before, after in found:
        mass = before.exp() * torch.cat([own.exp(), torch.ones_like(before[:, own.shape[1] :])], 1)
        assert torch.allclose(after.exp(), mass / mass.sum(1, keepdim=True), rtol=1e-9)


@every(CONFIGS)
@torch.no_grad()
def test_all_taxa_and_weights_of_one_change_nothing(name, kind, null):
    tree, _, head, features = make(name, kind, null)
    scores = head.eval()(features)
    for found in (
        scores.among(torch.ones(tree.offsets[-1], dtype=torch.bool)),
        scores.weighted(torch.zeros(len(features), tree.offsets[-1])),
    ):
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


REFUSED = {
    "among": ([torch.ones(1, dtype=torch.bool)], "some of the taxa need `among`, but .*Without does not define it"),
    "weighted": ([torch.zeros(1, 1)], "a prior over place and season needs `weighted`, but .*Without does not define it"),
    "raised": ([torch.ones(1)], "the product of several photographs needs `raised`, but .*Without does not define it"),
    "product": ([[], torch.zeros(1, dtype=torch.int64), 1], "one answer for several photographs needs `product`, but .*Without does not"),
}


@pytest.mark.parametrize("method", REFUSED)
def test_scores_of_a_plugin_without_it_are_refused(method):
    without = type("Without", (LinearScores,), {method: getattr(Scores, method)})
    arguments, message = REFUSED[method]
    with pytest.raises(ConfigError, match=message):
        getattr(without(None, [torch.zeros(1, 2)]), method)(*arguments)


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


@every(CONFIGS)
@torch.no_grad()
def test_the_product(name, kind, null):
    tree, _, head, features = make(name, kind, null)
    head, count = head.eval(), len(features)
    alone = head(features)
    own = torch.arange(count)
    for part, expected in zip(head(features).product([], own, count).log_probs(), alone.log_probs(), strict=True):
        assert torch.allclose(part, expected, rtol=1e-9, atol=1e-9)  # groups of one are the samples
    half = count // 2
    batches = [head(features[:half]), head(features[half:])]
    together = batches[0].product(batches[1:], own // 2, (count + 1) // 2)
    assert is_path(tree, together.path().numpy()).all() or not together.consistent
    first, second = own[: count - half] // 2, own[:half] // 4  # groups of the samples of the second batch and of the first
    part, sizes = batches[1].product([], first, int(first.max()) + 1), torch.bincount(first)
    added = part.product([batches[0]], torch.cat([own[: len(sizes)], second]), len(sizes), torch.cat([sizes, torch.ones(half)]))
    both = batches[1].product([batches[0]], torch.cat([first, second]), len(sizes))
    for sums, expected in zip(added.log_probs(), both.log_probs(), strict=True):
        assert torch.allclose(sums, expected, rtol=1e-9, atol=1e-9)  # a group is the same if it is added in parts
    once_more = head(features.repeat_interleave(2, 0)).product([], own.repeat_interleave(2), count)
    for r, (part, expected) in enumerate(zip(once_more.log_probs(), alone.log_probs(), strict=True)):
        assert torch.allclose(part, expected, rtol=1e-9, atol=1e-9)  # copies add no evidence
        found = together.log_probs()[r]
        if name == "linear":
            mean = torch.stack([expected[i : i + 2].mean(0) for i in range(0, count, 2)])
            assert torch.allclose(found, mean.log_softmax(1), rtol=1e-9, atol=1e-9)
        elif r:  # a parent has the sum of its children
            above = together.log_probs()[r - 1].exp().sum(1)
            assert (found.exp().sum(1) <= above + 1e-9).all() or null or kind != "plain"


@every(CONFIGS)
@torch.no_grad()
def test_the_product_of_evidence(name, kind, null):
    """Compare with products computed one choice at a time: among all leaves of `marginal`, otherwise among the children of each taxon."""
    tree, _, head, features = make(name, kind, null)
    head, rows = head.eval(), len(features)
    features = torch.cat([features, features.roll(1, 0) + 0.3, features.roll(2, 0) - 0.3])  # three photographs of each sequence
    group, three = torch.arange(3 * rows) % rows, torch.full((rows,), 3.0, dtype=features.dtype)
    parts = [head(part) for part in features.chunk(3)]
    found = parts[0].product(parts[1:], group, rows).raised(three)
    order = torch.randperm(3 * rows, generator=torch.Generator().manual_seed(0))
    shuffled = head(features[order]).product([], group[order], rows).raised(three)
    single = parts[0].product([], group[:rows], rows).raised(torch.ones_like(three))
    for own, other, alone, expected in zip(*(s.log_probs() for s in (found, shuffled, single, parts[0])), strict=True):
        assert torch.allclose(own, other, rtol=1e-9, atol=1e-9), "the order of photographs does not matter"
        assert torch.allclose(alone, expected, rtol=1e-9, atol=1e-9), "one photograph is itself"
    if name == "linear":
        for r, own in enumerate(found.log_probs()):
            assert torch.allclose(own, sum(part.log_probs()[r] for part in parts).log_softmax(1), rtol=1e-9, atol=1e-9)
        return
    nodes, nulls = node_probabilities(name, tree, head, found)
    for r, size in enumerate(tree.sizes):
        for cls in range(size):
            assert torch.allclose(found.log_probs()[r][:, cls].exp(), nodes[tree.offsets[r] + cls], rtol=1e-9), "tree law"
    assert is_path(tree, found.path().numpy()).all()
    alone = [node_probabilities(name, tree, head, part) for part in parts]
    leaves = np.flatnonzero(~tree.has_children[:-1]).tolist()
    choices = [(-1, leaves, [*nulls])] if name == "marginal" else [(p, c, [p] * (p in nulls)) for p, c in children_of(tree).items()]
    for parent, members, below in choices:
        above = lambda own, parent=parent: own[parent] if parent >= 0 else torch.ones_like(three)
        logs = [sum((one[n] / above(one)).log() for one, _ in alone) for n in members]
        logs += [sum((empty[n] / above(one)).log() for one, empty in alone) for n in below]
        expected = torch.stack(logs).softmax(0) * above(nodes)
        assert torch.allclose(torch.stack([nodes[n] for n in members] + [nulls[n] for n in below]), expected, rtol=1e-8)
