"""Which ranks a table of taxa is read at, and in which order: tables name forty of them, of which seven are usually predicted."""

from __future__ import annotations

from collections.abc import Sequence

from linnaeus.errors import ConfigError

USUAL = ("kingdom", "phylum", "class", "order", "family", "genus", "species")  # what data.ranks=null chooses from
ORDER = (  # coarse to fine
    *("domain", "superkingdom", "kingdom", "subkingdom", "infrakingdom", "superphylum", "phylum", "subphylum", "infraphylum"),
    *("parvphylum", "superclass", "class", "subclass", "infraclass", "subterclass", "parvclass", "superorder", "order", "suborder"),
    *("infraorder", "parvorder", "superfamily", "epifamily", "family", "subfamily", "infrafamily", "supertribe", "tribe", "subtribe"),
    *("infratribe", "supergenus", "genus", "subgenus", "infragenus", "superspecies", "species", "infraspecies", "subspecies", "variety"),
    *("subvariety", "form", "subform"),
)
LEVELS = {  # of iNaturalist's rank_level, for tables that have no column of rank names
    **{70.0: "kingdom", 67.0: "subkingdom", 60.0: "phylum", 57.0: "subphylum", 53.0: "superclass", 50.0: "class", 47.0: "subclass"},
    **{45.0: "infraclass", 44.0: "subterclass", 43.0: "superorder", 40.0: "order", 37.0: "suborder", 35.0: "infraorder"},
    **{34.5: "parvorder", 33.0: "superfamily", 32.0: "epifamily", 30.0: "family", 27.0: "subfamily", 26.0: "supertribe"},
    **{25.0: "tribe", 24.0: "subtribe", 20.0: "genus", 15.0: "subgenus", 10.0: "species", 5.0: "subspecies"},
}


def rank_of_level(level: str) -> str:
    """Name of a rank_level, as `L34` where it has none here; "" for what is no number."""
    try:
        number = float(level)
    except ValueError:
        return ""
    return LEVELS.get(number, f"l{number:g}")


def tree_ranks(there: Sequence[str], asked: Sequence[str] | None) -> tuple[str, ...]:
    """Those of the ranks `there` that the tree is made of, coarse to fine: the usual ones, and those `asked` for (data.ranks).

    Ranks of unknown order stand where they are asked for. Raises ConfigError for one that is not there, or if none is known."""
    for rank in asked or ():
        if rank not in there:
            raise ConfigError(f"data.ranks: {rank!r} is not a rank of the table of taxa; there are {_list(there)}")
    chosen = [rank for rank in ORDER if rank in there and (rank in USUAL or rank in (asked or ()))]
    for before, rank in zip((None, *(asked or ())), asked or (), strict=False):
        if rank not in ORDER:
            chosen.insert(chosen.index(before) + 1 if before is not None else _first(chosen, asked or ()), rank)
    if not chosen:
        raise ConfigError(f"data.ranks: none of the table's ranks is a usual one; name those to predict, coarse to fine: {_list(there)}")
    return tuple(chosen)


def _first(chosen: Sequence[str], asked: Sequence[str]) -> int:
    """Where the first rank asked for goes: before the next of them whose place is known."""
    return min((chosen.index(rank) for rank in asked if rank in chosen), default=0)


def _list(ranks: Sequence[str]) -> str:
    return ", ".join(sorted((r for r in ranks if r), key=lambda rank: (ORDER.index(rank) if rank in ORDER else len(ORDER), rank))) or "none"
