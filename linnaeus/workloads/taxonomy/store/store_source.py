"""Read a store as the data source of data=store: `build_source`."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.config import StoreConfig
from linnaeus.workloads.taxonomy.left_out import FILE_NAME, LeftOut
from linnaeus.workloads.taxonomy.manifest.clean_records import CleanRecords, without_test
from linnaeus.workloads.taxonomy.manifest.columns import with_group
from linnaeus.workloads.taxonomy.manifest.folds import check_folds
from linnaeus.workloads.taxonomy.manifest.manifest_source import source_of
from linnaeus.workloads.taxonomy.observations import Source
from linnaeus.workloads.taxonomy.store import store_layout as layout
from linnaeus.workloads.taxonomy.store.store_files import StoreFiles


def build_source(config: StoreConfig, test: bool = False) -> Source:
    """Return the data source of a store. `test`: use the test rows instead of the validation rows.

    Raise `ConfigError` if the folder is not a complete store, or does not have the group column."""
    check_folds(config)
    store = Path(config.path).expanduser()
    record = layout.read_record(store)
    layout.check_files(store, record)
    array = partial(layout.read_array, mapped=True)
    split = array(store / "split.npy") if record["has_split"] and config.split_column == "auto" else None
    weight = array(store / "weight.npy") if record["has_weight"] and config.weight_column == "auto" else None
    config = replace(config, split_column=None if split is None else "split", weight_column=None if weight is None else "weight")
    if config.group_column == "auto":
        config = replace(config, group_column=record.get("group_column"))
    columns = layout.read_columns(store, record["columns"])
    if config.group_column is not None and config.group_column not in columns:
        kept = list_some([quoted(name) for name in columns]) or "none"
        raise ConfigError(f"data.group_column: the store does not have {quoted(config.group_column)}; its columns are {kept}")
    notes = with_group(record["notes"], config.group_column)
    rows = CleanRecords(
        tree=layout.read_tree(store),
        labels=array(store / "labels.npy"),
        files=_files(store, record),
        sizes=array(store / "place.npy")[:, 2],
        metadata=layout.read_metadata(store),
        weight=weight,
        split=split,
        columns=columns,
        excluded=LeftOut(record["excluded"], store / FILE_NAME),
        unreadable=(),
        notes=[f"store of {counted(record['records'], 'photograph')}, {record['encoding']['name']}, from {record['source']}", *notes],
        hashes=array(store / "hashes.npy"),
        digests=array(store / "digests.npy"),
    )
    split, used = without_test(split, rows.files.names, config, test, rows.excluded)
    if not used.all():
        rows = replace(rows, split=split).take(np.flatnonzero(used))
    return source_of(replace(rows, split=None if split is None else split[used]), config)


def _files(store: Path, record: dict) -> StoreFiles:
    shape = layout.read_array(store / "shape.npy", mapped=True) if record["encoding"]["name"] == "raw" else None
    return StoreFiles(store, layout.read_lines(store / "names.txt"), layout.read_array(store / "place.npy", mapped=True), shape)
