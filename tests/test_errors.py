"""Texts of messages: the noun after a number has the right form."""

from __future__ import annotations

import pytest

from linnaeus.errors import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "row", "1 row"),
        (0, "row", "0 rows"),
        (2000, "training row", "2,000 training rows"),
        (1, "taxon", "1 taxon"),
        (2, "taxon", "2 taxa"),
        (2, "medium", "2 media"),
        (2, "category", "2 categories"),
        (2, "day", "2 days"),
        (2, "process", "2 processes"),
    ],
)
def test_the_noun_agrees_with_the_number(number, noun, text):
    assert counted(number, noun) == text
