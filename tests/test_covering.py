"""Check that quick cases of `every_pair` contain every pair of two choices, those of `every_choice` every choice, and slow ones others."""

from itertools import combinations, product

from tests.covering import every_choice, every_pair

CHOICES = {"name": ["a", "b", "c"], "kind": ["plain", "holes"], "null": [False, True], "missing": [0.0, 0.5]}


def cases(mark):
    """Return the values of all cases of a mark, and of those that are quick."""
    _, found = mark.args
    return [case.values for case in found], [case.values for case in found if not case.marks]


def pairs(values):
    return {(i, case[i], j, case[j]) for case in values for i, j in combinations(range(len(case)), 2)}


def test_quick_cases_contain_every_pair():
    every, quick = cases(every_pair(**CHOICES))
    assert every == [*product(*CHOICES.values())] and pairs(quick) == pairs(every) and len(quick) < len(every) / 2


def test_quick_cases_contain_every_choice():
    every, quick = cases(every_choice(**CHOICES))
    assert every == [*product(*CHOICES.values())] and len(quick) == 3
    assert all({case[i] for case in quick} == set(values) for i, values in enumerate(CHOICES.values()))
    assert pairs(quick) != pairs(every), "negative control: there are pairs that these cases do not have"
