"""Find the photographs of a manifest on which a run was trained: those with the same bytes as a training photograph of the run.

A store usually holds photographs that were encoded again. It has hashes of the original files, which are compared instead.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError, counted, one_line
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.data_source import build_data_source
from linnaeus.workloads.taxonomy.images.contents import WIDE, wide_hash
from linnaeus.workloads.taxonomy.images.image_files import ImageFiles
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import TRAIN, Source
from linnaeus.workloads.taxonomy.store.store_files import StoreFiles
from linnaeus.workloads.taxonomy.store.store_layout import read_record
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import configuration_of


def without_training(run: Path, files: ImageFiles, group: np.ndarray | None) -> tuple[np.ndarray, list[str]]:
    """Return the positions of the files that are neither training photographs of the run in the directory `run` nor of the same observation
    as one of them, int64 [M], and lines of text about it.

    `group`: int64 [N], observation of each file; None: each file is its own observation. If the training photographs cannot be read, return
    all positions. Raise `ConfigError` if no file is left."""
    seen, lines = used_in_training(run, files)
    unused = ~seen if group is None else ~np.isin(group, group[seen])
    if not unused.any():
        of = "all of its photographs" if seen.all() else "a photograph of each of its observations"
        raise ConfigError(f"--manifest: the run was trained on {of}; give photographs that were not used for training")
    if seen.any() or not lines:
        others = int((~unused & ~seen).sum())
        more = f" with {counted(others, 'other photograph')} of the same observations" if others else ""
        left_out = f", which are left out{more}" if seen.any() else ""
        lines = [f"the run was trained on {seen.sum():,} of {counted(len(seen), 'photograph')} of the manifest{left_out}", *lines]
    return np.flatnonzero(unused), lines


def used_in_training(run: Path, files: ImageFiles) -> tuple[np.ndarray, list[str]]:
    """Return a mask of the files that are training photographs of the run in the directory `run`, bool [N], and a line of text if some or
    all files could not be compared. Such files are False in the mask."""
    nothing = np.zeros(len(files.names), dtype=bool)
    try:
        source = build_data_source(configuration_of(run))[0]
        trained = _training_files(source)
        store = trained if isinstance(trained, StoreFiles) else None
        originals = store.originals() if store is not None else None
        encoded_again = store is not None and read_record(store.store)["encoding"]["name"] != "original"
    except (ConfigError, OSError) as error:
        return nothing, [f"not compared with the training photographs, which cannot be read: {one_line(error)}"]
    if trained is None:
        return nothing, ["not compared with the training photographs, since the data of the run are not files"]
    seen = same_bytes(files, trained) if originals is None else same_originals(files, originals)
    if originals is not None or not encoded_again:
        return seen, []
    return seen, [  # photographs that the store holds unchanged are found
        f"not compared with the training photographs: {(~seen).sum():,} of {counted(len(seen), 'photograph')} of the manifest, since the "
        "store of the run holds photographs that were encoded again, without hashes of the original files; prepare it again, and "
        "photographs of the training will be found"
    ]


def same_originals(files: ImageFiles, originals: np.ndarray) -> np.ndarray:
    """Return a mask of the files whose `wide_hash` is in `originals`, uint8 [M, 16], bool [N]. A file that cannot be read is not."""
    own, count = np.zeros((len(files.names), WIDE), dtype=np.uint8), len(files.names)
    readable = np.zeros(count, dtype=bool)
    with PreparationProgress("comparing with the training photographs", count, counted(count, "photograph")) as progress:
        for row in progress.each(range(count)):
            with contextlib.suppress(NotAnImage, OSError):
                own[row] = np.frombuffer(wide_hash(files.read(row)), np.uint8)
                readable[row] = True
    return readable & np.isin(_as_texts(own), _as_texts(originals))


def _as_texts(hashes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(hashes).view(f"S{WIDE}").reshape(-1)  # a type that numpy sorts


def same_bytes(files: ImageFiles, others: ImageFiles) -> np.ndarray:
    """Return a mask of the files whose bytes are also those of a file in `others`, bool [N]. A file that cannot be read is not.

    Only files with the size of another one are read. The files in `others` may be all photographs of a run."""
    sizes, their = files.sizes(), others.sizes()
    candidates = np.flatnonzero((sizes > 0) & np.isin(sizes, their))
    partners = np.flatnonzero(np.isin(their, sizes[candidates]))
    count = len(candidates) + len(partners)
    with PreparationProgress("comparing with the training photographs", count, counted(count, "photograph")) as progress:
        digests = set()
        for row in partners.tolist():
            digests.add(_digest(others, row))
            progress.add(1)
        found = np.zeros(len(sizes), dtype=bool)
        for row in candidates.tolist():
            own = _digest(files, row)
            found[row] = own is not None and own in digests
            progress.add(1)
    return found


def _digest(files: ImageFiles, row: int) -> bytes | None:
    try:
        return hashlib.sha256(files.read(row)).digest()
    except (NotAnImage, OSError):
        return None


def _training_files(source: Source) -> ImageFiles | None:
    """Return the files of the training photographs; None if the photographs of the source are not files."""
    files = getattr(source.images, "files", None)
    return files.take(np.flatnonzero(source.split == TRAIN)) if isinstance(files, ImageFiles) else None
