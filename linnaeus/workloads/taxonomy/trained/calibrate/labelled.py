"""Labelled photographs for a trained classifier: the validation or test rows of its run, or a manifest whose taxa are matched with its own.

`TaxonIndex` matches the taxa. Those that it does not find are unknown to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, shorten
from linnaeus.workloads.taxonomy.manifest.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import VALIDATION, Metadata, UndecodableImage
from linnaeus.workloads.taxonomy.trained.manifest_configuration import manifest_configuration
from linnaeus.workloads.taxonomy.trained.taxon_index import TaxonIndex
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

Read = Callable[[int], np.ndarray]  # photograph number -> uint8 [H, W, 3]; raises NotAnImage or OSError


@dataclass(frozen=True)
class Labelled:
    """N photographs with labels."""

    names: Sequence[str]
    read: Read
    labels: np.ndarray  # int64 [N, R] in the tree of the model, -1 for null
    unknown: np.ndarray  # bool [N]: it has a taxon that the model does not know
    metadata: Metadata
    group: np.ndarray | None  # int64 [N], the observations; None: all differ
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> Labelled:
        """Return the photographs of the given rows, int64 [M]."""
        group, names, read = None if self.group is None else self.group[rows], self.names, self.read
        return replace(
            self,
            names=[names[i] for i in rows.tolist()],
            read=lambda i: read(int(rows[i])),
            labels=self.labels[rows],
            unknown=self.unknown[rows],
            metadata=self.metadata.take(rows),
            group=group,
        )


def of_run(run: Path, split: str, tree: TaxonomyTree) -> Labelled:
    """Return the validation or test rows of a run. Raise `ConfigError` if its data cannot be read, or have other taxa."""
    from linnaeus.config.load import typed_config
    from linnaeus.rundir.saved_config import fill_defaults
    from linnaeus.rundir.saved_run import read_configuration
    from linnaeus.workloads.taxonomy.workload import build_data_source

    config = typed_config(fill_defaults(read_configuration(run)[0])[0])
    source = build_data_source(config, test=split == "test")[0]
    if source.tree.fingerprint() != tree.fingerprint():
        raise ConfigError(f"{run}: its data have other taxa now than in the training; use --manifest with the labelled photographs")
    rows = np.flatnonzero(source.split == VALIDATION)
    images = source.images

    def read(i: int) -> np.ndarray:
        try:
            return images.read(rows[i : i + 1])[0]
        except UndecodableImage as error:
            raise NotAnImage(str(error)) from error

    names, group = source.ids[rows].tolist(), None if source.group is None else source.group[rows]
    return Labelled(names, read, source.labels[rows], np.zeros(len(rows), bool), source.metadata.take(rows), group)


def of_manifest(path: str, overrides: Sequence[str], tree: TaxonomyTree, components: Sequence[str], decode: Callable) -> Labelled:
    """Return the rows of a CSV or Parquet manifest. `overrides`: settings of data=manifest. `components`: metadata that the model reads.
    `decode(files, row)` returns a photograph. Raise `ConfigError` for a table that cannot be read or has none of the taxa."""
    from linnaeus.workloads.taxonomy.manifest.clean_records import read_clean

    config = manifest_configuration(path, overrides)
    records, config = read_clean(replace(config, components=list(components), split_column=None, weight_column=None), test=None)
    labels, unknown, notes = matched(records.tree, records.labels, tree)
    column = None if config.group_column is None else records.columns[config.group_column]
    group = None if column is None else column.codes.astype(np.int64)
    files = records.files
    excluded = [f"left out: {reason} ({count})" for reason, count in records.excluded.items()]
    return Labelled(
        files.names.tolist(), lambda i: decode(files, i), labels, unknown, records.metadata, group, (*records.notes, *excluded, *notes)
    )


def matched(theirs: TaxonomyTree, labels: np.ndarray, tree: TaxonomyTree) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return labels int64 [N, R] in `tree`, bool [N], True for a row with a taxon that `tree` does not have, and lines about those taxa.

    `labels`: int64 [N, R'] in the tree `theirs`. Raise `ConfigError` if no label is a taxon of `tree`."""
    out = np.full((len(labels), len(tree.ranks)), -1, dtype=np.int64)
    unknown = np.zeros(len(labels), dtype=bool)
    notes, index = [], TaxonIndex(tree)
    for r, rank in enumerate(tree.ranks):
        if rank not in theirs.ranks:
            notes.append(f"the labels have no rank {rank}")
            continue
        own = labels[:, theirs.rank_index(rank)]
        found = _classes(theirs, index, rank)
        out[:, r] = found[own]
        missing = (own >= 0) & (out[:, r] < 0)
        unknown |= missing
        if missing.any():
            taxa = [shorten(theirs.names[theirs.rank_index(rank)][c]) for c in np.unique(own[missing])[:3]]
            count = len(np.unique(own[missing]))
            notes.append(f"{count:,} taxa of rank {rank} are unknown to the model ({int(missing.sum()):,} photographs): {', '.join(taxa)}")
    if not (out >= 0).any():
        raise ConfigError(f"--manifest: none of its labels is a taxon of the model; its ranks are {', '.join(tree.ranks)}")
    return out, unknown, notes


def _classes(theirs: TaxonomyTree, index: TaxonIndex, rank: str) -> np.ndarray:
    """Return the class of the model of each class of `theirs` at a rank, -1 for none; then -1, for null labels: int64 [C' + 1]."""
    own, names = index.tree.rank_index(rank), theirs.names[theirs.rank_index(rank)]
    found = [index.find(own, text, name) for text, name in zip(theirs.lineage_ids(rank), names, strict=True)]
    return np.maximum(np.array([*found, -1], dtype=np.int64), -1)
