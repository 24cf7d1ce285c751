"""Build the `Source` of records: read their table, check the files, clean, split, number the taxa, choose the ranks.

Rows that are left out are counted by reason in `Source.excluded`. Impossible cells become null and are counted in the notes.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, list_some, quoted, shorten
from linnaeus.files import to_utf8
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.cleaning import Tally, is_null
from linnaeus.workloads.taxonomy.manifest.columns import Columns, find_columns
from linnaeus.workloads.taxonomy.manifest.contents import content_hashes, content_notes
from linnaeus.workloads.taxonomy.manifest.image_files import REASONS, FolderFiles, ImageFiles
from linnaeus.workloads.taxonomy.manifest.metadata_columns import clean_metadata, clean_weights
from linnaeus.workloads.taxonomy.manifest.photographs import PhotographReader
from linnaeus.workloads.taxonomy.manifest.ranks import choose_ranks
from linnaeus.workloads.taxonomy.manifest.records import Records, read
from linnaeus.workloads.taxonomy.manifest.row_labels import IdLabels, NameLabels
from linnaeus.workloads.taxonomy.manifest.split import LEFT_OUT, computed_split, group_numbers, split_from_column, test_as_validation
from linnaeus.workloads.taxonomy.manifest.table import Column, Table
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Source
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@dataclass(frozen=True)
class _Rows:
    """The rows of the manifest that are used, and the counts and reasons of the others."""

    table: Table
    files: ImageFiles
    sizes: np.ndarray
    split: np.ndarray | None  # int8 [N] from the split column; None if it does not contain validation rows
    excluded: dict[str, int]
    unreadable: tuple[tuple[str, str], ...]
    notes: list[str]


def build_source(config: ManifestConfig, test: bool = False) -> Source:
    """Return the source of a manifest, or of another format with records. `test`: its test rows take the place of its validation rows.

    Raises ConfigError when the table or a column does not exist, too many files or ids are bad, or a split or rank would be empty."""
    found: list[Columns] = []  # set when the header has been read

    def choose(header: Sequence[str], **keys: Any) -> list[str]:
        found[:] = [find_columns(replace(config, **keys), header)]
        return found[0].read()

    records = read(config, choose)
    columns = found[0]
    config = columns.config
    reader = NameLabels(columns.ranks, check_order=bool(config.rank_columns)) if config.taxonomy is None else IdLabels(config)
    return _assemble(_usable_rows(records, reader, config, test), reader, columns)


def _assemble(rows: _Rows, reader: NameLabels | IdLabels, columns: Columns) -> Source:
    """Return the source of the usable rows."""
    config = columns.config
    notes = [*columns.notes, *rows.notes]
    tree, labels = reader.read(rows.table, notes)
    notes += tree.conflicts(labels)
    paths = rows.files.names
    tally = Tally(paths)
    repeated = np.ones(len(paths), dtype=bool)
    repeated[np.unique(paths, return_index=True)[1]] = False
    tally.add("photograph that occurs in an earlier row", repeated)
    metadata = clean_metadata(rows.table, config, tally)
    weight = clean_weights(rows.table, config, tally)
    notes += tally.notes()
    split_notes: list[str] = []
    split, group = _split(rows, tree, labels, config, split_notes)
    split_notes += [_divided_note(name, rows.table.columns[name], split) for name in columns.group_like]
    tree, labels = _restrict_to_training(tree, labels, split, split_notes)
    ranks, rank_notes = choose_ranks(config, tree.ranks, tree.sizes)
    labels = labels[:, [tree.ranks.index(rank) for rank in ranks]]
    tree = tree.subset(ranks)
    keep = np.flatnonzero((labels >= 0).any(axis=1))
    if len(keep) < len(labels):
        rows.excluded["no label at the predicted ranks"] = len(labels) - len(keep)
    labels, split, files, sizes = labels[keep], split[keep], rows.files.take(keep), rows.sizes[keep]
    paths = files.names
    metadata = metadata.take(keep)
    if weight is not None:
        weight = _relative_weights(weight[keep], split, config.weight_column, notes)
    notes += [
        *split_notes,
        f"ranks to predict: {', '.join(f'{rank} ({n})' for rank, n in zip(ranks, tree.sizes, strict=True))}",
        *rank_notes,
    ]
    column = {"SPATIAL": config.latitude_column, "TEMPORAL": config.date_column, "ELEVATION": config.elevation_column}
    notes += [f"{c} is missing in every row: no column is used for it" for c in config.components if column.get(c, "") is None]
    notes += [f"{count} rows left out: {reason}" for reason, count in rows.excluded.items()]
    notes.append(f"{int((split == TRAIN).sum())} training and {int((split == VALIDATION).sum())} validation rows")
    if not (split == VALIDATION).any():
        raise ConfigError("data: no validation row has a taxon of the training rows; check the split and the taxon names")
    hashes = content_hashes(files, sizes)
    notes += content_notes(paths, hashes, split)
    arrays = [sizes, hashes, labels, split, *vars(metadata).values()]
    return Source(
        tree=tree,
        ids=paths,
        labels=labels,
        metadata=metadata,
        split=split,
        images=PhotographReader(files, config.image_size, config.max_image_pixels),
        fingerprint=_fingerprint(tree, paths, arrays if weight is None else [*arrays, weight]),
        weight=weight,
        group=group[keep] if group is not None else None,
        excluded=rows.excluded,
        unreadable=rows.unreadable,
        notes=tuple(notes),
    )


def _usable_rows(records: Records, labels: NameLabels | IdLabels, config: ManifestConfig, test: bool) -> _Rows:
    """Return the rows that have a readable file and a label and are not test rows. `test`: test rows replace validation rows.

    Raises ConfigError when more than data.max_bad_fraction of the files cannot be used, or no row is left."""
    table = records.table
    notes = list(table.notes)
    excluded = dict(table.excluded)
    column = table.columns[config.image_column]
    files = records.files(column.values)
    sizes = files.sizes()[column.codes]
    paths = files.names[column.codes]
    notes += _outside_note(files)
    split, in_use = None, np.ones(len(table), dtype=bool)
    if config.split_column is not None:
        split, split_notes = split_from_column(table.columns[config.split_column], config.split_column, config.validation_fraction)
        notes += split_notes
        split = test_as_validation(split) if test else split
        in_use = split != LEFT_OUT
    elif test:
        raise ConfigError("--split=test: the manifest has no split column, so it has no test rows; set data.split_column")
    if not in_use.all():
        excluded[f"called test in {quoted(config.split_column)}, neither trained on nor validated on"] = int((~in_use).sum())
    bad = in_use & (sizes <= 0)
    for code, reason in REASONS.items():
        count = int((bad & (sizes == code)).sum())
        excluded |= {reason: count} if count else {}
    unreadable = tuple((str(paths[i]) or f"row {i + 1}", REASONS[int(sizes[i])]) for i in np.flatnonzero(bad))
    _check_unreadable(unreadable, int(in_use.sum()), records.place, config)
    in_use = in_use & ~bad
    for reason, rows in labels.unlabelled(table, in_use).items():
        excluded |= {reason: int(rows.sum())} if rows.any() else {}
        in_use = in_use & ~rows
    keep = np.flatnonzero(in_use)
    if not len(keep):
        reasons = list_some([f"{reason} ({count})" for reason, count in excluded.items()])
        raise ConfigError(
            f"data.path: no row of {quoted(config.path, 120)} can be used: {reasons}; use one with readable photographs and labels"
        )
    split = split[keep] if split is not None and (split == VALIDATION).any() else None
    return _Rows(table.take(keep), files.take(column.codes[keep]), sizes[keep], split, excluded, unreadable, notes)


def _outside_note(files: ImageFiles) -> list[str]:
    """Return a line with the number of paths that lead out of the folder of the photographs, and the first of them."""
    if not isinstance(files, FolderFiles):
        return []
    outside = [path for path in np.unique(files.names).tolist() if os.path.isabs(path) or os.path.normpath(path).split("/")[0] == ".."]
    if not outside:
        return []
    return [f"{len(outside)} image paths lead out of the folder {quoted(files.root, 120)}, such as {quoted(outside[0])}"]


def _check_unreadable(unreadable: tuple[tuple[str, str], ...], rows: int, place: str, config: ManifestConfig) -> None:
    """Raise ConfigError when more than data.max_bad_fraction of the files cannot be used."""
    if len(unreadable) > config.max_bad_fraction * rows:
        shown = ", ".join(f"{shorten(name)} ({reason})" for name, reason in unreadable[:2])
        raise ConfigError(
            f"data.max_bad_fraction: {len(unreadable)} of {rows} image files under {quoted(place, 120)} cannot be used, more than "
            f"{config.max_bad_fraction:g}: {shown}{', ...' if len(unreadable) > 2 else ''}; check data.root and data.image_column"
        )


def _split(
    rows: _Rows, tree: TaxonomyTree, labels: np.ndarray, config: ManifestConfig, notes: list[str]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the split int8 [N], and the group numbers int64 [N] if there is a group column. Append to `notes`."""
    column = rows.table.columns[config.group_column] if config.group_column is not None else None
    names, groups, ungrouped = group_numbers(column, rows.files.names)
    if ungrouped:
        notes.append(f"{ungrouped} rows do not have a {quoted(config.group_column)}; the photograph of each is its group")
    split = rows.split if rows.split is not None else _stratified_split(groups, names, tree, labels, config, notes)
    if rows.split is not None:
        sides = [np.bincount(groups[split == side], minlength=len(names)) > 0 for side in (TRAIN, VALIDATION)]
        for side, word in zip(sides, ("training", "validation"), strict=True):
            if not side.any():
                raise ConfigError(f"data.split_column: no {word} row can be used: {rows.excluded}; check the split column and the files")
        if divided := int((sides[0] & sides[1]).sum()):
            unit = f"groups of {quoted(config.group_column)}" if column is not None else "photographs"
            notes.append(f"{divided} {unit} are on both sides of the split in the manifest")
    return split, groups.astype(np.int64) if column is not None else None


def _divided_note(name: str, column: Column, split: np.ndarray) -> str:
    """Return a line on a column that looks like a group and is not used: the number of its values on both sides of the split."""
    sides = [np.bincount(column.codes[split == side], minlength=len(column.values)) > 0 for side in (TRAIN, VALIDATION)]
    both, known = sides[0] & sides[1], np.array([not is_null(value) for value in column.values])
    return (
        f"{quoted(name)} may be a group, and is not used: {int((both & known).sum())} of its {int(((sides[0] | sides[1]) & known).sum())} "
        f"values are in training and in validation; data.group_column={name} keeps each on one side"
    )


def _stratified_split(
    groups: np.ndarray, names: np.ndarray, tree: TaxonomyTree, labels: np.ndarray, config: ManifestConfig, notes: list[str]
) -> np.ndarray:
    """Return a split stratified by the finest taxa.

    If this leaves validation empty, because no finer taxon has two groups, the taxa of the next coarser rank are the strata."""
    if config.validation_fraction >= 1:
        raise ConfigError(f"data.validation_fraction: {config.validation_fraction:g} leaves no training rows; set a smaller fraction")
    predicted = [r for r, rank in enumerate(tree.ranks) if config.ranks is None or rank in config.ranks]
    finest = max(predicted, default=len(tree.ranks) - 1)
    for rank in range(finest, -1, -1):
        split = computed_split(groups, names, _finest_nodes(tree, labels, rank), config.validation_fraction, config.split_seed)
        if (split == VALIDATION).any():
            if rank < finest:
                notes.append(f"no finer taxon has two groups to divide, so the split is stratified by {tree.ranks[rank]}")
            return split
    raise ConfigError(
        f"data.validation_fraction: {config.validation_fraction:g} of {len(names)} groups leaves no validation rows; use more"
    )


def _finest_nodes(tree: TaxonomyTree, labels: np.ndarray, rank: int) -> np.ndarray:
    """Return int64 [N]: the node of each row's finest known taxon at `rank` or above, or the number of nodes if it has none."""
    node = np.full(len(labels), tree.offsets[-1], dtype=np.int64)
    for r in range(rank + 1):
        node = np.where(labels[:, r] >= 0, labels[:, r] + tree.offsets[r], node)
    return node


def _restrict_to_training(tree: TaxonomyTree, labels: np.ndarray, split: np.ndarray, notes: list[str]) -> tuple[TaxonomyTree, np.ndarray]:
    """Return the tree of the taxa in the training rows, and the labels on it. Labels of other taxa become null."""
    training = labels[split == TRAIN]
    seen = [np.bincount(training[:, r][training[:, r] >= 0], minlength=size) > 0 for r, size in enumerate(tree.sizes)]
    for r, rank in enumerate(tree.ranks):
        only = np.flatnonzero(~seen[r])
        if len(only):
            count = int(np.isin(labels[:, r], only).sum())
            shown = ", ".join(shorten(str(tree.names[r][c])) for c in only[:3])
            notes.append(
                f"{rank}: {len(only)} taxa are only in validation; {count} labels become null ({shown}{', ...' * (len(only) > 3)})"
            )
    tree, renumber = tree.restrict(seen)
    columns = [np.append(renumber[r], -1)[labels[:, r]] for r in range(labels.shape[1])]
    return tree, np.stack(columns, axis=1)


def _relative_weights(weights: np.ndarray, split: np.ndarray, column: str | None, notes: list[str]) -> np.ndarray:
    """Return float32 [N] weights divided by their mean over the training rows, so that they do not scale the learning rate.

    NaN counts as 1 before the division. Raises ConfigError when every training row has weight 0."""
    missing, training = np.isnan(weights), split == TRAIN
    weights = np.where(missing, 1.0, weights)
    mean = float(np.cumsum(weights[training])[-1] / training.sum())  # summed in order: the same bits with every version of numpy
    if not mean > 0:
        raise ConfigError(f"data.weight_column: every training row has weight 0 in {quoted(column)}; at least one weight must be above 0")
    low, high = weights[training].min(), weights[training].max()
    notes.append(f"weights of {quoted(column)}: {low:g} to {high:g}, mean {mean:g} over the training rows; divided by the mean")
    if missing.any():
        notes.append(f"{int(missing.sum())} rows do not have a weight in {quoted(column)} and got 1 before the division")
    if zero := int((weights[training] == 0).sum()):
        notes.append(f"{zero} training rows have weight 0 and do not contribute to the loss")
    return (weights / mean).astype(np.float32)


def _fingerprint(tree: TaxonomyTree, paths: np.ndarray, arrays: Iterable[np.ndarray]) -> str:
    """Return a hash of what determines a batch: 32 hex digits.

    Photographs enter by path, size and `content_hashes`; the location of the folder does not enter."""
    digest = hashlib.sha256(tree.fingerprint().encode())
    digest.update(to_utf8("\0".join(paths.tolist())))
    for array in arrays:
        digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()[:32]
