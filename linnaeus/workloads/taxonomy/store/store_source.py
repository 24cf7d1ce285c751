"""Read a store as the data source of data=store: `build_source`."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted, redacted
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.config import StoreConfig
from linnaeus.workloads.taxonomy.manifest.clean_records import CleanRecords, without_test
from linnaeus.workloads.taxonomy.manifest.columns import with_group
from linnaeus.workloads.taxonomy.manifest.manifest_source import source_of
from linnaeus.workloads.taxonomy.manifest.splitting.folds import check_folds
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import NOT_IN_FILE, check_training, file_split, read_split_file
from linnaeus.workloads.taxonomy.manifest.splitting.split import NO_SIDE
from linnaeus.workloads.taxonomy.observations import Source
from linnaeus.workloads.taxonomy.observations.left_out import FILE_NAME, LeftOut
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
    has_split = record["has_split"] and config.split_column == "auto" and config.split_file is None
    split = array(store / "split.npy") if has_split else None
    weight = array(store / "weight.npy") if record["has_weight"] and config.weight_column == "auto" else None
    config = replace(config, split_column=None if split is None else "split", weight_column=None if weight is None else "weight")
    if config.group_column == "auto":
        config = replace(config, group_column=record.get("group_column"))
    columns = layout.read_columns(store, record["columns"])
    excluded = LeftOut(record["excluded"], store / FILE_NAME)
    lines: list[str] = [record["split"]] if has_split and "split" in record else []
    lines += _enlarged(record["encoding"], config.image_size)
    names = layout.read_lines(store / "names.txt")
    if config.split_file is not None:
        split = file_split(read_split_file(config.split_file), names, columns, lines)
        check_training(split, config)
        excluded.add(NOT_IN_FILE, names[np.flatnonzero(split == NO_SIDE)].tolist())
    if config.group_column is not None and config.group_column not in columns:
        kept = list_some([quoted(name) for name in columns]) or "none"
        raise ConfigError(f"data.group_column: the store does not have {quoted(config.group_column)}; its columns are {kept}")
    notes = with_group(record["notes"], config.group_column)
    rows = CleanRecords(
        tree=layout.read_tree(store),
        labels=array(store / "labels.npy"),
        files=_files(store, record, names),
        sizes=array(store / "place.npy")[:, 2],
        metadata=layout.read_metadata(store),
        weight=weight,
        split=split,
        columns=columns,
        excluded=excluded,
        unreadable=(),
        notes=[
            f"store of {counted(record['records'], 'photograph')}, {record['encoding']['name']}, from {redacted(record['source'])}",
            *notes,
            *lines,
        ],
        hashes=array(store / "hashes.npy"),
        digests=array(store / "digests.npy"),
    )
    on_a_side = np.ones(len(names), dtype=bool) if split is None else split != NO_SIDE
    split, used = without_test(split, names, config, test, rows.excluded)
    used &= on_a_side
    if not used.all():
        rows = replace(rows, split=split).take(np.flatnonzero(used))
    return source_of(replace(rows, split=None if split is None else split[used]), config)


def _enlarged(encoding: dict, side: int) -> list[str]:
    """Return a line if the photographs of a store are smaller than the images of `side` pixels that a run makes of them; otherwise []."""
    short = encoding["short_side"]
    if encoding["name"] == "original" or short >= side:
        return []
    return [
        f"photographs of the store have a short side of at most {short}, and are enlarged to data.image_size={side}; prepare larger ones"
    ]


def _files(store: Path, record: dict, names: TextLines) -> StoreFiles:
    shape = layout.read_array(store / "shape.npy", mapped=True) if record["encoding"]["name"] == "raw" else None
    return StoreFiles(store, names, layout.read_array(store / "place.npy", mapped=True), shape)
