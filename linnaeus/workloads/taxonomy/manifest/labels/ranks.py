"""List the taxonomic ranks in their order. Choose the ranks that are read from a table of taxa, and the ranks that a run predicts."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.config import TaxonomyDataConfig

# Coarse to fine. Ranks whose names are common for other columns (form, section, variety, division) must be set in data.rank_columns.
KNOWN_RANKS = (
    *("domain", "superkingdom", "kingdom", "subkingdom", "superphylum", "phylum", "subphylum", "superclass", "class", "subclass"),
    *("infraclass", "superorder", "order", "suborder", "infraorder", "superfamily", "family", "subfamily", "supertribe", "tribe"),
    *("subtribe", "genus", "subgenus", "species", "subspecies"),
)
DEFAULT_RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")  # data.ranks=null selects from these
RANK_ORDER = (  # coarse to fine
    *("domain", "superkingdom", "kingdom", "subkingdom", "infrakingdom", "superphylum", "phylum", "subphylum", "infraphylum"),
    *("parvphylum", "superclass", "class", "subclass", "infraclass", "subterclass", "parvclass", "superorder", "order", "suborder"),
    *("infraorder", "parvorder", "superfamily", "epifamily", "family", "subfamily", "infrafamily", "supertribe", "tribe", "subtribe"),
    *("infratribe", "supergenus", "genus", "subgenus", "infragenus", "superspecies", "species", "infraspecies", "subspecies", "variety"),
    *("subvariety", "form", "subform"),
)
RANK_OF_LEVEL = {  # iNaturalist's rank_level -> rank, for tables without a column of rank names
    **{70.0: "kingdom", 67.0: "subkingdom", 60.0: "phylum", 57.0: "subphylum", 53.0: "superclass", 50.0: "class", 47.0: "subclass"},
    **{45.0: "infraclass", 44.0: "subterclass", 43.0: "superorder", 40.0: "order", 37.0: "suborder", 35.0: "infraorder"},
    **{34.5: "parvorder", 33.0: "superfamily", 32.0: "epifamily", 30.0: "family", 27.0: "subfamily", 26.0: "supertribe"},
    **{25.0: "tribe", 24.0: "subtribe", 20.0: "genus", 15.0: "subgenus", 10.0: "species", 5.0: "subspecies"},
}
INVERTED = 1.1  # ranks are in the wrong order if the coarser has this many times the names of the finer; misspelt names make it less


def check_order(ranks: Sequence[str]) -> None:
    """Raise `ConfigError` if the ranks in data.rank_columns are not listed coarse to fine. Unknown names of ranks may be anywhere."""
    known = [rank for rank in ranks if rank.lower() in RANK_ORDER]
    ordered = sorted(known, key=lambda rank: RANK_ORDER.index(rank.lower()))
    if known != ordered:
        raise ConfigError(f"data.rank_columns: the ranks {', '.join(known)} must be listed coarse to fine: {', '.join(ordered)}")


def check_lineages(columns: Mapping[str, str], codes: np.ndarray) -> None:
    """Raise `ConfigError` if a rank has more than `INVERTED` times as many distinct names as the next finer rank, in the rows that have a
    name at both ranks.

    `columns`: rank -> column, coarse to fine. `codes`: int [N, R], numbers of the names of N rows, -1 for null."""
    for r, (coarse, fine) in enumerate(pairwise(columns)):
        both = codes[(codes[:, r] >= 0) & (codes[:, r + 1] >= 0)]
        above, below = len(np.unique(both[:, r])), len(np.unique(both[:, r + 1]))
        if above > INVERTED * below:
            raise ConfigError(
                f"data.rank_columns: {coarse} (column {quoted(columns[coarse])}) has {above} names where {fine} (column "
                f"{quoted(columns[fine])}) has {below}; the coarser rank must have fewer; list the ranks coarse to fine"
            )


def choose_ranks(config: TaxonomyDataConfig, ranks: Sequence[str], sizes: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the ranks to predict, and lines about ranks that are left out. `sizes`: number of classes of each of `ranks` in training rows.

    Raise `ConfigError` for a rank in data.ranks that does not exist, has fewer than two classes, or is out of order."""
    classes = dict(zip(ranks, sizes, strict=True))
    if config.ranks is None:
        left_out = [rank for rank in ranks if classes[rank] <= 1]
        chosen = [rank for rank in ranks if classes[rank] > 1]
        if not chosen:
            shown = list_some([f"{rank} {size}" for rank, size in classes.items()])
            raise ConfigError(f"data.rank_columns: no taxonomic rank has more than one class in the training rows: {shown}")
        return chosen, [f"ranks left out because they have fewer than two classes: {', '.join(left_out)}"] if left_out else []
    for rank in config.ranks:
        if rank not in classes:
            raise ConfigError(f"data.ranks: {quoted(rank)} is not a taxonomic rank of the data; use {list_some(ranks)}")
        if classes[rank] <= 1:
            raise ConfigError(
                f"data.ranks: {quoted(rank)} has {counted(classes[rank], 'class')} in the training rows; it needs at least 2; leave it out"
            )
    in_order = [rank for rank in ranks if rank in config.ranks]
    if not config.ranks or config.ranks != in_order:
        raise ConfigError(f"data.ranks: {config.ranks} must contain each rank once, coarse to fine; set {in_order or 'null'}")
    return in_order, []


def rank_of_level(level: str) -> str:
    """Return the rank for a `rank_level` of iNaturalist, such as "genus" for "20".

    Return a name such as "l34" for an unknown level, and "" if the text is not a number."""
    try:
        number = float(level)
    except ValueError:
        return ""
    return RANK_OF_LEVEL.get(number, f"l{number:g}")


def tree_ranks(available: Sequence[str], requested: Sequence[str] | None) -> tuple[str, ...]:
    """Return the ranks of the tree of a table of taxa, coarse to fine: the `available` ranks that are in `DEFAULT_RANKS`, and the
    `requested` ranks.

    `requested`: data.ranks. A requested rank that is not in `RANK_ORDER` is placed after its predecessor in `requested`. Raise
    `ConfigError` for a requested rank that is not available, and if there are no ranks."""
    for rank in requested or ():
        if rank not in available:
            raise ConfigError(f"data.ranks: {quoted(rank)} is not a rank of the table of taxa; use {_list_ranks(available)}")
    chosen = [rank for rank in RANK_ORDER if rank in available and (rank in DEFAULT_RANKS or rank in (requested or ()))]
    for before, rank in zip((None, *(requested or ())), requested or (), strict=False):
        if rank not in RANK_ORDER:
            first = min((chosen.index(other) for other in requested or () if other in chosen), default=0)
            chosen.insert(chosen.index(before) + 1 if before is not None else first, rank)
    if not chosen:
        raise ConfigError(
            f"data.ranks: the table of taxa does not contain any of {', '.join(DEFAULT_RANKS)}; "
            f"set the ranks to predict, coarse to fine, from {_list_ranks(available)}"
        )
    return tuple(chosen)


def _list_ranks(ranks: Sequence[str]) -> str:
    """Return the ranks as text, in the order of `RANK_ORDER`; unknown ranks are last."""
    place = {rank: i for i, rank in enumerate(RANK_ORDER)}
    return list_some(sorted(filter(None, ranks), key=lambda rank: (place.get(rank, len(place)), rank)), 40) or "none"
