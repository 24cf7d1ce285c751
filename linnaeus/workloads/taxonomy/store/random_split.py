"""Split the records of a store at random (`linnaeus prepare --val 0.1 --test 0.1`), so that every run from the store has the same split."""

import hashlib
from dataclasses import replace

import numpy as np

from linnaeus.errors import ConfigError, quoted
from linnaeus.files import to_utf8
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.clean_records import CleanRecords
from linnaeus.workloads.taxonomy.manifest.manifest_source import stratified_split
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import sides_text, split_lines
from linnaeus.workloads.taxonomy.manifest.splitting.split import LEFT_OUT, find_groups
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION


def with_split(rows: CleanRecords, config: ManifestConfig, validation: float, test: float) -> CleanRecords:
    """Return the records with a random split, stratified by taxon. `validation`, `test`: shares of the records, 0 for none.

    Groups of data.group_column stay on one side. The seed is data.split_seed. Raise `ConfigError` if the source gives a split, or a side
    would be empty."""
    if rows.split is not None:
        raise ConfigError("--val and --test: the source gives a split; leave them out to keep it, or set data.split_column=null")
    split, left, notes = np.full(len(rows.labels), TRAIN, dtype=np.int8), 1.0, list(rows.notes)
    column = None if config.group_column is None else rows.columns[config.group_column]
    for key, side, share in (("--test", LEFT_OUT, test), ("--val", VALIDATION, validation)):
        if not share:
            continue
        rest = np.flatnonzero(split == TRAIN)
        groups = find_groups(None if column is None else Column(column.codes[rest], column.values), rows.files.names[rest])
        own = replace(config, validation_fraction=share / left, folds=None)
        chosen = stratified_split(groups, rows.tree, rows.labels[rest], own, notes, key)
        split[rest[chosen == VALIDATION]] = side
        left -= share
    return replace(rows, split=split, notes=notes)


def split_note(rows: CleanRecords, config: ManifestConfig) -> str:
    """Return a line about the random split of the records: the number on each side, the seed, the groups and a SHA-256.

    It is that of the file `split.csv` that the doctor would write for these records."""
    assert rows.split is not None
    digest = hashlib.sha256()
    for text in split_lines(rows.files.names, rows.split):
        digest.update(to_utf8(text))
    groups = f", groups of {quoted(config.group_column)}" if config.group_column is not None else ""
    return f"random split of the store: {sides_text(rows.split)}, seed {config.split_seed}{groups} (sha256 {digest.hexdigest()})"
