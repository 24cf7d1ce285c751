"""Add and check the options of commands that read photographs: PHOTOS, --manifest and --split, place and date, and --batch-size."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from linnaeus.errors import ConfigError, counted

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs

OF_ALL = {  # option -> its meaning
    "latitude": "degrees north",
    "longitude": "degrees east",
    "uncertainty": "of the coordinates, in metres",
    "date": "such as 2026-05-01",
    "time": "local time, such as 16:10",
    "elevation": "metres above the sea",
}

ROWS = (  # settings of a manifest that every command reads
    *("root", "image_column", "latitude_column", "longitude_column", "uncertainty_column", "keep_zero_coordinates"),
    *("date_column", "date_format", "time_column", "elevation_column", "elevation_missing"),
)
SPLITS = ("split_column", "split_file", "split_dates")  # with --split
LABELS = ("rank_columns", "taxonomy", "taxon_column", "group_column", "max_bad_fraction")  # of commands that read labels

COMPONENT = {"elevation": "ELEVATION", "date": "TEMPORAL", "time": "TEMPORAL"}  # option -> metadata component; SPATIAL for the others


def add_photographs(parser: argparse.ArgumentParser) -> None:
    """Add PHOTOS, --manifest, --split, --setting, place and date, and --batch-size to a parser. Call `parser.parse_intermixed_args`
    afterwards."""
    add = parser.add_argument
    add("photos", nargs="*", metavar="PHOTOS", help="files, folders, or patterns such as 'photos/*.jpg'")
    add("--manifest", metavar="FILE", help="CSV or Parquet table with paths, places and dates, in place of PHOTOS")
    add("--split", choices=("training", "validation", "test"), help="rows of the run's data, or with --manifest of its column split (all)")
    add("--setting", action="append", default=[], metavar="KEY=VALUE", help="of the manifest, such as data.date_column=when")
    for name, meaning in OF_ALL.items():
        add(f"--{name}", metavar="VALUE", help=f"of all photographs: {meaning}")
    add("--batch-size", type=int, metavar="N", help="photographs at once (32; on a GPU the fastest number from 32 to 1,024)")


def check_photographs(options: argparse.Namespace) -> None:
    """Raise `ConfigError` if none of PHOTOS, --manifest and --split is given, for PHOTOS with one of the others, and for options that have
    no effect with the given one."""
    if options.photos and options.split:
        raise ConfigError(f"--split {options.split} has no effect with PHOTOS; leave it out")
    if bool(options.photos) == bool(options.manifest) and not options.split:
        raise ConfigError(
            "give PHOTOS (files, folders or patterns) or --manifest FILE" + ("" if options.manifest is None else ", not both")
        )
    if options.manifest or options.split:
        refuse_metadata(options, f"{'--manifest' if options.manifest else '--split'}, whose rows have their own")
    if options.setting and not options.manifest:
        raise ConfigError(f"--setting {options.setting[0]} has no effect without --manifest; leave it out")
    check_settings(options.setting, SPLITS if options.split else ())


def check_settings(settings: Sequence[str], more: Sequence[str]) -> None:
    """Raise `ConfigError` for a value of --setting that the command does not read. `more`: keys that it reads beside `ROWS`."""
    keys = (*ROWS, *more)
    for text in settings:
        group, _, rest = text.partition("=")[0].partition(".")
        if group != "data" or rest.partition(".")[0] not in keys:
            raise ConfigError(f"--setting: {text} has no effect here; give data.KEY=VALUE with a KEY of {', '.join(keys)}")


def refuse_metadata(options: argparse.Namespace, reason: str) -> None:
    """Raise `ConfigError` if an option of place or date (`OF_ALL`) is given. `reason`: text of the message after "has no effect with"."""
    if given := [name for name in OF_ALL if getattr(options, name) is not None]:
        raise ConfigError(f"--{given[0]} has no effect with {reason}; leave it out")


def check_out(out: Path | None, suffixes: Sequence[str]) -> None:
    """Raise `ConfigError` if the file `out` does not end in one of `suffixes`, or if its folder does not exist. Do nothing if `out` is
    None."""
    if out is not None and out.suffix.lower() not in suffixes:
        raise ConfigError(f"--out: {out} must end in {', '.join(suffixes)}")
    if out is not None and not out.resolve().parent.is_dir():
        raise ConfigError(f"--out: {out.parent} is not a folder; make it, or choose another file")


def photographs_of(
    options: argparse.Namespace, components: Sequence[str], copied: Sequence[str] = (), untrained: Sequence[str] = ()
) -> Inputs:
    """Return the photographs that PHOTOS, --manifest and --split name. `components` and `copied`: as in `from_manifest`. `untrained`: as in
    `Description`.

    Raise `ConfigError` as `from_paths`, `from_manifest` and `from_run` do, and for the rows of a bundle, which has no data."""
    from linnaeus.workloads.taxonomy.trained.classifier.bundle import is_bundle
    from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import from_manifest, from_paths, from_run

    if options.split and not options.manifest and is_bundle(options.model):
        raise ConfigError(f"--split {options.split}: {options.model} is a bundle, which has no data; give its run, or --manifest FILE")
    if options.manifest:
        inputs = from_manifest(options.manifest, options.setting, components, copied, options.split)
    elif options.split:
        inputs = from_run(options.model, options.split, components)
    else:
        inputs = from_paths(options.photos, vars(options))
    return replace(inputs, notes=(*inputs.notes, *_without_effect(options, components), *_untrained(inputs, components, untrained)))


def _untrained(inputs: Inputs, components: Sequence[str], untrained: Sequence[str]) -> list[str]:
    """Return a line of text about each quantity that photographs have and the model does not read, although it reads its component."""
    from linnaeus.workloads.taxonomy.observations.components import PARTS

    parts = [name for name in untrained if name in PARTS and PARTS[name][0] in components]
    known = {name: sum(value == value for value in getattr(inputs.metadata, name).tolist()) for name in parts}
    return [
        f"no effect: {name} of {counted(count, 'photograph')}; the model was trained without it" for name, count in known.items() if count
    ]


def _without_effect(options: argparse.Namespace, components: Sequence[str]) -> list[str]:
    """Return a line of text about the given options of place and date that the model does not read; [] if the model reads all of them."""
    unread: dict[str, list[str]] = {}  # component -> options
    for name in OF_ALL:
        component = COMPONENT.get(name, "SPATIAL")
        if getattr(options, name) is not None and component not in components:
            unread.setdefault(component, []).append(f"--{name}")
    names = [name for found in unread.values() for name in found]
    return [f"no effect: {', '.join(names)}; the model does not read {', '.join(unread)}"] if unread else []
