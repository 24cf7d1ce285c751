"""Which combinations of metadata components are masked in partial validation passes, and their order.

The index of a partial pass is its place in this order: the combinations the config lists, then every other proper subset by
size. Masking all components is the `val_mask_meta` pass and not among the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from linnaeus.errors import ConfigError

Combination = tuple[str, ...]


def listed_combinations(listed: Sequence[Sequence[str]], components: Sequence[str] | None) -> tuple[Combination, ...]:
    """`schedule.partial_combinations`, each in the order of `components` (None: not known yet, kept as written).

    Raises `ConfigError` for an empty or repeated combination, or a component the data do not have."""
    found: list[Combination] = []
    for i, wanted in enumerate(listed):
        key = f"schedule.partial_combinations[{i}]"
        for name in wanted:
            if components is not None and name not in components:
                raise ConfigError(f"{key} names {name}, but the metadata components of the data are {', '.join(components)}; take it out")
        if len(set(wanted)) != len(wanted):
            raise ConfigError(f"{key} names a component twice; name each once")
        combination = tuple(wanted) if components is None else tuple(c for c in components if c in wanted)
        if not combination or combination in found:
            raise ConfigError(f"{key} is {'empty' if not combination else 'listed twice'}; take it out")
        found.append(combination)
    return tuple(found)


def all_combinations(listed: Sequence[Combination], components: Sequence[str]) -> tuple[Combination, ...]:
    """The listed ones, then every other non-empty proper subset of `components`, small ones first."""
    subsets = [c for size in range(1, len(components)) for c in combinations(components, size)]
    return (*listed, *(c for c in subsets if c not in listed))
