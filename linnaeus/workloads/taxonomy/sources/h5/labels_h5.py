"""Read data=labels_h5: the `labels.h5` of the original linnaeus (an earlier program), with a folder of photographs or with `images.h5`.

    img_identifiers [N]               names of the photographs, with or without suffix
    taxa_L10, taxa_L20, ... [N]       ids of taxa by level (10 species, 20 genus, ...); 0 or less: unknown
    in_region [N]                     1: inside the region of the data set
    spatial, temporal, elevation_*    encoded metadata, and raw_*: `h5_metadata.py`

`data.filters` determines the rows that are left out, in the order of the original program. The remaining rows are split like in the
original program: the first part of `RandomState(split_seed).permutation(rows)` is for training. This split is the column `split`; with
data.split_column=null the data are split like other formats. Other columns of the file, such as observer_id, can be used by their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.config import LabelsH5Config
from linnaeus.workloads.taxonomy.images.image_files import MISSING, NO_PATH, clean_path
from linnaeus.workloads.taxonomy.manifest.records import (
    Choose,
    Records,
    column_of,
    distinct_names,
    in_folder,
    local_or_url,
    photographs_in,
)
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.sources.folders.image_folder import SUFFIXES
from linnaeus.workloads.taxonomy.sources.h5.h5_file import check_texts, is_text, opened
from linnaeus.workloads.taxonomy.sources.h5.h5_images import H5Images
from linnaeus.workloads.taxonomy.sources.h5.h5_metadata import H5Metadata

RANKS = {  # level -> rank, as iNaturalist numbers them
    **{"5": "subspecies", "10": "species", "11": "complex", "12": "subsection", "13": "section", "15": "subgenus", "20": "genus"},
    **{"24": "subtribe", "25": "tribe", "26": "supertribe", "27": "subfamily", "30": "family", "32": "epifamily", "33": "superfamily"},
    **{"33.5": "zoosubsection", "34": "zoosection", "34.5": "parvorder", "35": "infraorder", "37": "suborder", "40": "order"},
    **{"43": "superorder", "44": "subterclass", "45": "infraclass", "47": "subclass", "50": "class", "53": "superclass"},
    **{"57": "subphylum", "60": "phylum", "67": "subkingdom", "70": "kingdom", "100": "stateofmatter"},
}
_LEVEL = re.compile(r"taxa_L(\d+(?:[._]5)?)")
FILTERS = ("out_of_region", "no_spatial", "no_temporal", "no_elevation", "null_label", "null_below")  # in the original's order
_ENCODED = ("spatial", "temporal", "raw_lat", "raw_lon", "raw_elevation", "raw_date_observed")


def read_records(config: LabelsH5Config, choose: Choose) -> Records:
    """Return the rows of a labels.h5 that its filters keep, in the order of the file.

    Raise `ConfigError` if h5py is not installed, if the file is not a labels.h5 of the original program, or if no row is left."""
    _check_filters(config.filters)
    path = Path(config.path).expanduser()
    with opened(path, "data.path") as file:
        check_texts(path, "data.path")
        labels = Labels(file, path, config)
        names = choose(list(labels.columns))
        keep, excluded = labels.kept()
        if not len(keep):
            raise ConfigError(f"data.path: no row of {quoted(str(path), 120)} is left: {_counts(excluded)}; set data.filters=[]")
        images = H5Images.of(Path(config.images).expanduser(), labels.paths) if config.images is not None else None
        if images is not None and "path" not in names:
            raise ConfigError("data.image_column: the photographs of data.images are those of the rows; leave data.image_column=auto")
        chosen = {name: labels.columns[name]() for name in names if name != "split"}
        if "split" in names:
            sizes = images.sizes()[keep] if images is not None else _stat(config, path.parent, labels.paths, keep)
            chosen["split"] = _original_split(config, keep, sizes, len(labels.paths))
        table = Table({name: chosen[name] for name in names}, excluded=excluded, notes=tuple(labels.notes)).take(keep)
    if images is None:
        return in_folder(table, config, path.parent)
    return Records(table, lambda distinct: images, str(config.images))  # the names of all rows are distinct, and in their order


class Labels:
    """Columns of an open labels.h5. `columns`: name -> function that returns the column. `paths`: [N], names of the photographs."""

    def __init__(self, file: Any, path: Path, config: LabelsH5Config) -> None:
        self.file, self.path, self.config = file, path, config
        self.notes: list[str] = []
        self.paths = self._paths()
        levels = {found[1].replace("_", "."): name for name in file if (found := _LEVEL.fullmatch(name))}
        named = sorted((level for level in levels if level in RANKS), key=float, reverse=True)
        if not named:
            raise ConfigError(f"data.path: {quoted(str(path), 120)} has no dataset named taxa_L10, taxa_L20, ...: {list_some(list(file))}")
        self.ranks = {RANKS[level]: levels[level] for level in named}
        self.metadata = H5Metadata(self)
        self.columns: dict[str, Callable[[], Column]] = {"path": lambda: column_of(self.paths)}
        self.columns |= {rank: partial(self._taxon, rank) for rank in self.ranks}
        self.columns |= {"taxon_id": self._finest, **self.metadata.columns()}
        taken = {"img_identifiers", *_ENCODED, *self.ranks.values(), *self.columns, "split"}
        others = [name for name in file if name not in taken and not name.startswith("elevation_") and self._is_column(name)]
        self.columns |= {name: partial(self._other, name) for name in others}
        self.columns["split"] = lambda: column_of([])  # made after the filters

    def array(self, name: str, kind: str, width: int | None = None) -> np.ndarray:
        """Return a dataset of numbers with a row per photograph, [N] or, if `width` is given, [N, width].

        `kind`: "f" for floats, "i" for integers. Raise `ConfigError` if the dataset has another shape or type."""
        data = self.file[name]
        dtype = getattr(data, "dtype", None)
        shape = (len(self.paths),) if width is None else (len(self.paths), width)
        wanted = "iub" if kind == "i" else "fiu"
        if dtype is None or dtype.kind not in wanted or data.shape != shape:
            found = f"{dtype} {list(getattr(data, 'shape', None) or [])}" if dtype is not None else "a group"
            what = f"{'integers' if kind == 'i' else 'numbers'} {list(shape)}"
            raise ConfigError(f"data.path: {name!r} of {quoted(str(self.path), 120)} is {found}; it must be {what}, a row per photograph")
        return data[:]

    def texts(self, name: str) -> list[str]:
        """Return the texts of a dataset, [N], without surrounding spaces. Raise `ConfigError` if the dataset has another shape or type."""
        data = self.file[name]
        if getattr(data, "shape", None) != (len(self.paths),) or not is_text(data):
            raise ConfigError(f"data.path: {name!r} of {quoted(str(self.path), 120)} must be {counted(len(self.paths), 'string')}")
        return [_text(value) for value in data[:]]

    def taxa(self, rank: str) -> np.ndarray:
        """Return the ids of the taxa at a rank, int64 [N]; 0: unknown. Numbers below 0, such as -1, are unknown, too."""
        return np.maximum(self.array(self.ranks[rank], "i").astype(np.int64), 0)

    def kept(self) -> tuple[np.ndarray, LeftOut]:
        """Return the row numbers that remain after data.filters, int64 [K], and the rows that are left out, with reasons."""
        used = [rank for rank in self.ranks if self.config.ranks is None or rank in self.config.ranks] or list(self.ranks)
        known = np.stack([self.taxa(rank) > 0 for rank in used], axis=1)  # coarse to fine
        gap = np.logical_or.accumulate(known, axis=1) & ~known  # below a known taxon
        rows: dict[str, Callable[[], np.ndarray]] = {
            "out_of_region": self._out_of_region,
            **{f"no_{part}": partial(self.metadata.missing, part) for part in ("spatial", "temporal", "elevation")},
            "no label": lambda: np.asarray(~known.any(axis=1)),
            "null_label": lambda: np.asarray(~known.all(axis=1)),
            "null_below": lambda: np.asarray(gap.any(axis=1)),
        }
        excluded = LeftOut()
        keep = np.ones(len(known), dtype=bool)
        for name, find in rows.items():
            if name != "no label" and name not in self.config.filters:
                continue
            left_out = keep & find()
            reason = "no label at any rank" if name == "no label" else f"{name} (in data.filters)"
            excluded.add_rows(reason, np.flatnonzero(left_out) + 1, self.path.name)
            keep &= ~left_out
        return np.flatnonzero(keep), excluded

    def _paths(self) -> list[str]:
        data = self.file.get("img_identifiers")
        if data is None or getattr(data, "ndim", None) != 1 or not is_text(data):
            raise ConfigError(f"data.path: {quoted(str(self.path), 160)} does not have strings named img_identifiers, a row per photograph")
        if len(data) > os.path.getsize(self.path):
            raise ConfigError(
                f"data.path: {quoted(str(self.path), 160)} has {len(data)} img_identifiers, more than its bytes: it is damaged"
            )
        names = [clean_path(_text(value)) for value in data[:]]
        if self.config.images is None:
            bare = [row for row, name in enumerate(names) if name and name.rpartition(".")[2].lower() not in SUFFIXES]
            folder = local_or_url(self.config.root) if self.config.root is not None else self.path.parent
            suffix = _suffix([names[row] for row in bare[:100]], folder)
            for row in bare:
                names[row] += suffix
            return names
        return distinct_names(names)

    def _out_of_region(self) -> np.ndarray:
        if "in_region" not in self.file:
            raise ConfigError("data.filters: out_of_region needs a dataset in_region, which the file does not have; leave it out")
        return self.array("in_region", "i") == 0

    def _taxon(self, rank: str) -> Column:
        return _numbers(self.taxa(rank))

    def _finest(self) -> Column:
        finest = np.zeros(len(self.paths), dtype=np.int64)
        for rank in self.ranks:  # coarse to fine
            finest = np.where((taxa := self.taxa(rank)) > 0, taxa, finest)
        return _numbers(finest)

    def _is_column(self, name: str) -> bool:
        data = self.file[name]
        return getattr(data, "shape", None) == (len(self.paths),) and (data.dtype.kind in "iufb" or is_text(data))

    def _other(self, name: str) -> Column:
        data = self.file[name]
        if is_text(data):
            return column_of(self.texts(name))
        return _numbers(data[:], null=0 if name == "observer_id" else None)


def _original_split(config: LabelsH5Config, keep: np.ndarray, sizes: np.ndarray, rows: int) -> Column:
    """Return the column `split` of K rows, "train" or "val", as the original program splits them.

    `keep`: int64 [K], rows that remain after the filters. `sizes`: [K], sizes of their files. `rows`: number of rows in the file."""
    valid = keep[(sizes != MISSING) & (sizes != NO_PATH)]
    order = np.random.RandomState(config.split_seed % 2**32).permutation(len(valid))
    codes = np.zeros(rows, dtype=np.int32)
    codes[valid[order[int(len(valid) * round(1 - config.validation_share, 12)) :]]] = 1
    return Column(codes, ["train", "val"])


def _stat(config: LabelsH5Config, folder: Path, paths: Sequence[str], keep: np.ndarray) -> np.ndarray:
    root = local_or_url(config.root) if config.root is not None else folder
    return photographs_in(root, [paths[row] for row in keep]).sizes()


def _numbers(values: np.ndarray, null: int | None = 0) -> Column:
    """Convert N integers or floats to a column of texts; `null` and NaN become empty cells."""
    distinct, codes = np.unique(values, return_inverse=True)
    cells = ["" if value == null or value != value else str(value) for value in distinct]
    return Column(codes.astype(np.int32), cells)


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace").strip() if isinstance(value, bytes) else str(value).strip()


def _suffix(names: Sequence[str], root: Path | str) -> str:
    """Return the suffix of the first file in `root` whose name is one of `names` plus a suffix of a photograph; `.jpg` without such a
    file."""
    suffixes = [f".{suffix}" for suffix in ("jpg", "jpeg", "png", "webp", "JPG", "JPEG", "PNG")]
    for name in names:
        exist = photographs_in(root, [f"{name}{suffix}" for suffix in suffixes]).sizes() >= 0
        if exist.any():
            return suffixes[int(np.argmax(exist))]
    return ".jpg"


def _check_filters(filters: Sequence[str]) -> None:
    if wrong := [name for name in filters if name not in FILTERS]:
        raise ConfigError(f"data.filters: {quoted(wrong[0])} is not a filter; choose from {', '.join(FILTERS)}")


def _counts(excluded: dict[str, int]) -> str:
    return list_some([f"{reason} ({count})" for reason, count in excluded.items()]) or "it has none"
