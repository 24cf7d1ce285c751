"""Choose few combinations of choices that contain every choice, or every pair of two choices. The others are slow tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(choices: Mapping[str, Sequence[str]], pairs: Sequence[tuple[str, str]], refused: set[str]) -> list[dict[str, str]]:
    """Return runs (group -> choice) that contain each choice of each group, and each pair of choices of the groups in `pairs`, never all
    of `refused`. Greedy: each group in turn takes the choice that completes most missing pairs, then the one that is in most of them,
    then the rarest."""
    missing: set[frozenset[str]] = {frozenset([one]) for group in choices.values() for one in group}
    missing |= {frozenset(pair) for a, b in pairs for pair in product(choices[a], choices[b])}
    uses: dict[str, int] = {one: 0 for group in choices.values() for one in group}
    found: list[dict[str, str]] = []
    while missing:
        run: dict[str, str] = {}
        for group, names in choices.items():
            done = {*run.values()}
            run[group] = max(
                (name for name in names if not refused <= done | {name}),
                key=lambda name: (
                    sum(one <= done | {name} for one in missing if name in one),
                    sum(name in one and not one & done for one in missing),
                    -uses[name],
                ),
            )
        missing = {one for one in missing if not one <= {*run.values()}}
        for name in run.values():
            uses[name] += 1
        found.append(run)
    return found


def every_pair(**choices: Sequence[Any]) -> pytest.MarkDecorator:
    """Return the mark of a test of all combinations of `choices`. Those that are not needed for every pair of two choices are slow."""
    return _parametrized(choices, [*combinations(choices, 2)])


def every_choice(**choices: Sequence[Any]) -> pytest.MarkDecorator:
    """Return the mark of a test of all combinations of `choices`. Those that are not needed for every choice are slow."""
    return _parametrized(choices, [])


def _parametrized(choices: Mapping[str, Sequence[Any]], pairs: Sequence[tuple[str, str]]) -> pytest.MarkDecorator:
    names = {group: [f"{group} {i}" for i in range(len(values))] for group, values in choices.items()}
    quick = {tuple(run.values()) for run in covering(names, pairs, {"no choice"})}
    cases = zip(product(*names.values()), product(*choices.values()), strict=True)
    marked = [pytest.param(*case, marks=() if name in quick else pytest.mark.slow) for name, case in cases]
    return pytest.mark.parametrize(", ".join(choices), marked)
