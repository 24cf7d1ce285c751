"""Which column of a manifest holds what: the configuration's names checked against the header."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import ManifestConfig, TaxonomyDataConfig

# Coarse to fine. Names that often head other columns (form, section, variety, division) must be named in data.rank_columns.
KNOWN_RANKS = (
    *("domain", "superkingdom", "kingdom", "subkingdom", "superphylum", "phylum", "subphylum", "superclass", "class", "subclass"),
    *("infraclass", "superorder", "order", "suborder", "infraorder", "superfamily", "family", "subfamily", "supertribe", "tribe"),
    *("subtribe", "genus", "subgenus", "species", "subspecies"),
)
OPTIONAL = ("taxon", "latitude", "longitude", "uncertainty", "date", "time", "elevation", "weight", "split", "group")
OF_COMPONENT = {"SPATIAL": ("latitude", "longitude"), "TEMPORAL": ("date",), "ELEVATION": ("elevation",)}


@dataclass(frozen=True)
class Columns:
    """Names of columns; those of `OPTIONAL` that are not there are None."""

    image: str
    ranks: dict[str, str]  # coarse to fine; empty where taxa are ids
    latitude: str | None = None
    longitude: str | None = None
    uncertainty: str | None = None
    date: str | None = None
    time: str | None = None
    elevation: str | None = None
    weight: str | None = None
    split: str | None = None
    group: str | None = None
    taxon: str | None = None

    @property
    def used(self) -> tuple[str, ...]:
        named = (getattr(self, name) for name in OPTIONAL)
        return (self.image, *self.ranks.values(), *(name for name in named if name is not None))

    def without(self, components: Sequence[str]) -> list[str]:
        """Those of `components` for which the manifest has no column."""
        return [c for c in components if not any(getattr(self, name) for name in OF_COMPONENT.get(c, ()))]


def resolve_columns(config: ManifestConfig, header: Sequence[str]) -> Columns:
    """The columns the configuration names, or finds by the names of ranks. Raises ConfigError naming one that is not there, or a
    combination that makes no sense."""
    _check_combinations(config)
    named = {name: getattr(config, f"{name}_column") for name in ("image", *OPTIONAL)}
    for name, column in named.items():
        _check_there(f"data.{name}_column", column, header)
    for rank, column in config.rank_columns.items():
        _check_there(f"data.rank_columns.{rank}", column, header)
    ranks = dict(config.rank_columns) or (_ranks_by_name(header) if config.taxonomy is None else {})
    if not ranks and config.taxonomy is None:
        raise ConfigError(
            f"data.rank_columns: no column is named like a taxonomic rank; name them as {{genus: COLUMN}}; there are {_list(header)}"
        )
    if "|" in "".join(ranks):
        raise ConfigError(f"data.rank_columns: the name of a rank may not contain '|': {list(ranks)}")
    return Columns(ranks=ranks, **named)


def choose_ranks(config: TaxonomyDataConfig, ranks: Sequence[str], sizes: Sequence[int]) -> tuple[list[str], list[str]]:
    """The ranks to predict, and notes on those left out; `sizes` are the classes of each rank in the training rows.

    Raises ConfigError for a rank asked for that is not there, has one class, or is out of order."""
    classes = dict(zip(ranks, sizes, strict=True))
    if config.ranks is None:
        left_out = [rank for rank in ranks if classes[rank] <= 1]
        chosen = [rank for rank in ranks if classes[rank] > 1]
        if not chosen:
            raise ConfigError(f"data.rank_columns: no taxonomic rank has more than one class in the training rows: {classes}")
        return chosen, [f"left out, having fewer than two classes: {', '.join(left_out)}"] if left_out else []
    for rank in config.ranks:
        if rank not in classes:
            raise ConfigError(f"data.ranks: {rank!r} is not a taxonomic rank of the data; there are {', '.join(ranks)}")
        if classes[rank] <= 1:
            raise ConfigError(f"data.ranks: {rank!r} has {classes[rank]} class(es) in the training rows, nothing to learn; leave it out")
    in_order = [rank for rank in ranks if rank in config.ranks]
    if not config.ranks or config.ranks != in_order:
        raise ConfigError(f"data.ranks: {config.ranks} must name ranks once each, coarse to fine; write {in_order or 'null'}")
    return in_order, []


def _ranks_by_name(header: Sequence[str]) -> dict[str, str]:
    by_name = {name.lower(): name for name in reversed(header)}
    return {rank: by_name[rank] for rank in KNOWN_RANKS if rank in by_name}


def _check_combinations(config: ManifestConfig) -> None:
    if (config.latitude_column is None) != (config.longitude_column is None):
        raise ConfigError("data.latitude_column and data.longitude_column go together: name both or neither")
    if config.uncertainty_column is not None and config.latitude_column is None:
        raise ConfigError("data.uncertainty_column is of no use without data.latitude_column and data.longitude_column")
    if config.elevation_missing is not None and config.elevation_column is None:
        raise ConfigError("data.elevation_missing is of no use without data.elevation_column")
    if (config.taxonomy is None) != (config.taxon_column is None):
        raise ConfigError("data.taxonomy and data.taxon_column go together: a table of taxa, and the manifest's column with their ids")
    if config.taxonomy is not None and config.rank_columns:
        raise ConfigError("data.rank_columns and data.taxonomy both say what the labels are; leave one out")


def _check_there(key: str, column: str | None, header: Sequence[str]) -> None:
    if column is None or column in header:
        return
    close = {name.lower(): name for name in header}.get(column.lower()) or next(iter(difflib.get_close_matches(column, header, 1)), None)
    hint = f" (did you mean {close!r}?)" if close else ""
    raise ConfigError(f"{key}: the manifest has no column {column!r}{hint}; it has {_list(header)}")


def _list(header: Sequence[str]) -> str:
    shown = ", ".join(header[:40])
    return shown + (f", and {len(header) - 40} more" if len(header) > 40 else "")
