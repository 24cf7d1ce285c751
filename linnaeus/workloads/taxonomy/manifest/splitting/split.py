"""Split rows into training and validation, according to a column of the manifest or computed from a seed.

The computed split puts all rows of a group (such as the photographs of an observation, an observer or a site) on the same side. Groups that
share a photograph count as one. The split is stratified by the rarest taxon of each group, and orders the groups of a stratum by a hash of
their names. So the order of the rows has no effect, and few rows change their side when rows are added. Every taxon keeps at least one
group in training.
"""

from typing import NamedTuple

import numpy as np

from linnaeus import randomness
from linnaeus.errors import ConfigError, list_some, quoted
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, digests, distinct, strings, unique_strings
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import is_null, null_values
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION

LEFT_OUT = 2  # third value of a split, in addition to TRAIN and VALIDATION: a test row, used for neither
NO_SIDE = 3  # fourth value, of a row that a given file or given dates do not put on a side; such a row is left out
_TRAIN = frozenset(("train", "training", "trn"))
_VALIDATION = frozenset(("val", "valid", "validation", "dev", "eval", "evaluation"))
_TEST = frozenset(("test", "testing", "tst"))
SPLIT_WORDS = _TRAIN | _VALIDATION | _TEST  # in lower case


def is_validation(word: str) -> bool:
    """Return True for a word that means validation rows, such as "val"."""
    return word.lower() in _VALIDATION


def is_test(word: str) -> bool:
    """Return True for a word that means test rows, such as "test"."""
    return word.lower() in _TEST


def split_from_column(column: Column, name: str, key: str = "data.split_column") -> np.ndarray:
    """Return the split, int8 [N], from the words in the split column `name`, such as "train". Test rows are `LEFT_OUT`.

    Raise `ConfigError` for unknown words. `key`: configuration key of the split, for messages."""
    words = [value.lower() for value in column.values]
    used = np.unique(column.codes).tolist()  # rows that are left out may have other words
    unknown = sorted({column.values[code] for code in used if words[code] not in SPLIT_WORDS})
    if unknown:
        shown = list_some(["(empty)" if is_null(value) else quoted(value) for value in unknown], 4)
        raise ConfigError(f"{key}: {quoted(name)} contains {shown}; every row must have train, val or test; or set {key}=null")
    sides = [TRAIN if word in _TRAIN else VALIDATION if word in _VALIDATION else LEFT_OUT for word in words]
    return np.array(sides, dtype=np.int8)[column.codes]


def test_as_validation(split: np.ndarray) -> np.ndarray:
    """Return the split with test rows as validation rows, and validation rows as `LEFT_OUT`. Raise `ConfigError` without test rows."""
    if not (split == LEFT_OUT).any():
        raise ConfigError("--split=test: the split of the data has no test rows; use --split=validation")
    return np.array([TRAIN, LEFT_OUT, VALIDATION, NO_SIDE], dtype=np.int8)[split]


class Groups(NamedTuple):
    """Groups of rows that belong to the same side of the split: G groups of N rows.

    With a group column, groups are numbered in the order of the values of the column."""

    digest: np.ndarray  # uint64 [G]: hash of the name of each group
    number: np.ndarray  # int64 [N]: group of each row
    ungrouped: int  # number of rows without a value in the group column
    joined: int = 0  # number of groups that became a part of another group, because they share a photograph


def find_groups(column: Column | None, names: Names, name_digests: np.ndarray | None = None) -> Groups:
    """Return the groups of N rows. `column`: the group column; None: rows with the same photograph are a group.

    `names`: [N], names of the photographs. `name_digests`: result of `digests(names)`; None: not computed yet. Rows without a value in the
    group column are grouped by photograph. Groups that share a photograph are joined, so that it is on one side of the split."""
    photograph, of_row = _numbered(digests(names) if name_digests is None else name_digests)
    if column is None:
        return Groups(photograph, of_row, 0)
    null = null_values(column.values)[column.codes]
    used = distinct(column.codes[~null])
    groups, group_of_value = unique_strings(strings([column.values[code] for code in used.tolist()]))
    paths, number_of_path = unique_strings(strings(names[null].tolist()))
    of_code = np.zeros(len(column.values), dtype=np.int64)
    of_code[used] = group_of_value
    number = of_code[column.codes]
    number[null] = len(groups) + number_of_path
    own = digests([*(f"group:{name}" for name in groups), *(f"path:{name}" for name in paths)])
    if len(photograph) == len(number):  # no photograph occurs twice
        return Groups(own, number, int(null.sum()))
    first = _connected(number, of_row)
    kept = distinct(first)
    return Groups(own[kept], np.searchsorted(kept, first)[number], int(null.sum()), len(own) - len(kept))


def _connected(group: np.ndarray, photograph: np.ndarray) -> np.ndarray:
    """Return the first group that is connected to each of G groups by shared photographs, int64 [G]. Two groups may be connected through
    others.

    `group`, `photograph`: int64 [N], numbers of the group and of the photograph of each row; every number from 0 to G - 1 occurs."""
    first = np.arange(group.max() + 1)
    rows = np.flatnonzero(np.bincount(photograph)[photograph] > 1)
    group, photograph = group[rows], _numbered(photograph[rows])[1]
    while True:
        lowest = np.full(len(rows), len(first))
        np.minimum.at(lowest, photograph, first[group])
        found = first.copy()
        np.minimum.at(found, group, lowest[photograph])
        found = found[found]  # in a chain of n groups the distance to the first one halves, so that few rounds are needed
        if (found == first).all():
            return first
        first = found


def _numbered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values, [G], and the index of each of the N `values` in them, int64 [N]."""
    ordered = distinct(values)
    return (values, np.arange(len(values))) if len(ordered) == len(values) else (ordered, np.searchsorted(ordered, values))


class Strata(NamedTuple):
    """Strata of G groups. A group is in the stratum of its rarest taxon (the taxon with the fewest groups).

    The P pairs are all (group, taxon) for which the group has a row of the taxon."""

    stratum: np.ndarray  # int64 [G]: stratum of each group
    order_key: np.ndarray  # uint64 [G]: hash by which the groups of a stratum are ordered
    pair_group: np.ndarray  # int64 [P], in ascending order
    pair_taxon: np.ndarray  # int64 [P]

    def in_order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the groups ordered by stratum and `order_key`, [G], the position of the first group of each stratum, and the number of
        groups of each stratum."""
        order = randomness.argsort(self.order_key)
        order = order[np.argsort(self.stratum[order].astype(np.min_scalar_type(self.stratum.max(initial=0))), kind="stable")]
        start = np.flatnonzero(np.diff(self.stratum[order], prepend=-1))
        return order, start, np.diff(start, append=len(order))


def strata(groups: Groups, taxon: np.ndarray, seed: int) -> Strata:
    """Return the strata of groups. `taxon`: int64 [N], the finest known taxon of each row. `seed`: sets the order of the groups in a
    stratum."""
    order_key = randomness.hashes(randomness.key(seed, randomness.SPLIT), groups.digest)
    taxa = taxon.max(initial=0) + 1
    pair_group, pair_taxon = np.divmod(distinct(groups.number * taxa + taxon), taxa)
    rarest_first = np.lexsort((np.arange(taxa), np.bincount(pair_taxon, minlength=taxa)))
    rarity = np.empty(taxa, dtype=np.int64)
    rarity[rarest_first] = np.arange(taxa)
    first = np.flatnonzero(np.diff(pair_group, prepend=-1))
    return Strata(rarest_first[np.minimum.reduceat(rarity[pair_taxon], first)], order_key, pair_group, pair_taxon)


def computed_split(groups: Groups, taxon: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return a split, int8 [N], that is computed from a seed. `taxon`: int64 [N], the finest known taxon of each row.

    In a stratum of n groups, floor(fraction * n + u) groups are in validation; u is one uniform random number per stratum, so that rare
    taxa have their share on average. If a group is added, at most two groups change their side. Validation is empty if every taxon has a
    single group."""
    of = strata(groups, taxon, seed)
    held_out = _return_last_groups(_hold_out(of, fraction), of)
    return np.where(held_out[groups.number], np.int8(VALIDATION), np.int8(TRAIN))


def _hold_out(of: Strata, fraction: float) -> np.ndarray:
    """Return bool [G], True for the groups in validation: in each stratum the groups with the smallest `order_key`.

    The random number of a stratum depends only on the `order_key` of its first group, so it does not change if other strata change."""
    order, start, count = of.in_order()
    draw = randomness.uniforms(randomness.SPLIT, of.order_key[order][start])
    quota = np.floor(fraction * count + np.where(count > 1, draw, 0.0) + 1e-9)
    place = np.arange(len(order)) - np.repeat(start, count)
    held_out = np.empty(len(order), dtype=bool)
    held_out[order] = place < np.repeat(quota, count)
    return held_out


def _return_last_groups(held_out: np.ndarray, of: Strata) -> np.ndarray:
    """Return `held_out`, bool [G], changed so that no taxon has all its groups in validation.

    If all groups of a taxon are in validation, the group with the largest `order_key` is moved to training."""
    pair_group, pair_taxon = of.pair_group, of.pair_taxon
    count_held_out = np.bincount(pair_taxon, weights=held_out[pair_group])
    lost = (count_held_out == np.bincount(pair_taxon)) & (count_held_out > 0)
    pairs = np.flatnonzero(lost[pair_taxon])
    pairs = pairs[np.lexsort((of.order_key[pair_group[pairs]], pair_taxon[pairs]))]
    last = pairs[np.searchsorted(pair_taxon[pairs], np.flatnonzero(lost), side="right") - 1]
    kept = held_out.copy()
    kept[pair_group[last]] = False
    return kept
