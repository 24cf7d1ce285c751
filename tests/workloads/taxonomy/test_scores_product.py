"""Scores of several samples together, `Scores.product`: normalised products of probabilities for every head."""

from __future__ import annotations

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.heads import LinearScores, Scores
from tests.workloads.taxonomy.test_heads import CONFIGS, make
from tests.workloads.taxonomy.trees import KINDS, is_path


@pytest.mark.parametrize("null", [False, True], ids=["ignore", "predict"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
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


def test_a_head_without_a_product_is_one_line():
    class Without(LinearScores):
        product = Scores.product

    with pytest.raises(ConfigError, match="one answer for several photographs needs `product`"):
        Without(None, [torch.zeros(1, 2)]).product([], torch.zeros(1, dtype=torch.int64), 1)
