"""Export biota, draw its contact sheet, or print its best possible accuracies from the command line.

linnaeus biota export DIR [--train N --validation N --size PIXELS --world W]
linnaeus biota sheet FILE.png [--size PIXELS --world W]
linnaeus biota ceilings [--train N --validation N --world W]

Columns of `manifest.csv`: path, order, family, genus, species, latitude, longitude, uncertainty, date, time, elevation, split (train or
val). A field is empty where the label is null or the component missing. A repeated export writes the same rows and, with the same
version of Pillow, the same bytes.
"""

import argparse
import csv
import datetime
import math
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError, counted
from linnaeus.workloads.taxonomy.biota.biota_source import build_source
from linnaeus.workloads.taxonomy.biota.oracle import ceilings, format_ceilings
from linnaeus.workloads.taxonomy.biota.render import render_forms
from linnaeus.workloads.taxonomy.biota.world import World, build_world
from linnaeus.workloads.taxonomy.config import BiotaConfig
from linnaeus.workloads.taxonomy.observations import TRAIN, Source

YEAR = 2023  # 365 days; biota has only the fraction of the year
QUALITY = 92  # of the JPEGs
_BATCH = 64
SHEET_INDIVIDUALS = 6  # photographs per species
SHEET_COLUMNS = 3  # species side by side
_CAPTION_WIDTH = 190  # pixels
_PAPER, _INK, _FAINT = (250, 248, 242), (30, 28, 26), (120, 112, 104)


def export(config: BiotaConfig, directory: Path) -> int:
    """Write all photographs and `manifest.csv` into `directory`, and return the number of photographs.

    The directory is created. Raise `FileExistsError` if it exists and is not empty."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty; choose a new folder")
    (directory / "images").mkdir()
    source = build_source(config)
    count = len(source.ids)
    for start in range(0, count, _BATCH):
        samples = np.arange(start, min(start + _BATCH, count))
        for i, photograph in zip(samples, source.images.read(samples), strict=True):
            Image.fromarray(photograph).save(directory / _image_path(source, int(i)), quality=QUALITY)
    partial = directory / "manifest.csv.part"
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *source.tree.ranks, "latitude", "longitude", "uncertainty", "date", "time", "elevation", "split"])
        writer.writerows(_row(source, i) for i in range(count))
    partial.rename(directory / "manifest.csv")
    return count


def _image_path(source: Source, i: int) -> str:
    return f"images/{source.ids[i]}.jpg"


def _row(source: Source, i: int) -> list[str]:
    """Return the cells of individual number i in manifest.csv, in the order of the columns; "" for a missing label and for NaN."""
    taxa = [names[c] if c >= 0 else "" for names, c in zip(source.tree.names, source.labels[i], strict=True)]
    place = [_number(source.metadata.latitude[i], 5), _number(source.metadata.longitude[i], 5), _number(source.metadata.uncertainty[i], 1)]
    day, hour = float(source.metadata.day[i]), float(source.metadata.hour[i])
    date = time = ""
    if not math.isnan(day):
        when = datetime.datetime(YEAR, 1, 1) + datetime.timedelta(days=int(day * 365), seconds=int(hour * 3600))
        date, time = when.date().isoformat(), when.time().isoformat()
    split = "train" if source.split[i] == TRAIN else "val"
    return [_image_path(source, i), *taxa, *place, date, time, _number(source.metadata.elevation[i], 1), split]


def _number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def write_sheet(path: Path, world_number: int, size: int) -> None:
    """Write a contact sheet of a world as a PNG: all species in the order of the tree, each with a caption and six individuals.

    `size`: side of each photograph in pixels. A `size` below 48 is raised to 48, so that captions fit."""
    size = max(size, 48)
    world = build_world(world_number)
    species = len(world.form)
    rows = -(-species // SHEET_COLUMNS)
    width = SHEET_COLUMNS * (_CAPTION_WIDTH + SHEET_INDIVIDUALS * size)
    sheet = Image.new("RGB", (width, rows * size), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for s in range(species):
        left, top = (s // rows) * (width // SHEET_COLUMNS), (s % rows) * size
        _write_caption(pen, world, s, left + 6, top + 4)
        samples = np.arange(SHEET_INDIVIDUALS) + 1000 * s  # different poses for each species
        strip = render_forms(world_number, np.full(SHEET_INDIVIDUALS, world.form[s]), samples, size)
        sheet.paste(Image.fromarray(np.concatenate(list(strip), axis=1)), (left + _CAPTION_WIDTH, top))
    sheet.save(path)


def _write_caption(pen: ImageDraw.ImageDraw, world: World, s: int, x: int, y: int) -> None:
    """Write the caption of species number s at the pixel (x, y): the name, the frequency and, in a cryptic group (species of equal looks),
    the metadata that separate the group. Above the first species of a genus, also write the order and family."""
    order, family = (world.tree.names[r][c] for r, c in enumerate(world.lineage[s, :2]))
    if s == 0 or world.lineage[s, 2] != world.lineage[s - 1, 2]:
        pen.text((x, y), f"{order} · {family}", fill=_FAINT)
    pen.text((x, y + 14), world.tree.names[3][s], fill=_INK)
    kind = f"separated by {world.cryptic_kind[s]}" if world.cryptic_kind[s] else ""
    pen.text((x, y + 28), f"{100 * world.prior[s]:.2f} %  {kind}", fill=_FAINT)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="linnaeus biota", description="Export the embedded world of drawn organisms, or describe it.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="export | sheet | ceilings")
    options = {  # name -> least value, default, meaning
        "train": (2, 10000, "individuals for training"),
        "validation": (1, 2000, "individuals for validation"),
        "size": (8, 64, "side of a photograph in pixels"),
        "world": (0, 0, "number of the world"),
    }
    for name, description, path, accepted in (
        ("export", "write JPEGs and manifest.csv", "DIR", ("train", "validation", "size", "world")),
        ("sheet", "draw every species as a PNG", "FILE.png", ("size", "world")),
        ("ceilings", "print the best possible accuracies", "", ("train", "validation", "world")),
    ):
        command = commands.add_parser(name, help=description, description=description, prog=f"linnaeus biota {name}")
        if path:
            command.add_argument("path", metavar=path, type=Path)
        for option in accepted:
            _, default, meaning = options[option]
            command.add_argument(f"--{option}", type=int, default=default, help=f"{meaning} (%(default)s)")
    parsed = parser.parse_args(argv)
    for option, (least, _, _) in options.items():
        if getattr(parsed, option, least) < least:
            raise ConfigError(f"--{option} is {getattr(parsed, option)}; it must be at least {least}")
    return parsed


def biota_config(train: int = 10000, validation: int = 2000, size: int = 64, world: int = 0) -> BiotaConfig:
    """Return a configuration of `data=biota` for use outside a run.

    `train`, `validation`: numbers of individuals. `size`: side of a photograph in pixels. `world`: seed of the generated world."""
    return BiotaConfig(
        name="biota",
        last_batch="keep",
        validation_batch=100,
        max_bad_fraction=0.0,
        ranks=None,
        components=["SPATIAL", "TEMPORAL", "ELEVATION"],
        sampling="natural",
        sampling_rank=None,
        image_size=size,
        train_samples=train,
        validation_samples=validation,
        world=world,
    )


def _run(command: str, path: Path | None = None, **options: int) -> str:
    """Run the command `export`, `sheet` or `ceilings` and return the text to print. `options`: arguments of `biota_config`.

    Raise `ConfigError` if the path of a sheet does not end in .png."""
    if command == "ceilings":
        return format_ceilings(ceilings(biota_config(**options)))
    assert path is not None
    if command == "export":
        check = f"linnaeus data=manifest data.path={path / 'manifest.csv'} plan=true"
        return (
            f"{counted(export(biota_config(**options), path), 'photograph')} and manifest.csv written to {path}; check them with: {check}"
        )
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{path} must end in .png")
    write_sheet(path, options["world"], options["size"])
    return f"all species of world {options['world']} written to {path}"


def main(argv: list[str]) -> int:
    """Run the command in `argv`. Return 0, or exit with status 2 and one line on stderr for a user's mistake."""
    with user_errors(2):
        try:
            print(_run(**vars(_arguments(argv))))
        except OSError as error:
            raise ConfigError(str(error)) from None
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
