"""List the file formats of `linnaeus predict`, and write the file of predictions when all photographs are done."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.batches.journal import Journal
from linnaeus.workloads.taxonomy.trained.predict.answered import Answered
from linnaeus.workloads.taxonomy.trained.predict.camera_trap_json import write_megadetector, write_speciesnet
from linnaeus.workloads.taxonomy.trained.predict.observation_tables import MEDIA, check_media, write_camtrap_dp, write_darwin_core
from linnaeus.workloads.taxonomy.trained.predict.prediction_tables import write_csv, write_json, write_parquet

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.manifest.tables.table import Column


class Format(NamedTuple):
    """File format of predictions: suffix of the file, function that writes the file, and the columns that are copied from a manifest."""

    suffix: str
    write: Callable[[Path, Answered], None]
    lists: bool = False  # the file has several taxa of a rank; other formats have the predicted path only
    columns: tuple[str, ...] = ()  # columns that the format copies from the manifest, if the manifest has them
    check: Callable[[Mapping[str, Column]], None] = lambda columns: None  # raises `ConfigError` for columns that it cannot use


FORMATS = {
    "json": Format(".json", write_json, True),
    "csv": Format(".csv", write_csv),
    "parquet": Format(".parquet", write_parquet),
    "speciesnet": Format(".json", write_speciesnet, True),
    "megadetector": Format(".json", write_megadetector, True),
    "camtrap_dp": Format(".csv", write_camtrap_dp, False, (*MEDIA, "eventID"), check_media),
    "darwin_core": Format(".csv", write_darwin_core, False, ("occurrenceID",)),
}


def format_of(name: str | None, out: Path) -> str:
    """Return the name of the format of the file `out`: `name`, or, if `name` is None, the first format with the suffix of `out`.

    Raise `ConfigError` if `out` has another suffix than the format, or the suffix of no format."""
    suffixes: dict[str, str] = {}
    for key, chosen in FORMATS.items():
        suffixes.setdefault(chosen.suffix, key)
    if name is None and out.suffix.lower() not in suffixes:
        raise ConfigError(f"--out: {out} must end in {', '.join(suffixes)}")
    if name is not None and out.suffix.lower() != FORMATS[name].suffix:
        raise ConfigError(f"--out: {out} must end in {FORMATS[name].suffix} for --format {name}")
    return name or suffixes[out.suffix.lower()]


def write_file(out: Path, name: str, journal: Journal, answered: Answered) -> None:
    """Write the predictions to the file `out` in the format `name`, and delete the journal. `answered`: the rows of the journal.

    Raise `ConfigError` if the file cannot be written; the journal is then kept."""
    temporary = out.with_name(f".tmp-{out.name}")
    try:
        FORMATS[name].write(temporary, answered)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(out)
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror}); {journal.path} has the predictions") from None
    journal.remove()
