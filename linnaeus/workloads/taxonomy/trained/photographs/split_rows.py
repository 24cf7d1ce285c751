"""Find the rows of a split (`training`, `validation` or `test`) in the data of a run or in a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names
from linnaeus.workloads.taxonomy.manifest.columns import Columns
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import given_split, split_name
from linnaeus.workloads.taxonomy.manifest.splitting.split import LEFT_OUT
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Source

SPLITS = {"training": TRAIN, "validation": VALIDATION, "test": LEFT_OUT}


def rows_of_run(run: Path, split: str, components: Sequence[str]) -> tuple[Source, np.ndarray]:
    """Return the data of the run in the directory `run`, and the positions of the rows of a split, int64 [M].

    `components`: metadata components to read. Raise `ConfigError` if the data cannot be read, or have no such rows."""
    from linnaeus.workloads.taxonomy.data_source import build_data_source
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import configuration_of

    config = configuration_of(run)
    config = replace(config, data=replace(config.data, components=list(components)))
    source = build_data_source(config, test=split == "test")[0]  # has the test rows in place of the validation rows
    return source, np.flatnonzero(source.split == (TRAIN if split == "training" else VALIDATION))


def rows_of_manifest(table: Table, names: Names, columns: Columns, split: str, notes: list[str]) -> np.ndarray:
    """Return the positions of the rows of a split in the table of a manifest, int64 [M]. Append lines to `notes`.

    `names`: [N], names of the photographs. Raise `ConfigError` if the manifest has no split, or no such rows."""
    sides, _ = given_split(table, names, columns.config, columns.split_file, notes)
    if sides is None:
        raise ConfigError(f"--split={split}: the manifest has no column split; name it with --setting data.split_column=NAME")
    rows = np.flatnonzero(sides == SPLITS[split])
    if not len(rows):
        raise ConfigError(f"--split={split}: {split_name(columns.config)} has no {split} rows; use another split")
    notes.append(f"{split} rows by {split_name(columns.config)}: {len(rows):,} of {len(sides):,}")
    return rows
