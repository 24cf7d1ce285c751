"""Divide groups of rows into K folds for cross-validation: each of K runs validates on another fold (`data.folds=5 data.fold=2`).

As in `split.py`, all rows of a group are in the same fold, the groups of a stratum (groups with the same rarest taxon) are ordered by a
hash of their names, and few groups change their fold when a group is added. Of n groups in a stratum, each fold has floor(n / K) or ceil(n
/ K). If a taxon has only one group, this group is always in training.
"""

import numpy as np

from linnaeus import randomness
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import RecordsConfig
from linnaeus.workloads.taxonomy.manifest.splitting.split import Groups, Strata, strata

ALWAYS_TRAINED = 0  # in place of the number of a fold, which is from 1 to K


def check_folds(config: RecordsConfig) -> None:
    """Raise `ConfigError` if only one of data.folds and data.fold is set, if data.fold is larger than data.folds, or if
    data.validation_fraction is set together with data.folds."""
    if config.folds is None:
        if config.fold is not None:
            raise ConfigError(f"data.fold={config.fold} has no effect without data.folds; set data.folds to the number of folds")
        return
    if config.fold is None:
        every = ",".join(map(str, range(1, min(config.folds, 5) + 1))) + ",..." * (config.folds > 5)
        raise ConfigError(
            f"data.folds={config.folds} needs data.fold, the fold that validates, from 1 to {config.folds}; "
            f"all in turn: -m data.fold={every}"
        )
    if config.fold > config.folds:
        raise ConfigError(f"data.fold={config.fold} does not exist: with data.folds={config.folds} the folds are 1 to {config.folds}")
    if config.validation_fraction is not None:
        raise ConfigError(
            f"data.validation_fraction={config.validation_fraction:g} has no effect with data.folds={config.folds}, which validates on "
            "one fold; leave it out, or set it to null"
        )


def fold_numbers(groups: Groups, taxon: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Return the fold of each group, from 1, or `ALWAYS_TRAINED`, int64 [G].

    `taxon`: int64 [N], the finest known taxon of each row."""
    of = strata(groups, taxon, seed)
    fold = _deal(of, folds)
    groups_of_taxon = np.bincount(of.pair_taxon)
    fold[of.pair_group[groups_of_taxon[of.pair_taxon] == 1]] = ALWAYS_TRAINED
    _divide_taxa(fold, of, folds)
    return fold


def _deal(of: Strata, folds: int) -> np.ndarray:
    """Return the fold of each group, from 1 to K = `folds`, int64 [G].

    The n groups of a stratum are ordered by `order_key`; the first floor(j n / K + u) of them are in folds 1 to j. u is a uniform random
    number that depends on the first group of the stratum. If n < K, u decides which folds get a group."""
    order, start, count = of.in_order()
    draw = np.repeat(randomness.uniforms(randomness.SPLIT, of.order_key[order][start]), count)
    place = np.arange(len(order)) - np.repeat(start, count)
    number = np.ceil((place + 1 - draw) * folds / np.repeat(count, count)).astype(np.int64)
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = np.clip(number, 1, folds)
    return fold


def _divide_taxa(fold: np.ndarray, of: Strata, folds: int) -> None:
    """Change `fold`, [G], in place so that no taxon has all its groups in one fold.

    If all groups of a taxon are in one fold, the group with the largest `order_key` is moved to the next fold in which no taxon of the
    group has all its other groups. If there is no such fold, the group becomes `ALWAYS_TRAINED`."""
    order = np.lexsort((of.order_key[of.pair_group], of.pair_taxon))
    taxa, members = of.pair_taxon[order], of.pair_group[order]
    start = np.flatnonzero(np.diff(taxa, prepend=-1))
    held = fold[members]
    low, high = np.minimum.reduceat(held, start), np.maximum.reduceat(held, start)
    for first in start[(low == high) & (low != ALWAYS_TRAINED)].tolist():
        own = members[first : np.searchsorted(taxa, taxa[first], side="right")]
        if len(set(fold[own].tolist())) > 1:
            continue  # an earlier taxon has moved one of the groups
        group, current = own[-1], int(fold[own[-1]])
        own_taxa = of.pair_taxon[np.searchsorted(of.pair_group, group) : np.searchsorted(of.pair_group, group, side="right")]
        others = [members[slice(*np.searchsorted(taxa, [t, t + 1]))] for t in own_taxa]
        filled = {int(f[0]) for f in (np.unique(fold[other[other != group]]) for other in others) if len(f) == 1}
        fold[group] = next((f for k in range(1, folds) if (f := (current + k - 1) % folds + 1) not in filled), ALWAYS_TRAINED)
