"""Test the order of the taxa that a prediction lists."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.trained.probabilities.answers import Answers, Asked, Scored
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_equal_probabilities_are_listed_by_their_number(count):
    """Otherwise the list of a request would depend on the `top` of the others in its batch."""
    tree, _ = TaxonomyTree.from_lineages(("species",), np.array([[f"s{i:04d}"] for i in range(count)]))
    probability = np.full((2, count), 0.1, np.float32)
    probability[0, [3, count // 2]] = 0.5, 0.7
    probability[1, ::2] = 0.0
    expected = np.argsort(-probability, axis=1, kind="stable")
    scored = Scored((probability,), np.zeros((2, 1), dtype=np.int64), np.ones(2))
    for top in range(8):
        found = Answers(tree).predictions(scored, ["a", "b"], np.zeros((2, 0), dtype=bool), (), Asked(top))
        names = [[taxon.name for taxon in one.ranks["species"]] for one in found]
        assert names == [[f"s{i:04d}" for i in row[:top]] for row in expected]
