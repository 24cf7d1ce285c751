"""Find the columns of a manifest, and choose the taxonomic ranks at which names or a table of taxa are read."""

import difflib
from collections.abc import Sequence

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import ManifestConfig, TaxonomyDataConfig

# Coarse to fine. Ranks whose names are common for other columns (form, section, variety, division) must be set in data.rank_columns.
KNOWN_RANKS = (
    *("domain", "superkingdom", "kingdom", "subkingdom", "superphylum", "phylum", "subphylum", "superclass", "class", "subclass"),
    *("infraclass", "superorder", "order", "suborder", "infraorder", "superfamily", "family", "subfamily", "supertribe", "tribe"),
    *("subtribe", "genus", "subgenus", "species", "subspecies"),
)
OPTIONAL = ("taxon", "latitude", "longitude", "uncertainty", "date", "time", "elevation", "weight", "split", "group")
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


def find_rank_columns(config: ManifestConfig, header: Sequence[str]) -> dict[str, str]:
    """Return taxonomic rank -> column, coarse to fine; empty if the labels are ids.

    Without data.rank_columns, columns named like taxonomic ranks are the rank columns. Raises ConfigError for a configured column that
    does not exist, and for keys that do not fit together."""
    _check_combinations(config)
    named = {f"data.{name}_column": getattr(config, f"{name}_column") for name in ("image", *OPTIONAL)}
    named |= {f"data.rank_columns.{rank}": column for rank, column in config.rank_columns.items()}
    for key, column in named.items():
        _check_exists(key, column, header)
    if config.taxonomy is not None:
        return {}
    by_name = {name.lower(): name for name in reversed(header)}  # of several columns of one name, the first
    ranks = dict(config.rank_columns) or {rank: by_name[rank] for rank in KNOWN_RANKS if rank in by_name}
    if not ranks:
        raise ConfigError(
            f"data.rank_columns: no column is named like a taxonomic rank; set {{RANK: COLUMN}}, such as {{genus: COLUMN}}; "
            f"the columns are {_list_columns(header)}"
        )
    if "|" in "".join(ranks):
        raise ConfigError(f"data.rank_columns: the name of a rank must not contain '|': {list(ranks)}")
    return ranks


def used_columns(config: ManifestConfig, ranks: dict[str, str]) -> list[str]:
    """Return the names of all columns that are read."""
    optional = (getattr(config, f"{name}_column") for name in OPTIONAL)
    return [config.image_column, *ranks.values(), *(name for name in optional if name is not None)]


def choose_ranks(config: TaxonomyDataConfig, ranks: Sequence[str], sizes: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the ranks to predict, and notes on those left out. `sizes` are the numbers of classes of `ranks` in the training rows.

    Raises ConfigError for a rank in data.ranks that does not exist, has fewer than two classes, or is out of order."""
    classes = dict(zip(ranks, sizes, strict=True))
    if config.ranks is None:
        left_out = [rank for rank in ranks if classes[rank] <= 1]
        chosen = [rank for rank in ranks if classes[rank] > 1]
        if not chosen:
            raise ConfigError(f"data.rank_columns: no taxonomic rank has more than one class in the training rows: {classes}")
        return chosen, [f"ranks left out because they have fewer than two classes: {', '.join(left_out)}"] if left_out else []
    for rank in config.ranks:
        if rank not in classes:
            raise ConfigError(f"data.ranks: {rank!r} is not a taxonomic rank of the data; use {', '.join(ranks)}")
        if classes[rank] <= 1:
            raise ConfigError(
                f"data.ranks: {rank!r} has {classes[rank]} class(es) in the training rows; it must have at least 2; leave it out"
            )
    in_order = [rank for rank in ranks if rank in config.ranks]
    if not config.ranks or config.ranks != in_order:
        raise ConfigError(f"data.ranks: {config.ranks} must contain each rank once, coarse to fine; set {in_order or 'null'}")
    return in_order, []


def _check_combinations(config: ManifestConfig) -> None:
    if (config.latitude_column is None) != (config.longitude_column is None):
        raise ConfigError("data.latitude_column and data.longitude_column must be set together; set both or neither")
    if config.uncertainty_column is not None and config.latitude_column is None:
        raise ConfigError("data.uncertainty_column has no effect without data.latitude_column and data.longitude_column; set these too")
    if config.elevation_missing is not None and config.elevation_column is None:
        raise ConfigError("data.elevation_missing has no effect without data.elevation_column; set it too")
    if (config.taxonomy is None) != (config.taxon_column is None):
        raise ConfigError("data.taxonomy and data.taxon_column must be set together: a table of taxa, and the column with their ids")
    if config.taxonomy is not None and config.rank_columns:
        raise ConfigError("data.rank_columns and data.taxonomy both define the labels; set only one of them")


def _check_exists(key: str, column: str | None, header: Sequence[str]) -> None:
    """Raise ConfigError, with a similar name as a hint, if the manifest does not have the column."""
    if column is None or column in header:
        return
    close = {name.lower(): name for name in header}.get(column.lower()) or next(iter(difflib.get_close_matches(column, header, 1)), None)
    hint = f" (did you mean {close!r}?)" if close else ""
    raise ConfigError(f"{key}: the manifest does not have a column {column!r}{hint}; the columns are {_list_columns(header)}")


def _list_columns(header: Sequence[str]) -> str:
    """Return the names of the columns as text, the first 40 of them."""
    shown = ", ".join(header[:40])
    return shown + (f", and {len(header) - 40} more" if len(header) > 40 else "")


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
            first = min((chosen.index(other) for other in requested or () if other in chosen), default=0)
            chosen.insert(chosen.index(before) + 1 if before is not None else first, rank)
    if not chosen:
        raise ConfigError(
            f"data.ranks: the table of taxa does not contain any of {', '.join(DEFAULT_RANKS)}; "
            f"set the ranks to predict, coarse to fine, from {_list_ranks(available)}"
        )
    return tuple(chosen)


def _list_ranks(ranks: Sequence[str]) -> str:
    """Return the ranks as text, in RANK_ORDER, unknown ones last."""
    place = {rank: i for i, rank in enumerate(RANK_ORDER)}
    return ", ".join(sorted(filter(None, ranks), key=lambda rank: (place.get(rank, len(place)), rank))) or "none"
