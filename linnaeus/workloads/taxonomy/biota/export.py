"""Writes biota as a folder of JPEGs and a manifest, so that every source of photographs can be tested against it.

`manifest.csv`: path, order, family, genus, species, latitude, longitude, uncertainty, date, time, elevation, split (train or
val). A field is empty where a label is null or a component missing. A repeated export writes the same rows and, with the same
version of Pillow, the same bytes.
"""

from __future__ import annotations

import csv
import datetime
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from linnaeus.workloads.taxonomy.biota.source import build_source
from linnaeus.workloads.taxonomy.observations import TRAIN, Metadata, Source

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.config import BiotaConfig

YEAR = 2023  # of 365 days; biota itself knows the fraction of the year only
QUALITY = 92
_BATCH = 64


def export(config: BiotaConfig, directory: Path) -> int:
    """Write every observation of `config` under `directory` (made, must be empty or absent); returns their number.

    Raises FileExistsError when the directory holds anything."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty; name a new folder")
    (directory / "images").mkdir()
    source = build_source(config)
    for start in range(0, len(source.ids), _BATCH):
        _write_images(source, np.arange(start, min(start + _BATCH, len(source.ids))), directory)
    unfinished = directory / "manifest.csv.part"
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["path", *source.tree.ranks, "latitude", "longitude", "uncertainty", "date", "time", "elevation", "split"],
        )
        writer.writerows(_row(source, i) for i in range(len(source.ids)))
    unfinished.rename(directory / "manifest.csv")
    return len(source.ids)


def _image_path(source: Source, i: int) -> str:
    return f"images/{source.ids[i]}.jpg"


def _write_images(source: Source, samples: np.ndarray, directory: Path) -> None:
    from PIL import Image

    for i, photograph in zip(samples, source.images.read(samples), strict=True):
        Image.fromarray(photograph).save(directory / _image_path(source, int(i)), quality=QUALITY)


def _row(source: Source, i: int) -> list[str]:
    taxa = [names[c] if c >= 0 else "" for names, c in zip(source.tree.names, source.labels[i], strict=True)]
    return [_image_path(source, i), *taxa, *_where_and_when(source.metadata, i), "train" if source.split[i] == TRAIN else "val"]


def _where_and_when(metadata: Metadata, i: int) -> list[str]:
    def number(value: float, digits: int) -> str:
        return "" if math.isnan(value) else f"{value:.{digits}f}"

    date = time = ""
    if not math.isnan(metadata.day[i]):
        date = (datetime.date(YEAR, 1, 1) + datetime.timedelta(days=int(float(metadata.day[i]) * 365))).isoformat()
    if not math.isnan(metadata.hour[i]):
        seconds = int(float(metadata.hour[i]) * 3600)
        time = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    where = [number(metadata.latitude[i], 5), number(metadata.longitude[i], 5), number(metadata.uncertainty[i], 1)]
    return [*where, date, time, number(metadata.elevation[i], 1)]
