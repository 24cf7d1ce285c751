"""Build the `Source` of a run: clean the records, split them, restrict the tree to the taxa of training rows, and choose the ranks."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from linnaeus.errors import ConfigError, counted, quoted, redacted_words, shorten
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, joined
from linnaeus.workloads.taxonomy.arrays.text_lines import BLOCK
from linnaeus.workloads.taxonomy.config import ManifestConfig, RecordsConfig
from linnaeus.workloads.taxonomy.images.contents import content_hashes, content_notes
from linnaeus.workloads.taxonomy.images.jpeg import decoder_note
from linnaeus.workloads.taxonomy.images.photographs import PhotographReader
from linnaeus.workloads.taxonomy.manifest.clean_records import CleanRecords, read_clean
from linnaeus.workloads.taxonomy.manifest.labels.ranks import choose_ranks
from linnaeus.workloads.taxonomy.manifest.splitting.folds import check_folds, fold_numbers
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import split_key, split_name
from linnaeus.workloads.taxonomy.manifest.splitting.split import Groups, computed_split, find_groups
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import value_numbers
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Metadata, Source
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


def build_source(config: ManifestConfig, test: bool = False) -> Source:
    """Return the source of a manifest, or of another format with a reader. `test`: use the test rows instead of the validation rows.

    Raise `ConfigError` if the table or a column does not exist, if too many files or ids cannot be used, or if training, validation or a
    rank would be empty."""
    check_folds(config)
    return source_of(*read_clean(config, test))


def source_of(rows: CleanRecords, config: RecordsConfig) -> Source:
    """Return the source of records without test rows, with the split and the ranks that `config` determines.

    Raise `ConfigError` if training, validation or a rank would be empty."""
    notes, excluded = list(rows.notes), LeftOut(rows.excluded)
    split_notes: list[str] = []
    split, group = _split(rows, config, split_notes)
    if config.group_column is None:
        split_notes += [_divided_note(name, column, split) for name, column in rows.columns.items()]
    tree, labels = _restrict_to_training(rows.tree, rows.labels, split, split_notes)
    ranks, rank_notes = choose_ranks(config, tree.ranks, tree.sizes)
    if ranks != tree.ranks:
        labels = labels[:, [tree.ranks.index(rank) for rank in ranks]]
        tree = tree.subset(ranks)
    labelled = (labels >= 0).any(axis=1)
    if not labelled.all():  # otherwise arrays that are mapped from a file need no copy
        excluded.add("no label at the predicted ranks", rows.files.names[np.flatnonzero(~labelled)].tolist())
        keep = np.flatnonzero(labelled)
        rows, labels, split = rows.take(keep), labels[keep], split[keep]
        group = None if group is None else group[keep]
    files, sizes, metadata = rows.files, rows.sizes, rows.metadata
    weight = None if rows.weight is None else _relative_weights(rows.weight, split, config.weight_column, notes)
    notes += [
        *split_notes,
        f"ranks to predict: {', '.join(f'{rank} ({n})' for rank, n in zip(ranks, tree.sizes, strict=True))}",
        *rank_notes,
    ]
    notes += [f"{counted(count, 'row')} left out: {reason}" for reason, count in excluded.items()]
    notes += _known_metadata(metadata, config.components)
    notes.append(f"{(split == TRAIN).sum():,} training and {counted((split == VALIDATION).sum(), 'validation row')}")
    if not (split == VALIDATION).any():
        raise ConfigError("data: no validation row has a taxon of the training rows; check the split and the taxon names")
    hashes = content_hashes(files, sizes) if rows.hashes is None else rows.hashes
    notes += content_notes(files.names, hashes, split)
    notes += [note for note in [decoder_note()] if note]
    arrays = [sizes, hashes, labels, split, *vars(metadata).values()]
    return Source(
        tree=tree,
        ids=files.names,
        labels=labels,
        metadata=metadata,
        split=split,
        images=PhotographReader(files, config.image_size, config.max_image_pixels),
        fingerprint=_fingerprint(tree, files.names, arrays if weight is None else [*arrays, weight]),
        weight=weight,
        group=group,
        excluded=excluded,
        unreadable=rows.unreadable,
        notes=tuple(map(redacted_words, notes)),  # they are logged, and published with the model
    )


def _known_metadata(metadata: Metadata, components: Sequence[str]) -> list[str]:
    """Return a line with the number of rows that have each metadata component; [] if no row has metadata."""
    values = {"SPATIAL": metadata.latitude, "TEMPORAL": metadata.day, "ELEVATION": metadata.elevation}
    counts = {name: np.count_nonzero(~np.isnan(values[name])) for name in components if name in values}
    known = [f"{name.lower()} {count:,}" for name, count in counts.items() if count]
    return [f"rows with metadata: {', '.join(known)} of {len(metadata.day):,}"] if known else []


def _split(rows: CleanRecords, config: RecordsConfig, notes: list[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the split, int8 [N], and the group of each row, int64 [N]; None without a group column. Append lines to `notes`.

    Raise `ConfigError` if training or validation would have no rows."""
    column = rows.columns[config.group_column] if config.group_column is not None else None
    groups = find_groups(column, rows.files.names, rows.digests)
    if groups.ungrouped:
        notes.append(f"{counted(groups.ungrouped, 'row')} without a {quoted(config.group_column)}; the photograph of each is its group")
    if groups.joined:
        notes.append(f"{counted(groups.joined, 'group')} of {quoted(config.group_column)} joined to another that has the same photograph")
    if rows.split is None or not (rows.split == VALIDATION).any():
        if rows.split is not None:
            notes.append(_column_note(config))
        split = stratified_split(groups, rows.tree, rows.labels, config, notes)
    else:
        split = rows.split
        if config.validation_fraction is not None and config.name != "labels_h5":  # whose reader divides the rows by it
            notes.append(f"data.validation_fraction={config.validation_fraction:g} has no effect: {split_name(config)} has validation rows")
        sides = [np.bincount(groups.number[split == side], minlength=len(groups.digest)) > 0 for side in (TRAIN, VALIDATION)]
        for side, word in zip(sides, ("training", "validation"), strict=True):
            if not side.any():
                raise ConfigError(f"{split_key(config)}: no {word} row can be used: {rows.excluded}; check the split and the files")
        if divided := int((sides[0] & sides[1]).sum()):
            unit, of = ("group", f" of {quoted(config.group_column)}") if column is not None else ("photograph", "")
            notes.append(f"on both sides of the split in the manifest: {counted(divided, unit)}{of}")
    return split, groups.number if column is not None else None


def _divided_note(name: str, column: Column, split: np.ndarray) -> str:
    """Return a line about a column that looks like a group column but is not used: how many of its values occur both in training and in
    validation."""
    number = value_numbers(column)
    sides = [np.bincount(number[(split == side) & (number >= 0)], minlength=len(column.values)) > 0 for side in (TRAIN, VALIDATION)]
    return (
        f"{quoted(name)} may be a group, and is not used: training and validation share {int((sides[0] & sides[1]).sum())} of its "
        f"{counted((sides[0] | sides[1]).sum(), 'value')}; data.group_column={name} keeps each on one side"
    )


def _column_note(config: RecordsConfig) -> str:
    """Return a line that says which rows are used for validation, if the split column does not determine them."""
    name = split_name(config)
    if config.folds is not None:
        return f"{name}: its rows for training and validation are divided into data.folds={config.folds}; test rows are in none"
    return f"{name} does not contain validation rows; data.validation_fraction={config.validation_share:g} of the training rows are used"


def stratified_split(
    groups: Groups,
    tree: TaxonomyTree,
    labels: np.ndarray,
    config: RecordsConfig,
    notes: list[str],
    key: str = "data.validation_fraction",
) -> np.ndarray:
    """Return a split, int8 [N], that is computed from a seed and stratified by the finest taxa. `key`: the fraction's name in messages.

    If validation would be empty because no taxon has two groups, the split is stratified by the taxa of the next coarser rank. Raise
    `ConfigError` if validation is empty for every rank, or if the validation fraction leaves no training rows."""
    fraction = config.validation_share
    if fraction >= 1:
        raise ConfigError(f"{key}: {fraction:g} leaves no training rows; set a smaller fraction")
    predicted = [r for r, rank in enumerate(tree.ranks) if config.ranks is None or rank in config.ranks]
    finest = max(predicted, default=len(tree.ranks) - 1)
    for rank in range(finest, -1, -1):
        taxon = _finest_nodes(tree, labels, rank)
        if config.folds is None:
            split = computed_split(groups, taxon, fraction, config.split_seed)
        else:
            split = _fold_split(groups, taxon, config, notes)
        if (split == VALIDATION).any():
            if rank < finest:
                notes.append(f"no finer taxon has two groups to divide, so the split is stratified by {tree.ranks[rank]}")
            return split
    if config.folds is not None:
        raise ConfigError(
            f"data.folds: not one of {counted(len(groups.digest), 'group')} can be validated on, because each is the only one of a taxon; "
            "use more rows"
        )
    unit, of = ("photograph", "") if config.group_column is None else ("group", f" of {quoted(config.group_column)}")
    other = "" if config.group_column is None else ", or another data.group_column"
    raise ConfigError(
        f"{key}: {fraction:g} of {counted(len(groups.digest), unit)}{of} leaves no {'test' if key == '--test' else 'validation'} rows; "
        f"set a larger fraction{other}"
    )


def _fold_split(groups: Groups, taxon: np.ndarray, config: RecordsConfig, notes: list[str]) -> np.ndarray:
    """Return the split, int8 [N], in which the rows of data.fold validate. `groups`, `taxon`: as in `computed_split`.

    Append a line on the sizes of the split to `notes`. Validation is empty if every taxon has a single group. Raise `ConfigError` if some
    folds would be empty and others not."""
    assert config.folds is not None and config.fold is not None
    fold = fold_numbers(groups, taxon, config.folds, config.split_seed)
    trained, *sizes = np.bincount(fold, minlength=config.folds + 1).tolist()
    if any(sizes) and not all(sizes):
        raise ConfigError(
            f"data.folds={config.folds}: fold {sizes.index(0) + 1} would be empty, because only {sum(sizes)} of {len(fold)} groups can be "
            "validated on; use fewer folds, or another data.split_seed"
        )
    if any(sizes):
        rest = f"; {trained:,} in training in every fold, because a taxon would otherwise have no training rows" if trained else ""
        notes.append(f"fold {config.fold} of {config.folds} validates, {sizes[config.fold - 1]:,} of {counted(len(fold), 'group')}{rest}")
    return np.where(fold[groups.number] == config.fold, np.int8(VALIDATION), np.int8(TRAIN))


def _finest_nodes(tree: TaxonomyTree, labels: np.ndarray, rank: int) -> np.ndarray:
    """Return the node (number of a taxon over all ranks) of each row's finest known taxon at `rank` or a coarser rank, int64 [N].

    A row without such a taxon gets the number of nodes."""
    node = np.full(len(labels), tree.offsets[-1], dtype=np.int64)
    for r in range(rank + 1):
        np.copyto(node, labels[:, r] + tree.offsets[r], where=labels[:, r] >= 0)
    return node


def _restrict_to_training(tree: TaxonomyTree, labels: np.ndarray, split: np.ndarray, notes: list[str]) -> tuple[TaxonomyTree, np.ndarray]:
    """Return the tree of the taxa that occur in training rows, and the labels as classes of this tree. Labels of taxa that do not occur in
    training rows become missing (-1)."""
    seen = [_in_rows(labels[:, r], split == TRAIN, size) for r, size in enumerate(tree.sizes)]
    if all(own.all() for own in seen):
        return tree, labels
    for r, rank in enumerate(tree.ranks):
        only = np.flatnonzero(~seen[r])
        if len(only):
            count = int(np.isin(labels[:, r], only).sum())
            shown = ", ".join(shorten(str(tree.names[r][c])) for c in only[:3])
            notes.append(
                f"{rank}: {counted(count, 'label')} set to null, of {counted(len(only), 'taxon')} only in validation "
                f"({shown}{', ...' * (len(only) > 3)})"
            )
    tree, renumber = tree.restrict(seen)
    columns = [np.append(renumber[r], -1)[labels[:, r]] for r in range(labels.shape[1])]
    return tree, np.stack(columns, axis=1)


def _in_rows(labels: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Return bool [size]: True for the classes that occur in `labels`, int64 [N], in the rows where `rows`, bool [N], is True."""
    found = np.zeros(size + 1, dtype=bool)  # the last is that of null, -1
    found[labels[rows]] = True
    return found[:-1]


def _relative_weights(weights: np.ndarray, split: np.ndarray, column: str | None, notes: list[str]) -> np.ndarray:
    """Return weights, float32 [N], divided by the mean weight of the training rows, so that weights do not scale the learning rate.

    `weights`: float64 [N]; NaN is replaced by 1 before the division. `split`: int8 [N]. `column`: name of the weight column, for messages.
    Lines about the weights are added to `notes`. Raise `ConfigError` if all training rows have weight 0."""
    missing, training = np.isnan(weights), split == TRAIN
    weights = np.where(missing, 1.0, weights)
    mean = float(np.cumsum(weights[training])[-1] / training.sum())  # summed in order: the same bits with every version of numpy
    if not mean > 0:
        raise ConfigError(f"data.weight_column: every training row has weight 0 in {quoted(column)}; at least one weight must be above 0")
    low, high = weights[training].min(), weights[training].max()
    notes.append(f"weights of {quoted(column)}: {low:g} to {high:g}, mean {mean:g} over the training rows; divided by the mean")
    if missing.any():
        notes.append(f"{counted(missing.sum(), 'row')} without a weight in {quoted(column)} got 1 before the division")
    if zero := int((weights[training] == 0).sum()):
        notes.append(f"{counted(zero, 'training row')} with weight 0, without effect on the loss")
    return (weights / mean).astype(np.float32)


def _fingerprint(tree: TaxonomyTree, paths: Names, arrays: Iterable[np.ndarray]) -> str:
    """Return a hash of everything in the data that determines batches, 32 hexadecimal digits.

    Photographs are hashed by path, size and `content_hashes`; the location of the folder with the photographs has no effect."""
    digest = hashlib.sha256(tree.fingerprint().encode())
    for data in joined(paths):
        digest.update(data)
    for array in arrays:
        for first in range(0, len(array), BLOCK):
            digest.update(np.ascontiguousarray(array[first : first + BLOCK], dtype=array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()[:32]
