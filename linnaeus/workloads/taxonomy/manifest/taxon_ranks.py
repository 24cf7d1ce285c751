"""Choose the ranks at which a table of taxa is read. Tables contain about forty ranks; seven of them are predicted by default."""

from __future__ import annotations

from collections.abc import Sequence

from linnaeus.errors import ConfigError

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


def rank_of_level(level: str) -> str:
    """Return the rank of a rank_level, such as `l34` if it is not in RANK_OF_LEVEL, or "" if the text is not a number."""
    try:
        number = float(level)
    except ValueError:
        return ""
    return RANK_OF_LEVEL.get(number, f"l{number:g}")


def tree_ranks(available: Sequence[str], requested: Sequence[str] | None) -> tuple[str, ...]:
    """Return the ranks of the tree, coarse to fine: the default ranks and the `requested` ones (data.ranks) among the `available`.

    A requested rank that is not in RANK_ORDER is placed after the rank before it in `requested`. Raises ConfigError for a requested
    rank that is not available, and if the result is empty."""
    for rank in requested or ():
        if rank not in available:
            raise ConfigError(f"data.ranks: {rank!r} is not a rank of the table of taxa; use {_list_ranks(available)}")
    chosen = [rank for rank in RANK_ORDER if rank in available and (rank in DEFAULT_RANKS or rank in (requested or ()))]
    for before, rank in zip((None, *(requested or ())), requested or (), strict=False):
        if rank not in RANK_ORDER:
            chosen.insert(chosen.index(before) + 1 if before is not None else _first_index(chosen, requested or ()), rank)
    if not chosen:
        raise ConfigError(
            f"data.ranks: the table of taxa does not contain any of {', '.join(DEFAULT_RANKS)}; "
            f"set the ranks to predict, coarse to fine, from {_list_ranks(available)}"
        )
    return tuple(chosen)


def _first_index(chosen: Sequence[str], requested: Sequence[str]) -> int:
    """Return the index for the first requested rank: before the first requested rank that is already in `chosen`, otherwise 0."""
    return min((chosen.index(rank) for rank in requested if rank in chosen), default=0)


def _list_ranks(ranks: Sequence[str]) -> str:
    """Return the ranks as text, in RANK_ORDER, unknown ones last."""
    place = {rank: i for i, rank in enumerate(RANK_ORDER)}
    return ", ".join(sorted(filter(None, ranks), key=lambda rank: (place.get(rank, len(place)), rank))) or "none"
