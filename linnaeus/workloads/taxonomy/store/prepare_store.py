"""Run the command `linnaeus prepare`: write the records and photographs of a data source to a store, from which training reads faster.

    linnaeus prepare manifest store data.path=photos.csv
    linnaeus prepare image_folder store data.path=photos --images raw --short-side 256 --processes 8
    linnaeus prepare darwin_core store data.path=download.zip data.root=photos --task 3/16      # one of 16 jobs; then once without --task

If the command was stopped, give it again: it continues, and the store has the same bytes in the end. A record of the source that is not in
the store is counted in `store.json` with the reason, and named in `left_out.csv`. To train: `python main.py data=store data.path=store`.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError, counted, list_some, quoted, shorten
from linnaeus.files import TEMPORARY, no_follow, read_json, to_json, to_utf8, write_atomic
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.left_out import FILE_NAME, LeftOut
from linnaeus.workloads.taxonomy.manifest.clean_records import CleanRecords, read_clean
from linnaeus.workloads.taxonomy.manifest.source_options import add_settings, add_source, check_settings, source_config
from linnaeus.workloads.taxonomy.store import store_layout as layout
from linnaeus.workloads.taxonomy.store.encoding import ENCODINGS, Encoding
from linnaeus.workloads.taxonomy.store.parts import PART, PartWriter, write_parts
from linnaeus.workloads.taxonomy.text_arrays import digests, joined

REQUEST = "request.json"  # file with the settings of a preparation that is not complete
SHORT_SIDE, QUALITY = 256, 90  # defaults of --short-side and --quality
OF_TRAINING = (  # keys of `data` that only training reads
    *("image_size", "sampling", "sampling_rank", "last_batch", "validation_batch"),
    *("order", "block_records", "window_blocks", "folds", "fold"),
)
_UNDECODABLE = "photograph that cannot be decoded"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 75 after Ctrl-C. Exit with status 2 and one line on stderr after a user's mistake."""
    with user_errors(2):
        options = parse(arguments)
        try:
            lines = prepare(options)
        except KeyboardInterrupt:
            print("interrupted; give the same command again to continue", file=sys.stderr)
            return 75
        except OSError as error:
            raise ConfigError(f"{error}; correct this and give the same command again to continue") from error
        print("\n".join(lines))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line, and `share`: with --task I/N the tuple (I - 1, N). Raise `ConfigError` for a mistake."""
    parser = OneLineParser(prog="linnaeus prepare", description="Write records and photographs of a source into a store for training.")
    add = parser.add_argument
    add_source(parser)
    add("out", metavar="OUT", type=Path, help="folder of the store; it must be new, or that of an interrupted preparation")
    add_settings(parser)
    add("--images", choices=ENCODINGS, default="jpeg", help="jpeg: encoded again, raw: pixels, original: as they are (%(default)s)")
    add("--short-side", type=int, metavar="PIXELS", help=f"largest short side of a photograph ({SHORT_SIDE}); not of originals")
    add("--quality", type=int, metavar="Q", help=f"of JPEG, 1 to 95 ({QUALITY})")
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="processes that decode and encode (%(default)s)")
    add("--task", metavar="I/N", default="1/1", help="prepare the I-th of N shares (from 1), on one of several machines")
    options = parser.parse_intermixed_args(arguments)
    for name, images in (("short_side", ("jpeg", "raw")), ("quality", ("jpeg",))):
        if getattr(options, name) is not None and options.images not in images:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect with --images={options.images}; leave it out")
    options.short_side = SHORT_SIDE if options.short_side is None else options.short_side
    options.quality = QUALITY if options.quality is None else options.quality
    for name, low, high in (("short_side", 16, 8192), ("quality", 1, 95), ("processes", 1, 1024)):
        if not low <= getattr(options, name) <= high:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be from {low} to {high}")
    options.share = _share(options.task)
    check_settings(options)
    if useless := [text for text in options.overrides if text.partition("=")[0].removeprefix("data.") in _of_training(options.source)]:
        raise ConfigError(f"{shorten(useless[0])} has no effect on a store; set it when training starts, with data=store")
    return options


def _of_training(source: str) -> tuple[str, ...]:
    """Return the keys of `data` that do not change a store that is made from `source`."""
    if source == "labels_h5":  # its split is stored
        return OF_TRAINING
    return (*OF_TRAINING, "validation_fraction", "split_seed")


def prepare(options: argparse.Namespace) -> list[str]:
    """Write the store that the options describe, or with --task only a share of its parts. Return the lines to print.

    Raise `ConfigError` for a source that cannot be read, a folder with other content, and too many damaged photographs."""
    store: Path = options.out.expanduser()
    rows, config = read_clean(source_config(options), test=None)
    encoding = Encoding(options.images, options.short_side, options.quality, config.max_image_pixels)
    request = _request(rows, encoding, config.group_column)
    if not (store / layout.RECORD).exists():
        writer = PartWriter(store, rows.files, encoding, PART)
        try:
            if lines := _prepare_share(rows, config, options, request, writer):
                return lines
        except (ConfigError, OSError):
            if not (store / layout.RECORD).exists():
                raise  # otherwise another process has completed the store, and deleted the temporary files of this process
    return _already_complete(store, layout.read_record(store), request)


def _prepare_share(
    rows: CleanRecords, config: ManifestConfig, options: argparse.Namespace, request: dict[str, Any], writer: PartWriter
) -> list[str]:
    """Write the missing parts of the share of this process. If all parts of the store are then written, complete the store.

    Return the lines to print; [] if another process has completed the store meanwhile."""
    _begin(writer.store, request)
    first, step = options.share
    missing = _missing(writer, range(first, writer.count(), step), options.processes)
    _write_parts(writer, missing, options.processes)
    with _locked(writer.store):
        if (writer.store / layout.RECORD).exists():
            return []
        if absent := [part for part in range(writer.count()) if not writer.is_complete(part)]:
            parts = counted(writer.count(), "part")
            done = f"{writer.count() - len(absent)} of {parts} prepared; run the command without --task after the others"
            return [done] if first < writer.count() else [f"--task {options.task} has nothing to do: the source has {parts}", done]
        return _finish(rows, config, options.source, request, writer)


@contextlib.contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Return a context manager that holds the lock by which only one process at a time completes a store. It waits for other processes.

    The lock is on request.json, which exists until the store is complete. The kernel releases the lock if the process is killed. On a file
    system without locks the block runs without one."""
    descriptor = no_follow(store / REQUEST, os.O_RDWR)  # some network file systems lock only files that are open for writing
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _already_complete(store: Path, record: dict[str, Any], request: dict[str, Any]) -> list[str]:
    """Return the lines to print for a store that was complete before the command. Raise `ConfigError` if the store was made from another
    `request` (settings and records)."""
    if record.get("request") != request:
        raise ConfigError(f"OUT: {quoted(str(store), 200)} is a store with other settings or records; choose another folder, or delete it")
    layout.check_files(store, record)
    _remove_intermediate(store)
    return [*_account(record), f"{store} was complete before"]


def _remove_intermediate(store: Path) -> None:
    """Delete the files of a store that are only needed until the store is complete."""
    parts = store / layout.PARTS
    for path in [store / REQUEST, *parts.glob("*.npz"), *parts.glob("*.tmp-*"), *store.rglob(f"{TEMPORARY}*")]:
        path.unlink(missing_ok=True)


def _request(rows: CleanRecords, encoding: Encoding, group_column: str | None) -> dict[str, Any]:
    """Return the settings and a hash of the records, on which the content of a store depends, as a dict for JSON."""
    records = hashlib.sha256(to_utf8(f"{rows.tree.fingerprint()}\0{group_column or ''}\0"))
    for data in joined(rows.files.names):
        records.update(data)
    for array in (rows.sizes, rows.labels, rows.split, rows.weight, *vars(rows.metadata).values()):
        records.update(b"" if array is None else np.ascontiguousarray(array).data)
    for name, column in rows.columns.items():
        records.update(to_utf8(f"{name}\0"))
        records.update(digests(column.values)[column.codes].data)
    return {"format": layout.FORMAT, "part": PART, "encoding": vars(encoding), "records": records.hexdigest()}


def _begin(store: Path, request: dict[str, Any]) -> None:
    """Make the folder of a store and write request.json. Raise `ConfigError` if the folder exists with another request or with other
    files."""
    path = store / REQUEST
    if not path.exists():
        empty = not store.exists() or (store.is_dir() and all(entry.name.startswith(TEMPORARY) for entry in store.iterdir()))
        if not empty and not path.exists():  # it exists if another task has just begun the store
            raise ConfigError(f"OUT: {quoted(str(store), 200)} is not an empty folder; choose a new one")
        store.mkdir(parents=True, exist_ok=True)
        write_atomic(path, to_json(request))
    begun = read_json(path) or {}
    if changed := [key for key in request if begun.get(key) != request[key]]:
        raise ConfigError(
            f"OUT: {quoted(str(store), 200)} was begun with another {' and '.join(changed)}; repeat that command, or choose a new folder"
        )


def _share(task: str) -> tuple[int, int]:
    """Return (I - 1, N) of `--task I/N`. Raise `ConfigError` if the text is not of this form."""
    first, _, count = task.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise ConfigError(f"--task {shorten(task)} is not I/N with 1 <= I <= N, such as 3/16")
    return int(first) - 1, int(count)


def _missing(writer: PartWriter, parts: range, threads: int) -> list[int]:
    """Return the numbers of the parts to write: the parts that are incomplete or damaged. Print a line on stderr that names the damaged
    parts."""
    complete = [part for part in parts if writer.is_complete(part)]
    with ThreadPoolExecutor(threads) as pool:  # reading and hashing run in parallel
        damaged = [part for part, intact in zip(complete, pool.map(writer.is_intact, complete), strict=True) if not intact]
    if damaged:
        shown = list_some([str(part) for part in damaged])
        print(f"damaged, to be written again: {counted(len(damaged), 'part')} ({shown})", file=sys.stderr)
    return sorted({*parts} - {*complete} | {*damaged})


def _write_parts(writer: PartWriter, parts: list[int], processes: int) -> None:
    """Write the parts with these numbers. Print a line about the progress on stderr every ten seconds."""
    begin = last = time.monotonic()
    done, total = 0, sum(len(writer.rows(part)) for part in parts)
    for count in write_parts(writer, parts, processes):
        done += count
        now = time.monotonic()
        if now - last >= 10:
            last, rate = now, done / (now - begin)
            print(
                f"{done:,} of {total:,} photographs, {rate:,.0f}/s, {(total - done) / rate / 60:.0f} min left", file=sys.stderr, flush=True
            )


class Prepared(NamedTuple):
    """Tables of all parts of a store, joined, for N photographs."""

    place: np.ndarray  # int64 [N, 3]: number of the part, offset and size in bytes; size 0 for a photograph that cannot be decoded
    shape: np.ndarray  # int32 [N, 2]: height and width
    hashes: np.ndarray  # uint64 [N]: hashes of the stored bytes
    bad: list[tuple[str, str]]  # name and reason of each photograph that cannot be decoded

    @classmethod
    def of(cls, writer: PartWriter) -> "Prepared":
        """Return the joined tables of all parts. Raise `ConfigError` if a table is damaged."""
        count = len(writer.files.names)
        found = cls(np.empty((count, 3), np.int64), np.empty((count, 2), np.int32), np.empty(count, np.uint64), [])
        for number in range(writer.count()):
            part, rows = writer.read(number), writer.rows(number)
            own = slice(rows.start, rows.stop)
            found.place[own] = np.stack([np.full(len(rows), number), np.cumsum(part.sizes) - part.sizes, part.sizes], axis=1)
            found.shape[own], found.hashes[own] = part.shapes, part.hashes
            found.bad.extend((str(writer.files.names[rows[i]]), reason) for i, reason in enumerate(part.reasons) if reason)
        return found

    def take(self, rows: np.ndarray) -> "Prepared":
        """Return the tables with only the photographs `rows`, int64 [M]. The list `bad` remains complete."""
        return Prepared(self.place[rows], self.shape[rows], self.hashes[rows], self.bad)


def _finish(rows: CleanRecords, config: ManifestConfig, source: str, request: dict[str, Any], writer: PartWriter) -> list[str]:
    """Complete a store whose parts are all written: write the arrays, then store.json. Return the lines to print.

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
        keep = np.flatnonzero(prepared.place[:, 2] > 0)
        rows, prepared = rows.take(keep), prepared.take(keep)
    _write_arrays(store, rows, prepared)
    excluded.write(store / FILE_NAME)
    stored = len(prepared.place)
    record = {
        "records": stored,
        "account": {"records of the source": records, "stored": stored, "left out": sum(excluded.values())},
        "excluded": excluded,
        "encoding": request["encoding"],
        "source": f"data={source} data.path={config.path}",
        "columns": layout.write_columns(store, rows.columns),
        "has_split": rows.split is not None,
        "has_weight": rows.weight is not None,
        "group_column": config.group_column,
        "notes": rows.notes,
        "request": request,
    }
    layout.write_record(store, record)
    _remove_intermediate(store)
    return [*_account(record), f"next: linnaeus data=store data.path={store}"]


def _write_arrays(store: Path, rows: CleanRecords, prepared: Prepared) -> None:
    write_atomic(store / "taxonomy.json", json.dumps(rows.tree.to_dict()))
    layout.write_lines(store / "names.txt", rows.files.names)
    layout.write_metadata(store, rows.metadata)
    arrays = {"place": prepared.place, "shape": prepared.shape, "hashes": prepared.hashes, "split": rows.split, "weight": rows.weight}
    for name, array in arrays.items():
        if array is not None:
            layout.write_array(store / f"{name}.npy", array)
    layout.write_array(store / "labels.npy", np.asfortranarray(rows.labels))  # the start reads rank after rank
    layout.write_array(store / "digests.npy", digests(rows.files.names))


def _account(record: dict[str, Any]) -> list[str]:
    """Return lines of text with the number of records, the number left out for each reason, and the number stored. `record`: content of
    store.json."""
    counts = Counter(record["excluded"])
    lines = [f"{count:>12,}  left out: {reason}" for reason, count in counts.most_common()]
    account = record["account"]
    return [f"{account['records of the source']:>12,}  records", *lines, f"{account['stored']:>12,}  stored"]


if __name__ == "__main__":
    raise SystemExit(main())
