"""Read labelled photographs for a trained classifier, from the training, validation or test rows of its run or from a manifest.

`TaxonIndex` looks up the labels of a manifest in the model's tree of taxa. A label that `TaxonIndex` does not find is unknown to the
model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linnaeus.errors import ConfigError, counted, quoted, shorten
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.manifest.clean_records import CleanRecords, read_clean
from linnaeus.workloads.taxonomy.manifest.splitting.split import find_groups
from linnaeus.workloads.taxonomy.observations import Metadata, UndecodableImage
from linnaeus.workloads.taxonomy.trained.photographs.manifest_configuration import manifest_configuration
from linnaeus.workloads.taxonomy.trained.photographs.split_rows import rows_of_run
from linnaeus.workloads.taxonomy.trained.restrictions.restriction import Restriction
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

Read = Callable[[int], np.ndarray]  # photograph number -> uint8 [H, W, 3]; raises NotAnImage or OSError


@dataclass(frozen=True)
class Labelled:
    """N photographs with labels, metadata and observations. `read(i)` returns the pixels of photograph i."""

    names: Sequence[str]
    read: Read
    labels: np.ndarray  # int64 [N, R]: classes in the model's tree, -1 for null
    unknown: np.ndarray  # bool [N]: True if a label is a taxon that the model does not have
    metadata: Metadata
    group: np.ndarray | None  # int64 [N]: observation of each photograph; None: each is its own observation
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # those of the notes that say which photographs or labels are not used

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> Labelled:
        """Return the photographs at the positions `rows`, int64 [M]."""
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


def of_run(run: Path, split: str, tree: TaxonomyTree, components: Sequence[str]) -> Labelled:
    """Return the labelled photographs of the run in the directory `run` that belong to a split.

    `split`: "training", "validation" or "test". `tree`: taxa of the model. `components`: metadata components to read. Raise `ConfigError`
    if the data of the run cannot be read, or if the taxa of the data differ from `tree`."""
    source, rows = rows_of_run(run, split, components)
    if source.tree.fingerprint() != tree.fingerprint():
        raise ConfigError(f"{run}: its data have other taxa now than in the training; use --manifest with the labelled photographs")
    images = source.images

    def read(i: int) -> np.ndarray:
        try:
            return images.read(rows[i : i + 1])[0]
        except UndecodableImage as error:
            raise NotAnImage(str(error)) from error

    names, group = source.ids[rows].tolist(), None if source.group is None else source.group[rows]
    return Labelled(names, read, source.labels[rows], np.zeros(len(rows), bool), source.metadata.take(rows), group)


def of_manifest(
    path: str, overrides: Sequence[str], tree: TaxonomyTree, components: Sequence[str], decode: Callable, run: Path
) -> Labelled:
    """Return the photographs of a labelled CSV or Parquet manifest on which the run in the directory `run` was not trained. `tree`: taxa
    of the model.

    `overrides`: settings of data=manifest. `components`: metadata components that the model reads. `decode(files, row)` returns the pixels
    of a photograph, uint8 [H, W, 3]. Raise `ConfigError` for a table that cannot be read, has no taxon of the model, or has only training
    photographs of the run."""
    from linnaeus.workloads.taxonomy.trained.calibrate.training_photographs import without_training

    rows = read_labels(path, overrides, components)
    found = matched(rows.records.tree, rows.records.labels, tree)
    files = rows.records.files
    kept, compared = without_training(run, files, rows.group)
    unused = (*found.notes, *compared)
    data = Labelled(
        files.names.tolist(),
        lambda i: decode(files, i),
        found.labels,
        np.any(found.unknown, axis=1),
        rows.records.metadata,
        rows.group,
        (*rows.notes, *group_note(rows), *unused),
        unused,
    )
    return data.take(kept)


class LabelRows(NamedTuple):
    """N rows of a labelled manifest, with the observation of each row and notes for the user."""

    records: CleanRecords
    group: np.ndarray | None  # int64 [N]: observation of each row, or photograph without a group column; None: each row is its own
    notes: tuple[str, ...]
    column: str | None  # data.group_column


def read_labels(path: str, overrides: Sequence[str], components: Sequence[str], more: Sequence[str] = ()) -> LabelRows:
    """Return the rows of a labelled CSV or Parquet manifest. Labels are classes of a tree that is made from the manifest.

    `overrides`: settings of data=manifest. `components`: metadata components to read. `more`: further columns to read. Raise `ConfigError`
    for a table that cannot be read, and for a column that does not exist."""
    config = replace(manifest_configuration(path, overrides), components=list(components), split_column=None, weight_column=None)
    records, config = read_clean(config, test=None, more=more)
    notes = [*records.notes, *(f"left out: {reason} ({count})" for reason, count in records.excluded.items())]
    column = None if config.group_column is None else records.columns[config.group_column]
    groups = find_groups(column, records.files.names)
    if column is None:
        repeated = len(groups.digest) < len(groups.number)  # rows with the same photograph are one observation
        return LabelRows(records, groups.number if repeated else None, tuple(notes), None)
    if groups.ungrouped:
        missing = f"{quoted(config.group_column)} is missing in {counted(groups.ungrouped, 'row')}"
        notes.append(f"{missing}; each photograph in them counts as an observation of its own")
    return LabelRows(records, groups.number, tuple(notes), config.group_column)


def group_note(rows: LabelRows, by: str | None = None) -> list[str]:
    """Return a line that proposes a column of the manifest as data.group_column, if none is set and the manifest has a likely column; else
    [].

    `by`: column that is read for another purpose and not proposed."""
    if rows.column is not None:
        return []
    return [
        f"every photograph counts as an observation; --setting data.group_column={name} uses {name}"
        for name in [name for name in rows.records.columns if name != by][:1]
    ]


class Matched(NamedTuple):
    """Labels of N rows as classes of a model, and the labels that are not scored: taxa that the model does not have, and taxa that a
    restriction excludes."""

    labels: np.ndarray  # int64 [N, R], -1 for null and for a label that is not scored
    unknown: np.ndarray  # bool [N, R]: the label is a taxon that the model does not have
    excluded: np.ndarray  # bool [N, R]: the label is a taxon of the model that the restriction excludes
    notes: list[str]  # about the labels that are not scored

    @property
    def unscored(self) -> np.ndarray:
        """Return a mask of the labels that are not scored, bool [N, R]. No prediction can be equal to them."""
        return self.unknown | self.excluded


def matched(theirs: TaxonomyTree, labels: np.ndarray, tree: TaxonomyTree) -> Matched:
    """Convert `labels`, int64 [N, R'], from classes of the tree `theirs` to classes of the model's tree `tree`.

    A missing label is replaced by the ancestor of the finest label that the model has. Raise `ConfigError` if no label is a taxon of
    `tree`."""
    out = np.full((len(labels), len(tree.ranks)), -1, dtype=np.int64)
    unknown = np.zeros(out.shape, dtype=bool)
    notes, index = [], TaxonIndex(tree)
    for r, rank in enumerate(tree.ranks):
        if rank not in theirs.ranks:
            continue
        own = labels[:, theirs.rank_index(rank)]
        found = np.append(classes_of(theirs, index, rank), -1)  # the last one for missing labels
        out[:, r] = found[own]
        missing = (own >= 0) & (out[:, r] < 0)
        unknown[:, r] = missing
        if missing.any():
            names, lost = theirs.names[theirs.rank_index(rank)], np.unique(own[missing])
            count, taxa = len(lost), [shorten(name) for name in [*dict.fromkeys(names[c] for c in lost)][:3]]
            photographs = counted(int(missing.sum()), "photograph")
            notes.append(f"unknown to the model: {counted(count, f'{rank} taxon')} ({photographs}): {', '.join(taxa)}")
    if not (out >= 0).any():
        raise ConfigError(f"--manifest: none of its labels is a taxon of the model; its ranks are {', '.join(tree.ranks)}")
    out = _with_ancestors(out, unknown, tree)
    for r, rank in enumerate(tree.ranks):
        if rank not in theirs.ranks:
            notes.append(f"the labels have no rank {rank}" + (": it follows from finer ranks" if (out[:, r] >= 0).any() else ""))
    return Matched(out, unknown, np.zeros_like(unknown), notes)


def _with_ancestors(labels: np.ndarray, unknown: np.ndarray, tree: TaxonomyTree) -> np.ndarray:
    """Return `labels`, int64 [N, R], with missing labels replaced by the ancestors of the finest label of each row.

    Otherwise an answer of a coarse rank would be judged only where the finer taxa are right, and be right there. `unknown`: bool [N, R];
    these labels stay -1."""
    finest = (labels >= 0).cumsum(axis=1).argmax(axis=1)
    own = labels[np.arange(len(labels)), finest]
    above = tree.paths[np.where(own >= 0, own + np.array(tree.offsets)[finest], -1)]
    return np.where((labels < 0) & ~unknown, above, labels)


def among_possible(found: Matched, restriction: Restriction | None) -> Matched:
    """Return the labels with the taxa that `restriction` excludes marked: -1 in `labels`, and True in `excluded`.

    `restriction` None: return `found` unchanged. Raise `ConfigError` if no label is a possible taxon."""
    if restriction is None:
        return found
    labels, excluded, notes = found.labels.copy(), found.excluded.copy(), [*found.notes]
    tree = restriction.tree
    for r, (rank, possible) in enumerate(zip(tree.ranks, np.split(restriction.possible, tree.offsets[1:-1]), strict=True)):
        lost = np.flatnonzero(labels[:, r] >= 0)
        lost = lost[~possible[labels[lost, r]]]
        labels[lost, r], excluded[lost, r] = -1, True
        if len(lost):
            notes.append(f"not scored at rank {rank}: {counted(len(lost), 'photograph')} of a taxon that is not possible")
    if not (labels >= 0).any():
        raise ConfigError("--manifest: none of its labels is a possible taxon; leave the restriction out, or choose another")
    return Matched(labels, found.unknown, excluded, notes)


def classes_of(theirs: TaxonomyTree, index: TaxonIndex, rank: str) -> np.ndarray:
    """Return, for each of the C' classes of the tree `theirs` at `rank`, the model's class of the same taxon, int64 [C']; -1 if there is
    none.

    `index`: taxa of the model."""
    own, their = index.tree.rank_index(rank), theirs.rank_index(rank)
    paths = theirs.paths[theirs.offsets[their] : theirs.offsets[their + 1], :their].tolist()
    found = []
    for text, name, path in zip(theirs.lineage_ids(rank), theirs.names[their], paths, strict=True):
        coarser = {theirs.ranks[r]: theirs.names[r][c] for r, c in enumerate(path) if c >= 0}
        found.append(index.find(own, text, name, coarser))
    return np.maximum(np.array(found, dtype=np.int64), -1)
