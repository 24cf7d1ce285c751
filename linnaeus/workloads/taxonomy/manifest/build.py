"""From a manifest to a `Source`: read, check the files, clean, split, number the taxa, choose the ranks.

Rows leave for a reason that is counted (`Source.excluded`); cells that mean nothing become null and are counted in the notes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.components import COMPONENTS
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.cleaning import Tally, clean_metadata, clean_weights
from linnaeus.workloads.taxonomy.manifest.columns import Columns, choose_ranks, resolve_columns
from linnaeus.workloads.taxonomy.manifest.files import REASONS, file_sizes
from linnaeus.workloads.taxonomy.manifest.images import ManifestImages
from linnaeus.workloads.taxonomy.manifest.labels import Labels, labels_of
from linnaeus.workloads.taxonomy.manifest.split import LEFT_OUT, group_numbers, made_split, stated_split
from linnaeus.workloads.taxonomy.manifest.table import Table, read_table
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Metadata, Source
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@dataclass(frozen=True)
class _Rows:
    """The rows of the manifest that take part, and what became of the others."""

    table: Table
    paths: np.ndarray
    sizes: np.ndarray
    split: np.ndarray | None  # as the manifest states it
    excluded: dict[str, int]
    unreadable: tuple[tuple[str, str], ...]
    notes: list[str]


def build_source(config: ManifestConfig) -> Source:
    """The source a manifest describes. Raises ConfigError for what cannot be read, found, split or learnt."""
    path = Path(config.path).expanduser()
    found: list[Columns] = []  # the header is only known once the file is open

    def choose(header: Sequence[str]) -> tuple[str, ...]:
        found.append(resolve_columns(config, header))
        return found[-1].used

    table = read_table(path, choose)
    columns = found[-1]
    root = Path(config.root).expanduser() if config.root is not None else path.parent
    if not root.is_dir():
        raise ConfigError(f"data.root: {str(root)!r} is not a folder; give the one the image paths are relative to")
    labels = labels_of(columns, config)
    rows = _usable(table, columns, labels, root, config)
    return _build(rows, columns, labels, root, config)


def _build(rows: _Rows, columns: Columns, read: Labels, root: Path, config: ManifestConfig) -> Source:
    found = read.read(rows.table)
    tree, labels = TaxonomyTree.from_codes(found.ranks, found.names, found.codes, found.keys)
    notes = rows.notes + found.notes + tree.conflicts(labels)
    tally = Tally(rows.paths)
    tally.add("the same photograph in an earlier row", _repeated(rows.paths))
    metadata = clean_metadata(rows.table, columns, config.elevation_missing, tally)
    weights = clean_weights(rows.table, columns, tally)
    notes += tally.notes()
    split, group, split_notes = _split(rows, columns, tree, labels, config)
    tree, labels, class_notes = _classes_of_training(tree, labels, split)
    ranks, rank_notes = choose_ranks(config, tree.ranks, tree.sizes)
    labels = labels[:, [tree.ranks.index(rank) for rank in ranks]]
    tree = tree.subset(ranks)
    keep = np.flatnonzero((labels >= 0).any(axis=1))
    excluded = dict(rows.excluded)
    if len(keep) < len(labels):
        excluded["no label at the ranks predicted"] = len(labels) - len(keep)
    labels, split, paths, sizes = labels[keep], split[keep], rows.paths[keep], rows.sizes[keep]
    metadata = Metadata(*(getattr(metadata, f.name)[keep] for f in fields(Metadata)))
    weight, weight_notes = _relative(weights[keep], split, columns.weight) if weights is not None else (None, [])
    notes += weight_notes + split_notes + class_notes + rank_notes + _component_notes(columns, config)
    notes += [f"{count} rows left out: {reason}" for reason, count in excluded.items()]
    notes.append(f"{int((split == TRAIN).sum())} training and {int((split == VALIDATION).sum())} validation rows")
    if not (split == VALIDATION).any():
        raise ConfigError("data: no validation row has a label known from training; check the split and the taxon names")
    return Source(
        tree=tree,
        ids=paths,
        labels=labels,
        metadata=metadata,
        split=split,
        images=ManifestImages(str(root), paths, config.image_size, config.max_image_pixels),
        fingerprint=_fingerprint(tree, paths, sizes, labels, metadata, split, weight),
        weight=weight,
        group=group[keep] if group is not None else None,
        excluded=excluded,
        unreadable=rows.unreadable,
        notes=tuple(notes),
    )


def _usable(table: Table, columns: Columns, labels: Labels, root: Path, config: ManifestConfig) -> _Rows:
    """Leave out rows without a readable file, without any label, or held out as a test. Raises ConfigError past the limit."""
    notes = list(table.notes)
    excluded = {"another number of cells than the header": table.malformed} if table.malformed else {}
    paths, sizes = file_sizes(root, table.columns[columns.image])
    split, split_notes = stated_split(table.columns[columns.split], columns.split) if columns.split is not None else (None, [])
    takes_part = np.ones(len(table), dtype=bool) if split is None else split != LEFT_OUT
    if not takes_part.all():
        excluded["held out as a test by the split column"] = int((~takes_part).sum())
    bad = takes_part & (sizes <= 0)
    for code, reason in REASONS.items():
        count = int((bad & (sizes == code)).sum())
        excluded |= {reason: count} if count else {}
    unreadable = tuple((str(paths[i]) or f"row {i + 1}", REASONS[int(sizes[i])]) for i in np.flatnonzero(bad))
    _check_unreadable(unreadable, int(takes_part.sum()), root, config)
    takes_part = takes_part & ~bad
    for reason, rows in labels.lacking(table, takes_part).items():
        excluded |= {reason: int(rows.sum())} if rows.any() else {}
        takes_part = takes_part & ~rows
    keep = np.flatnonzero(takes_part)
    if not len(keep):
        raise ConfigError(f"data.path: no row of {config.path!r} is usable: {excluded}")
    split = split[keep] if split is not None else None
    return _Rows(table.take(keep), paths[keep], sizes[keep], split, excluded, unreadable, notes + split_notes)


def _check_unreadable(unreadable: tuple[tuple[str, str], ...], rows: int, root: Path, config: ManifestConfig) -> None:
    if len(unreadable) > config.max_bad_fraction * rows:
        shown = ", ".join(f"{name} ({reason})" for name, reason in unreadable[:3])
        raise ConfigError(
            f"data.max_bad_fraction: {len(unreadable)} of {rows} image files under {str(root)!r} cannot be used, more than "
            f"{config.max_bad_fraction:g}: {shown}{', ...' if len(unreadable) > 3 else ''}; check data.root and data.image_column"
        )


def _repeated(paths: np.ndarray) -> np.ndarray:
    first = np.unique(paths, return_index=True)[1]
    repeated = np.ones(len(paths), dtype=bool)
    repeated[first] = False
    return repeated


def _split(
    rows: _Rows, columns: Columns, tree: TaxonomyTree, labels: np.ndarray, config: ManifestConfig
) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """int8 [N] the split, int64 [N] the groups if a column names them, and notes."""
    column = rows.table.columns[columns.group] if columns.group is not None else None
    names, groups, ungrouped = group_numbers(column, rows.paths)
    notes = [f"{ungrouped} rows have no {columns.group!r} and are groups of their own"] if ungrouped else []
    if rows.split is not None:
        split = rows.split
        for side, word in ((TRAIN, "training"), (VALIDATION, "validation")):
            if not (split == side).any():
                raise ConfigError(f"data.split_column: no usable {word} rows are left: {rows.excluded}")
        sides = [np.bincount(groups[split == side], minlength=len(names)) > 0 for side in (TRAIN, VALIDATION)]
        torn = int((sides[0] & sides[1]).sum())
        what = f"groups of {columns.group!r}" if column is not None else "photographs"
        notes += [f"{torn} {what} are on both sides of the manifest's split"] if torn else []
    else:
        split, made_notes = _stratified(groups, names, tree, labels, config)
        notes += made_notes
    return split, groups.astype(np.int64) if column is not None else None, notes


def _stratified(
    groups: np.ndarray, names: np.ndarray, tree: TaxonomyTree, labels: np.ndarray, config: ManifestConfig
) -> tuple[np.ndarray, list[str]]:
    """A split stratified by the finest taxa; by those of a coarser rank where no finer taxon has two groups to share out."""
    if config.validation_fraction >= 1:
        raise ConfigError(f"data.validation_fraction: {config.validation_fraction:g} leaves no training rows; lower it")
    predicted = [r for r, rank in enumerate(tree.ranks) if config.ranks is None or rank in config.ranks]
    finest = max(predicted, default=len(tree.ranks) - 1)
    for rank in range(finest, -1, -1):
        split = made_split(groups, names, _finest(tree, labels, rank), config.validation_fraction, config.split_seed)
        if (split == VALIDATION).any():
            coarser = f"no finer taxon has two groups that could be shared out, so the split is stratified by {tree.ranks[rank]}"
            return split, [coarser] if rank < finest else []
    raise ConfigError(
        f"data.validation_fraction: {config.validation_fraction:g} of {len(names)} groups leaves no validation rows; raise it"
    )


def _finest(tree: TaxonomyTree, labels: np.ndarray, rank: int) -> np.ndarray:
    """int64 [N]: node of each row's finest known taxon that is not finer than `rank`; one number beyond all nodes where it has none."""
    node = np.full(len(labels), tree.offsets[-1], dtype=np.int64)
    for r in range(rank + 1):
        node = np.where(labels[:, r] >= 0, labels[:, r] + tree.offsets[r], node)
    return node


def _classes_of_training(tree: TaxonomyTree, labels: np.ndarray, split: np.ndarray) -> tuple[TaxonomyTree, np.ndarray, list[str]]:
    """The tree of the taxa in training rows; what only validation has becomes null and is said."""
    training = labels[split == TRAIN]
    seen = [np.bincount(training[:, r][training[:, r] >= 0], minlength=size) > 0 for r, size in enumerate(tree.sizes)]
    notes = []
    for r, rank in enumerate(tree.ranks):
        only = np.flatnonzero(~seen[r])
        if len(only):
            count = int(np.isin(labels[:, r], only).sum())
            shown = ", ".join(tree.names[r][c] for c in only[:3])
            notes.append(
                f"{rank}: {len(only)} taxa occur only in validation; {count} labels there become null ({shown}{', ...' * (len(only) > 3)})"
            )
    tree, renumber = tree.restrict(seen)
    columns = [np.append(renumber[r], -1)[labels[:, r]] for r in range(labels.shape[1])]
    return tree, np.stack(columns, axis=1), notes


def _relative(weights: np.ndarray, split: np.ndarray, column: str | None) -> tuple[np.ndarray, list[str]]:
    """float32 [N] weights of mean 1 over the training rows, so that they do not move the learning rate; NaN counts as 1 before."""
    missing, training = np.isnan(weights), split == TRAIN
    weights = np.where(missing, 1.0, weights)
    mean = float(np.cumsum(weights[training])[-1] / training.sum())  # added in order: the same bits with every version of numpy
    if not mean > 0:
        raise ConfigError(f"data.weight_column: every training row has weight 0 in {column!r}; nothing would be learnt")
    low, high = weights[training].min(), weights[training].max()
    notes = [f"weights of {column!r}: {low:g} to {high:g}, mean {mean:g} of the training rows, divided by the mean"]
    if missing.any():
        notes.append(f"{int(missing.sum())} rows have no weight in {column!r} and were given 1 before that")
    if idle := int((weights[training] == 0).sum()):
        notes.append(f"{idle} training rows have weight 0 and teach nothing")
    return (weights / mean).astype(np.float32), notes


def _component_notes(columns: Columns, config: ManifestConfig) -> list[str]:
    absent = columns.without([c for c in config.components if c in COMPONENTS])
    return [f"{component} is missing in every row: no column is named for it" for component in absent]


def _fingerprint(
    tree: TaxonomyTree,
    paths: np.ndarray,
    sizes: np.ndarray,
    labels: np.ndarray,
    metadata: Metadata,
    split: np.ndarray,
    weight: np.ndarray | None,
) -> str:
    """Hash of what determines a batch; the photographs enter by name and size. Where the folder lies does not matter."""
    digest = hashlib.sha256(tree.fingerprint().encode())
    digest.update("\0".join(paths.tolist()).encode())
    weights = () if weight is None else (weight,)
    for array in (sizes, labels, split, *(getattr(metadata, f.name) for f in fields(Metadata)), *weights):
        digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()[:32]
