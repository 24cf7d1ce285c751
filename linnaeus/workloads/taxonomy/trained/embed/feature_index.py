"""Read a file of features that `linnaeus embed` wrote, as a `FeatureIndex`, in which `linnaeus nearest` searches."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.errors import ConfigError, one_line, quoted
from linnaeus.workloads.taxonomy.trained.embed.feature_files import FORMAT, KEY, SUFFIXES, VERSION, Head, head_file, names_file


@dataclass(frozen=True)
class FeatureIndex:
    """Features of N photographs, as `linnaeus embed` wrote them. Photographs that could not be read at that time are left out."""

    path: Path
    head: Head
    names: list[str]  # paths of the photographs
    features: np.ndarray  # float32 [M, width], M >= N; the features of an .npy file are memory-mapped
    rows: np.ndarray  # int64 [N]: the row of `features` that belongs to each photograph

    def __len__(self) -> int:
        return len(self.names)

    def block(self, first: int, last: int) -> Tensor:
        """Return the features of photographs `first` to `last` - 1, float32 [B, width], each divided by its length."""
        return F.normalize(torch.from_numpy(self.features[self.rows[first:last]]))

    @property
    def unread(self) -> int:
        """Return the number of photographs that are left out."""
        return self.head.photographs - len(self)


def read_index(path: Path, key: str = "INDEX") -> FeatureIndex:
    """Return the features in a file. `key`: start of error messages.

    Raise `ConfigError` for a file that `linnaeus embed` did not write, or did not complete."""
    try:
        if path.suffix.lower() not in SUFFIXES:
            raise ConfigError(f"its name must end in {' or '.join(SUFFIXES)}")
        return _of_npy(path) if path.suffix.lower() == ".npy" else _of_parquet(path)
    except ConfigError as error:
        raise ConfigError(f"{key}: {path}: {error}") from None
    except OSError as error:
        name = Path(error.filename or path).name
        raise ConfigError(f"{key}: {name} cannot be read ({error.strerror or one_line(error)}); write it with `linnaeus embed`") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError, csv.Error) as error:  # also of numpy and pyarrow
        raise ConfigError(f"{key}: {path} is damaged ({one_line(error)}); write it again with `linnaeus embed`") from None


def _of_npy(path: Path) -> FeatureIndex:
    features = np.load(path, mmap_mode="r", allow_pickle=False)
    head = _head(json.loads(head_file(path).read_text(encoding="utf-8")))
    with open(names_file(path), encoding="utf-8", newline="") as file:
        table = [(row["photograph"], row["error"]) for row in csv.DictReader(file)]
    if features.dtype != np.float32 or features.shape != (head.photographs, head.width) or len(table) != head.photographs:
        raise ConfigError(f"it does not belong to {names_file(path).name} and {head_file(path).name}; write it again with `linnaeus embed`")
    rows = [row for row, (_, error) in enumerate(table) if not error]
    return FeatureIndex(path, head, [table[row][0] for row in rows], features, np.array(rows, np.int64))


def _of_parquet(path: Path) -> FeatureIndex:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("Parquet needs pyarrow (pip install pyarrow); write an .npy file") from None
    table = pq.read_table(path)
    head = _head(json.loads((table.schema.metadata or {}).get(KEY, b"{}")))
    table = table.filter(table["features"].is_valid())
    flat = table["features"].combine_chunks().flatten().to_numpy()
    names = table["photograph"].to_pylist()
    if flat.dtype != np.float32:
        raise ConfigError(f"its features are {flat.dtype}, not float32; write it again with `linnaeus embed`")
    return FeatureIndex(path, head, names, flat.reshape(len(names), head.width), np.arange(len(names)))


def _head(content: Mapping[str, Any]) -> Head:
    """Return the description of a file of features from its JSON content. Raise `ConfigError` for another format or version, and
    `TypeError` for a value of another type."""
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise ConfigError(f"it is not a file of `linnaeus embed`, version {VERSION}; write it with this command")
    for name, kind in get_type_hints(Head).items():
        if type(content[name]) is not kind:
            raise TypeError(f"{name} is {quoted(content[name])}")
    return Head(**{name: content[name] for name in Head.__dataclass_fields__})
