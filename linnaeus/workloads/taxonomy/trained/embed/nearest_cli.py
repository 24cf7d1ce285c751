"""Run the command `linnaeus nearest`: find similar photographs by the cosine of the features that `linnaeus embed` wrote.

    linnaeus nearest features.npy BUNDLE photo.jpg --count 5          the nearest photographs of the index
    linnaeus nearest features.npy --duplicates --out duplicates.csv   pairs of the index that are almost the same
    linnaeus nearest features.npy --odd --out odd.csv                 photographs of the index, least similar to others first

The index is compared in blocks, so that the memory for cosines does not grow with the number of photographs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.model_options import add_model, add_model_options, check_ranges, load_options, use_threads
from linnaeus.config.run_command import run_command
from linnaeus.errors import ConfigError, counted, escaped
from linnaeus.workloads.taxonomy.trained.photographs.photograph_options import (
    OF_ALL,
    add_photographs,
    check_out,
    check_photographs,
    photographs_of,
    refuse_metadata,
)

if TYPE_CHECKING:
    import torch

    from linnaeus.workloads.taxonomy.trained.embed.feature_index import FeatureIndex
    from linnaeus.workloads.taxonomy.trained.embed.match_tables import Matches

SHOWN = 20  # most lines that are printed without --out
COUNT = 5  # default of --count
ABOVE = 0.999  # copies saved as JPEG of quality 30 have a cosine of 0.9993, of half the size 0.998; other photographs up to 0.9987
OF_MODEL = (
    "model",
    "photos",
    "manifest",
    "split",
    "setting",
    *OF_ALL,
    "batch_size",
    "checkpoint",
    "plugins",
)  # options of a search by PHOTOS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 130 after Ctrl-C. Exit with status 2 and one line on stderr after a user's mistake."""
    return run_command(arguments, _parse, search)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="linnaeus nearest", description="Find similar photographs by their features.")
    add = parser.add_argument
    add("index", metavar="INDEX", type=Path, help="features.npy or features.parquet of `linnaeus embed`")
    add_model(parser, "model", ", which wrote INDEX; with PHOTOS", required=False)
    add_photographs(parser)
    add("--duplicates", action="store_true", help="pairs of photographs of INDEX, in place of MODEL and PHOTOS")
    add("--odd", action="store_true", help="photographs of INDEX by their distance from others, in place of MODEL and PHOTOS")
    add("--above", type=float, metavar="C", help=f"least cosine of --duplicates ({ABOVE})")
    add("--count", type=int, metavar="N", help=f"nearest photographs of each ({COUNT})")
    add("--out", type=Path, metavar="FILE", help="file of the result: .csv or .json")
    add_model_options(parser, "checkpoint", "device", "threads", "plugins")
    options = parser.parse_intermixed_args(arguments)
    _check(options, [name for name in OF_MODEL if getattr(options, name) not in (parser.get_default(name), [])])
    return options


def _check(options: argparse.Namespace, given: Sequence[str]) -> None:
    """Raise `ConfigError` for options that have no effect together, such as --above without --duplicates, and for values out of range.

    `given`: names of the options in `OF_MODEL` that the user gave."""
    mode = "--duplicates" if options.duplicates else "--odd" if options.odd else None
    if options.duplicates and options.odd:
        raise ConfigError("--duplicates and --odd exclude each other; give one")
    if mode and given:
        name = given[0].upper() if given[0] in ("model", "photos") else f"--{given[0].replace('_', '-')}"
        raise ConfigError(f"{name} has no effect with {mode}, which compares the photographs of INDEX; leave it out")
    if not mode and options.model is None:
        raise ConfigError("give MODEL and PHOTOS, or --duplicates, or --odd")
    if not mode:
        check_photographs(options)
    if options.above is not None and not options.duplicates:
        raise ConfigError(f"--above {options.above:g} has no effect without --duplicates; leave it out")
    if options.count is not None and options.duplicates:
        raise ConfigError(f"--count {options.count} has no effect with --duplicates; leave it out")
    check_out(options.out, (".csv", ".json"))
    check_ranges(options, {"above": (-1, 1), "count": (1, 1000)})


def search(options: argparse.Namespace) -> list[str]:
    """Search as `options` describe. Write the result to `options.out`, if given. Return the lines to print.

    Raise `ConfigError` for a user's mistake."""
    from linnaeus.workloads.taxonomy.trained.classifier.trained_network import torch_device
    from linnaeus.workloads.taxonomy.trained.embed.feature_index import read_index
    from linnaeus.workloads.taxonomy.trained.embed.match_tables import write_matches

    threads, device = use_threads(options), torch_device(options.device)
    index = read_index(options.index)
    least = 2 if options.duplicates or options.odd else 1
    if len(index) < least:
        raise ConfigError(f"INDEX: {options.index} has the features of {counted(len(index), 'photograph')}; it must have {least} or more")
    if index.unread:
        print(f"left out, because they could not be read when {options.index} was written: {counted(index.unread, 'photograph')}")
    matches = _matches(options, index, device, threads)
    if options.out is None:
        shown = [_line(row) for row in islice(matches.rows, SHOWN)]
        more = sum(1 for _ in matches.rows)
        return (shown or ["none"]) + ([f"and {more:,} more; --out matches.csv writes all"] if more else [])
    return [f"{counted(write_matches(options.out, matches), 'row')}: {options.out}"]


def _matches(options: argparse.Namespace, index: FeatureIndex, device: torch.device, threads: int) -> Matches:
    from linnaeus.workloads.taxonomy.trained.embed import match_tables

    if options.duplicates:
        return match_tables.duplicates(index, ABOVE if options.above is None else options.above, device)
    if options.odd:
        return match_tables.odd_ones(index, options.count or COUNT, device)
    from linnaeus.workloads.taxonomy.trained.batches.batch_size import batch_size
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model

    model = load_model(options.model, **load_options(options))
    match_tables.check_model(index, model)
    if not index.head.metadata:
        refuse_metadata(options, "an INDEX that was written --without-metadata")
    inputs = photographs_of(options, model.components if index.head.metadata else (), (), model.description.untrained)
    for note in inputs.notes:
        print(note)
    return match_tables.nearest_ones(index, model, inputs, options.count or COUNT, batch_size(model, options.batch_size), threads)


def _line(row: Sequence[Any]) -> str:
    """Return a row of the result as a line of text for a terminal."""
    return "  ".join(f"{value:.4f}" if isinstance(value, float) else escaped(str(value)) for value in row if value is not None)


if __name__ == "__main__":
    raise SystemExit(main())
