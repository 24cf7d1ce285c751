"""Run the command `linnaeus embed`: write the features of photographs (the input of the model's head) to a file.

    linnaeus embed BUNDLE photos/ --out features.npy
    linnaeus embed BUNDLE --manifest photos.csv --out features.parquet --normalize --without-metadata
    linnaeus embed RUN --split training --out features.npy

`linnaeus nearest` searches this file. A photograph that cannot be read is named in the file, but has no features. If the command is killed,
the same command continues where it stopped."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.model_options import add_model, add_model_options, check_ranges, load_options, use_threads
from linnaeus.config.run_command import CONTINUES, run_command
from linnaeus.errors import counted, escaped
from linnaeus.workloads.taxonomy.trained.photographs.photograph_options import (
    add_photographs,
    check_out,
    check_photographs,
    photographs_of,
    refuse_metadata,
)

BLOCK = 1024  # photographs that are copied to the file at once
SHOWN = 20  # photographs that could not be read: most lines that are printed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 130 after Ctrl-C. Exit with status 2 and one line on stderr after a user's mistake."""
    return run_command(arguments, _parse, embed, lambda options: CONTINUES)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="linnaeus embed", description="Write the features of photographs.")
    add_model(parser, "model")
    add_photographs(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file of the features: .npy or .parquet")
    parser.add_argument("--normalize", action="store_true", help="divide the features of each photograph by their length")
    parser.add_argument("--without-metadata", action="store_true", help="leave out place and date, so that only the pictures are compared")
    add_model_options(parser, "checkpoint", "device", "threads", "plugins")
    options = parser.parse_intermixed_args(arguments)
    check_photographs(options)
    if options.without_metadata:
        refuse_metadata(options, "--without-metadata")
    check_out(options.out, (".npy", ".parquet"))
    check_ranges(options, {})
    return options


def embed(options: argparse.Namespace) -> list[str]:
    """Compute the features of the photographs in `options` and write them to `options.out`. Return the lines to print.

    Raise `ConfigError` for a user's mistake."""
    from linnaeus.workloads.taxonomy.trained.batches.batch_size import batch_size
    from linnaeus.workloads.taxonomy.trained.batches.journal import Journal
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
    from linnaeus.workloads.taxonomy.trained.embed.embedding import embed_batches, from_rows, to_rows
    from linnaeus.workloads.taxonomy.trained.embed.feature_files import Head, feature_file

    threads = use_threads(options)
    model = load_model(options.model, **load_options(options))
    inputs = photographs_of(options, () if options.without_metadata else model.components, (), model.description.untrained)
    for note in inputs.notes:
        print(note)
    head = Head(str(options.model), model.fingerprint(), len(inputs), model.width, options.normalize, not options.without_metadata)
    size = batch_size(model, options.batch_size, options.out)
    with Journal(options.out, asdict(head) | inputs.identity(), size) as journal:
        continued, start = journal.done, time.monotonic()
        for batch in embed_batches(model, inputs, size, threads, options.normalize, journal.done):
            journal.append(to_rows(batch))
        seconds = time.monotonic() - start
        unread: list[tuple[str, str]] = []
        with feature_file(options.out, head) as append:
            for batch in from_rows(journal.rows(), BLOCK, model.width):
                append(batch.names, batch.features, batch.errors)
                unread += [(name, error) for name, error in zip(batch.names, batch.errors, strict=True) if error is not None]
        journal.remove()
    photographs = counted(len(inputs), "photograph")
    lines = [f"{len(inputs) - len(unread):,} of {photographs}, {model.width:,} features of each: {options.out}"]
    lines[0] += f" ({(len(inputs) - continued) / seconds:,.1f} photographs/s)"
    lines += [f"{continued:,} of them were done before"] if continued else []
    return lines + _unread(unread)


def _unread(unread: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of text about photographs that could not be read. `unread`: (path, reason) of each."""
    lines = [f"{escaped(name)}  not read: {error}" for name, error in unread[:SHOWN]]
    return lines + ([f"{len(unread):,} could not be read; the file has the reason of each"] if unread else [])


if __name__ == "__main__":
    raise SystemExit(main())
