"""Write the split that training would use as a file, which `data.split_file` reads."""

import hashlib
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted
from linnaeus.files import to_utf8, write_atomic
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, unique_strings
from linnaeus.workloads.taxonomy.doctor.findings import Inspected
from linnaeus.workloads.taxonomy.manifest.manifest_source import stratified_split
from linnaeus.workloads.taxonomy.manifest.splitting.folds import check_folds
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import sides_text, split_lines
from linnaeus.workloads.taxonomy.manifest.splitting.split import NO_SIDE, find_groups
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION

SPLIT = "split.csv"


def training_split(records: Inspected) -> np.ndarray:
    """Return the split of the N rows that training would use, int8 [N]: TRAIN, VALIDATION, LEFT_OUT for test, NO_SIDE for rows that it
    leaves out. Raise `ConfigError` if training or validation would be empty."""
    check_folds(records.config)
    config, given = records.config, records.split
    split = np.full(len(records), NO_SIDE, dtype=np.int8) if given is None else given.copy()
    split[~records.used] = NO_SIDE
    if config.folds is not None and given is not None:
        split[split == VALIDATION] = TRAIN
    if given is not None and (split == VALIDATION).any():
        return split
    rows = np.flatnonzero(records.used if given is None else split == TRAIN)
    column = None if config.group_column is None else records.table.columns[config.group_column]
    grouped = None if column is None else Column(column.codes[rows], column.values)
    groups = find_groups(grouped, records.files.names[rows])
    split[rows] = stratified_split(groups, records.tree, records.labels[rows], config, [])
    return split


def save_split(path: Path, records: Inspected) -> list[str]:
    """Write the split that training would use to `path`, a line per photograph. Return lines to print, with the SHA-256 of the file, or
    with the reason if there is no split."""
    try:
        split = training_split(records)
    except ConfigError as error:
        return [f"no split is saved: {error}"]
    content = "".join(split_lines(records.files.names, split))
    write_atomic(path, content)
    sha = hashlib.sha256(to_utf8(content)).hexdigest()
    uses = f"data.split_file={path} uses it"
    if two := _on_two_sides(records.files.names[np.flatnonzero(split != NO_SIDE)], split[split != NO_SIDE]):
        uses += f" after you have removed all but one of the lines of {counted(two, 'photograph')} on two sides"
    return [f"split: {path} ({sides_text(split)}; sha256 {sha}); {uses}"]


def _on_two_sides(names: Names, split: np.ndarray) -> int:
    """Return the number of photographs of which rows are on different sides. `names`: [N]. `split`: int8 [N]."""
    found, number = unique_strings(names)
    low, high = np.full(len(found), NO_SIDE), np.full(len(found), -1)
    np.minimum.at(low, number, split)
    np.maximum.at(high, number, split)
    return int((low < high).sum())
