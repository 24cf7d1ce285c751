"""Find the columns of a manifest: check the configured names against the header, and choose the ranks to predict."""

from __future__ import annotations

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
                f"data.ranks: {rank!r} has {classes[rank]} class(es) in the training rows; a rank must have at least 2; leave it out"
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
        raise ConfigError(
            "data.taxonomy and data.taxon_column must be set together: a table of taxa, and the column of the manifest with their ids"
        )
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
