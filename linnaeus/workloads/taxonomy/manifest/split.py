"""Training or validation: what the manifest says, or a split that is made here and made the same everywhere.

The split made here keeps groups whole (an observation's photographs, an observer, a site), is stratified by each group's rarest taxon,
and orders the groups of a stratum by a hash of their own names: rows added later move as few as can be, and the order of the rows does
not matter. Every taxon keeps at least one group in training.
"""

from __future__ import annotations

import hashlib

import numpy as np

from linnaeus import randomness
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest.cleaning import is_null
from linnaeus.workloads.taxonomy.manifest.table import Column
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION

LEFT_OUT = 2
_TRAIN = frozenset(("train", "training", "trn"))
_VALIDATION = frozenset(("val", "valid", "validation", "dev", "eval", "evaluation"))
_TEST = frozenset(("test", "testing", "tst"))


def stated_split(column: Column, name: str) -> tuple[np.ndarray, list[str]]:
    """int8 [N] from the words of a split column, and notes. Test rows validate only where no row is named validation; else they
    are LEFT_OUT. Raises ConfigError naming the words it does not know, or a side that has no rows."""
    words = [value.lower() for value in column.values]
    unknown = sorted({value for value, word in zip(column.values, words, strict=True) if word not in _TRAIN | _VALIDATION | _TEST})
    if unknown:
        shown = ", ".join("(empty)" if is_null(value) else repr(value) for value in unknown[:10])
        raise ConfigError(f"data.split_column: {name!r} says {shown}; it must say train, val or test in every row")
    has_validation = any(word in _VALIDATION for word in words)
    test_side = LEFT_OUT if has_validation else VALIDATION
    sides = [TRAIN if word in _TRAIN else VALIDATION if word in _VALIDATION else test_side for word in words]
    split = np.array(sides, dtype=np.int8)[column.codes]
    if not (split == TRAIN).any() or not (split == VALIDATION).any():
        raise ConfigError(f"data.split_column: {name!r} says only {', '.join(sorted(set(words)))}; both train and val rows are needed")
    left_out = int((split == LEFT_OUT).sum())
    notes = [f"{left_out} rows that {name!r} calls test take no part"] if left_out else []
    if not has_validation:
        notes.append(f"{name!r} names no validation rows; its test rows validate")
    return split, notes


def group_numbers(column: Column | None, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Group names [G] (sorted), the group of each row int64 [N], and how many rows had no group. Without one, a row's photograph
    is its group, so a photograph listed twice stays on one side."""
    if column is None:
        names, number = np.unique(paths, return_inverse=True)
        return names, number, 0
    null = np.array([is_null(value) for value in column.values], dtype=bool)[column.codes]
    text = np.where(null, np.char.add("path:", paths), np.char.add("group:", column.text()))
    names, number = np.unique(text, return_inverse=True)
    return names, number, int(null.sum())


def made_split(groups: np.ndarray, names: np.ndarray, taxon: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """int8 [N]: the split of rows with group numbers `groups` int64 [N] (of `names` [G]) and finest known taxa `taxon` int64 [N].

    A stratum of n groups gives floor(fraction * n + u) of them to validation, u uniform for the stratum: rare taxa are represented in
    proportion on the whole, and one more group moves at most two. Validation is empty where no taxon has two groups."""
    digest = np.array([_hash(name) for name in names.tolist()], dtype=np.uint64)
    order_key = randomness.hashes(randomness.key(seed, randomness.SPLIT), digest)
    pairs = np.unique(groups * (taxon.max(initial=0) + 1) + taxon)
    pair_group, pair_taxon = np.divmod(pairs, taxon.max(initial=0) + 1)
    groups_of_taxon = np.bincount(pair_taxon)
    rarest_first = np.lexsort((pair_taxon, groups_of_taxon[pair_taxon], pair_group))
    stratum = pair_taxon[rarest_first][np.unique(pair_group[rarest_first], return_index=True)[1]]
    held_out = _held_out(stratum, order_key, fraction)
    held_out = _return_last_groups(held_out, pair_group, pair_taxon, order_key)
    return np.where(held_out[groups], VALIDATION, TRAIN).astype(np.int8)


def _held_out(stratum: np.ndarray, order_key: np.ndarray, fraction: float) -> np.ndarray:
    """bool [G]: in each stratum the groups of smallest key, as many as its share. The draw of a stratum is keyed by its first group's
    key, which other strata cannot move."""
    order = np.lexsort((order_key, stratum))
    _, start, count = np.unique(stratum[order], return_index=True, return_counts=True)
    draw = randomness.uniforms(randomness.SPLIT, order_key[order][start])
    quota = np.floor(fraction * count + np.where(count > 1, draw, 0.0) + 1e-9)
    place = np.arange(len(order)) - np.repeat(start, count)
    held_out = np.empty(len(stratum), dtype=bool)
    held_out[order] = place < np.repeat(quota, count)
    return held_out


def _return_last_groups(held_out: np.ndarray, pair_group: np.ndarray, pair_taxon: np.ndarray, order_key: np.ndarray) -> np.ndarray:
    """Give every taxon whose groups are all held out the one of largest key back."""
    out_of = np.bincount(pair_taxon, weights=held_out[pair_group])
    lost = np.flatnonzero((out_of == np.bincount(pair_taxon)) & (out_of > 0))
    order = np.lexsort((order_key[pair_group], pair_taxon))
    last = np.searchsorted(pair_taxon[order], lost, side="right") - 1
    kept = held_out.copy()
    kept[pair_group[order[last]]] = False
    return kept


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
