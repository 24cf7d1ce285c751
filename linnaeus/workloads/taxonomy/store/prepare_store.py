"""Run the command `linnaeus prepare`: write the records and photographs of a data source to a store, from which training reads faster.

    linnaeus prepare manifest store data.path=photos.csv
    linnaeus prepare image_folder store data.path=photos --images raw --short-side 256 --processes 8
    linnaeus prepare manifest store data.path=photos.csv --val 0.1 --test 0.1                   # with a random split
    linnaeus prepare darwin_core store data.path=download.zip data.root=photos --task 3/16      # one of 16 jobs; then once without --task

If the command was stopped, give it again: it continues, and the store has the same bytes in the end. A record of the source that is not in
the store is counted in `store.json` with the reason, and named in `left_out.csv`. To train: `python main.py data=store data.path=store`.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError, counted, list_some, quoted, redacted, shorten
from linnaeus.files import TEMPORARY, no_follow, read_json, to_json, to_utf8, write_atomic
from linnaeus.workloads.taxonomy.arrays.text_arrays import digests, joined
from linnaeus.workloads.taxonomy.config import ImageFolderConfig, ManifestConfig
from linnaeus.workloads.taxonomy.images.url_files import is_url
from linnaeus.workloads.taxonomy.manifest.clean_records import CleanRecords, read_clean
from linnaeus.workloads.taxonomy.manifest.source_options import add_settings, add_source, check_settings, source_config
from linnaeus.workloads.taxonomy.store import store_layout as layout
from linnaeus.workloads.taxonomy.store.complete_store import REQUEST, account_lines, finish, remove_intermediate
from linnaeus.workloads.taxonomy.store.encoding import ENCODINGS, Encoding
from linnaeus.workloads.taxonomy.store.fetched_tables import fetched
from linnaeus.workloads.taxonomy.store.parts import PART, PartWriter, write_parts
from linnaeus.workloads.taxonomy.store.random_split import with_split

SHORT_SIDE, QUALITY = 256, 90  # defaults of --short-side and --quality
OF_TRAINING = (  # keys of `data` that only training reads
    *("image_size", "sampling", "sampling_rank", "last_batch", "validation_batch"),
    *("order", "block_records", "window_blocks", "folds", "fold"),
)


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
            others = "; linnaeus doctor --corrected FILE leaves out such photographs" if is_url(error.filename) else ""
            raise ConfigError(f"{error}; correct this and give the same command again to continue{others}") from error
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
    add("--val", type=float, metavar="SHARE", default=0.0, help="store a random split with this share of the records for validation")
    add("--test", type=float, metavar="SHARE", default=0.0, help="the same for test; the seed is data.split_seed")
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
    if not (0 <= options.val < 1 and 0 <= options.test < 1 and options.val + options.test < 1):
        raise ConfigError(f"--val {options.val:g} and --test {options.test:g} must be shares of the records, from 0 to below 1 in all")
    options.share = _share(options.task)
    check_settings(options)
    if useless := [text for text in options.overrides if text.partition("=")[0].removeprefix("data.") in _of_training(options)]:
        raise ConfigError(f"{shorten(useless[0])} has no effect on a store; set it when training starts, with data=store")
    return options


def _of_training(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the keys of `data` that do not change the store."""
    if options.source == "labels_h5":  # its split is stored
        return OF_TRAINING
    return (*OF_TRAINING, "validation_fraction", *([] if options.val or options.test else ["split_seed"]))


def prepare(options: argparse.Namespace) -> list[str]:
    """Write the store that the options describe, or with --task only a share of its parts. Return the lines to print.

    Raise `ConfigError` for a source that cannot be read, a folder with other content, and too many damaged photographs."""
    store: Path = options.out.expanduser()
    _check_folder(store)
    given = source_config(options)
    if isinstance(given, ImageFolderConfig) and store.resolve().is_relative_to(Path(given.path).expanduser().resolve()):
        raise ConfigError(f"OUT: {quoted(str(store), 200)} is in the folder of the photographs, whose files are read; choose one outside")
    config, tables = fetched(given, store)
    rows, config = read_clean(config, test=None)
    if unknown := [rank for rank in config.ranks or () if rank not in rows.tree.ranks]:
        ranks = list_some(rows.tree.ranks)
        raise ConfigError(f"data.ranks: {quoted(unknown[0])} is not a taxonomic rank of the data; use {ranks}")
    if options.val or options.test:
        rows = with_split(rows, config, options.val, options.test)
    source = {"source": f"data={options.source} data.path={redacted(str(given.path))}"} | ({"fetched": tables} if tables else {})
    encoding = Encoding(options.images, options.short_side, options.quality, config.max_image_pixels)
    request = _request(rows, encoding, config.group_column)
    if options.val or options.test:
        request["split"] = {"val": options.val, "test": options.test, "seed": config.split_seed}
    if not (store / layout.RECORD).exists():
        writer = PartWriter(store, rows.files, encoding, PART)
        try:
            if lines := _prepare_share(rows, config, options, source, request, writer):
                return lines
        except (ConfigError, OSError):
            if not (store / layout.RECORD).exists():
                raise  # otherwise another process has completed the store, and deleted the temporary files of this process
    return _already_complete(store, layout.read_record(store), request)


def _prepare_share(
    rows: CleanRecords,
    config: ManifestConfig,
    options: argparse.Namespace,
    source: dict[str, Any],
    request: dict[str, Any],
    writer: PartWriter,
) -> list[str]:
    """Write the missing parts of the share of this process. If all parts of the store are then written, complete the store.

    `source`: as in `finish`. Return the lines to print; [] if another process has completed the store meanwhile."""
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
        return finish(rows, config, source, request, writer)


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
    remove_intermediate(store)
    if record.get("request") != request:
        raise ConfigError(f"OUT: {quoted(str(store), 200)} is a store with other settings or records; choose another folder, or delete it")
    layout.check_files(store, record)
    return [*account_lines(record), f"{store} was complete before"]


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
        _check_folder(store)
        store.mkdir(parents=True, exist_ok=True)
        write_atomic(path, to_json(request))
    begun = read_json(path) or {}
    if changed := [key for key in request if begun.get(key) != request[key]]:
        raise ConfigError(
            f"OUT: {quoted(str(store), 200)} was begun with another {' and '.join(changed)}; repeat that command, or choose a new folder"
        )


def _check_folder(store: Path) -> None:
    """Raise `ConfigError` if the folder of a store exists with other files than those of a preparation."""
    begun = (store / REQUEST, store / layout.RECORD)
    empty = not store.exists() or (store.is_dir() and all(entry.name.startswith(TEMPORARY) for entry in store.iterdir()))
    if not empty and not any(path.exists() for path in begun):  # one exists if another task has just begun the store
        raise ConfigError(f"OUT: {quoted(str(store), 200)} is not an empty folder; choose a new one")


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


if __name__ == "__main__":
    raise SystemExit(main())
