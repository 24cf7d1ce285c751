"""Complete a store whose parts are all written: join their tables, write the arrays of the records, the account, and store.json last."""

import json
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linnaeus.config.command_line import setting_text
from linnaeus.errors import ConfigError, list_some, shorten
from linnaeus.files import TEMPORARY, write_atomic
from linnaeus.workloads.taxonomy.arrays.spool import Spool
from linnaeus.workloads.taxonomy.arrays.text_arrays import digests
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.images.contents import WIDE
from linnaeus.workloads.taxonomy.manifest.clean_records import CleanRecords
from linnaeus.workloads.taxonomy.observations.left_out import FILE_NAME, LeftOut
from linnaeus.workloads.taxonomy.store import store_layout as layout
from linnaeus.workloads.taxonomy.store.parts import PartWriter
from linnaeus.workloads.taxonomy.store.random_split import split_note

REQUEST = "request.json"  # file with the settings of a preparation that is not complete
_UNDECODABLE = "photograph that cannot be decoded"


class Prepared(NamedTuple):
    """Tables of all parts of a store, joined, for N photographs."""

    place: np.ndarray  # int64 [N, 3]: number of the part, offset and size in bytes; size 0 for a photograph that cannot be decoded
    shape: np.ndarray  # int32 [N, 2]: height and width
    hashes: np.ndarray  # uint64 [N]: hashes of the stored bytes
    originals: np.ndarray  # uint8 [N, 16]: `wide_hash` of the original files
    bad: list[tuple[str, str]]  # name and reason of each photograph that cannot be decoded

    @classmethod
    def of(cls, writer: PartWriter) -> "Prepared":
        """Return the joined tables of all parts. Raise `ConfigError` if a table is damaged."""
        place, shape, hashes, originals = Spool(), Spool(), Spool(), Spool()
        bad: list[tuple[str, str]] = []
        for number in range(writer.count()):
            part, rows = writer.read(number), writer.rows(number)
            place.write(np.stack([np.full(len(rows), number), np.cumsum(part.sizes) - part.sizes, part.sizes], axis=1).tobytes())
            for spool, values in ((shape, part.shapes), (hashes, part.hashes), (originals, part.originals)):
                spool.write(values.tobytes())
            bad.extend((str(writer.files.names[rows[i]]), reason) for i, reason in enumerate(part.reasons) if reason)
        sized = place.array(np.int64).reshape(-1, 3), shape.array(np.int32).reshape(-1, 2), hashes.array(np.uint64)
        return cls(*sized, originals.array(np.uint8).reshape(-1, WIDE), bad)


def finish(rows: CleanRecords, config: ManifestConfig, source: dict[str, Any], request: dict[str, Any], writer: PartWriter) -> list[str]:
    """Complete a store whose parts are all written: write the arrays, then store.json. Return the lines to print. `source`: entries of
    store.json that describe the source.

    Raise `ConfigError` if more photographs cannot be used than data.max_bad_fraction allows."""
    store, prepared = writer.store, Prepared.of(writer)
    count, bad = len(prepared.place), prepared.bad
    excluded = LeftOut(rows.excluded)
    records = sum(excluded.values()) + count
    excluded.add(_UNDECODABLE, (name for name, _ in bad), (reason for _, reason in bad))
    left_out = [*rows.unreadable, *bad]
    if len(left_out) > config.max_bad_fraction * (count + len(rows.unreadable)):
        raise ConfigError(
            f"data.max_bad_fraction: {len(left_out)} of {count + len(rows.unreadable)} photographs cannot be used, more than "
            f"{config.max_bad_fraction:g}: {list_some([f'{shorten(name)} ({reason})' for name, reason in left_out], 2)}; "
            "set a larger limit and repeat the command"
        )
    if bad:
        rows = rows.take(np.flatnonzero(prepared.place[:, 2] > 0))
    _write_arrays(store, rows, prepared)
    excluded.write(store / FILE_NAME)
    stored = count - len(bad)
    record = {
        "records": stored,
        "account": {"records of the source": records, "stored": stored, "left out": sum(excluded.values())},
        "excluded": excluded,
        "encoding": request["encoding"],
        **source,
        "columns": layout.write_columns(store, rows.columns),
        "has_split": rows.split is not None,
        "has_weight": rows.weight is not None,
        "group_column": config.group_column,
        "notes": rows.notes,
        "request": request,
    }
    if "split" in request:
        record["split"] = split_note(rows, config)
    layout.write_record(store, record)
    remove_intermediate(store)
    return [*account_lines(record), f"next: {shlex.join(['linnaeus', 'data=store', setting_text('data.path', str(store))])}"]


def _write_arrays(store: Path, rows: CleanRecords, prepared: Prepared) -> None:
    """Write the tree and the arrays of the records that are stored. `rows`: only these records. `prepared`: all records."""
    keep = prepared.place[:, 2] > 0 if prepared.bad else slice(None)
    write_atomic(store / "taxonomy.json", json.dumps(rows.tree.to_dict()))
    layout.write_lines(store / "names.txt", rows.files.names)
    layout.write_metadata(store, rows.metadata)
    for name in ("place", "shape", "hashes", "originals"):
        layout.write_array(store / f"{name}.npy", getattr(prepared, name)[keep])
    for name, array in (("split", rows.split), ("weight", rows.weight)):
        if array is not None:
            layout.write_array(store / f"{name}.npy", array)
    layout.write_array(store / "labels.npy", np.asfortranarray(rows.labels))  # the start reads rank after rank
    layout.write_array(store / "digests.npy", digests(rows.files.names))


def account_lines(record: dict[str, Any]) -> list[str]:
    """Return lines of text with the number of records, the number left out for each reason, the number stored, and the random split.
    `record`: content of store.json."""
    counts = Counter(record["excluded"])
    lines = [f"{count:>12,}  left out: {reason}" for reason, count in counts.most_common()]
    account = record["account"]
    split = [record["split"]] if "split" in record else []
    return [f"{account['records of the source']:>12,}  records", *lines, f"{account['stored']:>12,}  stored", *split]


def remove_intermediate(store: Path) -> None:
    """Delete the files of a store that are only needed until the store is complete."""
    parts = store / layout.PARTS
    shutil.rmtree(store / layout.FETCHED, ignore_errors=True)
    for path in [store / REQUEST, *parts.glob("*.npz"), *parts.glob("*.tmp-*"), *store.rglob(f"{TEMPORARY}*")]:
        path.unlink(missing_ok=True)
