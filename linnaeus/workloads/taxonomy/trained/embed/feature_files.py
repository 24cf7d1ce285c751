"""Write files of features of photographs, batch by batch, with the paths of the photographs and the fingerprint of the model.

`feature_index.py` reads these files:

    features.npy         float32 [N, width], in the order of the photographs; a photograph that cannot be read has a row of NaN
    features.npy.csv     the columns photograph and error; row i describes row i of the features
    features.npy.json    `Head`; it is written last: if it is missing, the other files are incomplete
    features.parquet     the columns photograph, features (null if it cannot be read) and error, and `Head` in the metadata of the table

If a command is stopped, the files of an earlier command with the same names are unchanged.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.files import TEMPORARY, to_json, to_utf8, write_atomic

FORMAT, VERSION = "linnaeus-features", 1
Append = Callable[[Sequence[str], np.ndarray, Sequence[str | None]], None]  # writes a batch; arguments are the fields of `Embedded`
KEY = b"linnaeus"  # key of `Head` in the metadata of a Parquet table
SUFFIXES = (".npy", ".parquet")
GROUP = 4096  # photographs per row group of a Parquet table


@dataclass(frozen=True)
class Head:
    """Description of a file of features.

    `model`: path of the model. `fingerprint`: `TrainedClassifier.fingerprint` of the model. `photographs`: number of photographs, including
    unreadable ones. `width`: number of features. `normalized`: True if feature vectors have length 1. `metadata`: True if place and date
    were used, where known."""

    model: str
    fingerprint: str
    photographs: int
    width: int
    normalized: bool
    metadata: bool

    def to_json(self) -> str:
        """Return the description as JSON."""
        return to_json({"format": FORMAT, "version": VERSION} | asdict(self))


@contextmanager
def feature_file(out: Path, head: Head) -> Iterator[Append]:
    """Yield a function that appends batches to a temporary file. At the end of the block the temporary file replaces `out`.

    Raise `ConfigError` if the file cannot be written, and for .parquet if pyarrow is not installed."""
    try:
        with (_npy if out.suffix.lower() == ".npy" else _parquet)(out, head) as append:
            yield append
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror or error}); choose another file") from None


def names_file(out: Path) -> Path:
    """Return the path of the CSV file with the paths of the photographs, for the .npy file `out`."""
    return out.with_name(out.name + ".csv")


def head_file(out: Path) -> Path:
    """Return the path of the JSON file with the `Head`, for the .npy file `out`."""
    return out.with_name(out.name + ".json")


@contextmanager
def _npy(out: Path, head: Head) -> Iterator[Append]:
    with replacing(out) as features, replacing(names_file(out)) as names:
        with (
            open(features, "wb") as numbers,
            open(names, "w", encoding="utf-8", errors="backslashreplace", newline="") as text,
        ):
            shape = (head.photographs, head.width)
            np.lib.format.write_array_header_1_0(numbers, {"descr": "<f4", "fortran_order": False, "shape": shape})
            table = csv.writer(text, lineterminator="\n")
            table.writerow(["photograph", "error"])

            def append(names: Sequence[str], features: np.ndarray, errors: Sequence[str | None]) -> None:
                numbers.write(features.astype("<f4").tobytes())
                table.writerows(zip(names, errors, strict=True))

            yield append
        head_file(out).unlink(missing_ok=True)
    write_atomic(head_file(out), head.to_json())


@contextmanager
def _parquet(out: Path, head: Head) -> Iterator[Append]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("--out: Parquet needs pyarrow (pip install pyarrow); choose an .npy file") from None
    kind = pa.list_(pa.float32())  # pyarrow 16 cannot write lists of a fixed size with a null, 17 to 23 cannot read them
    columns = [pa.field("photograph", pa.string()), pa.field("features", kind), pa.field("error", pa.string())]
    with replacing(out) as temporary, pq.ParquetWriter(temporary, pa.schema(columns, metadata={KEY: head.to_json()})) as table:
        held: list[pa.RecordBatch] = []

        def append(names: Sequence[str], features: np.ndarray, errors: Sequence[str | None]) -> None:
            read = np.array([error is None for error in errors])
            ends = np.append(0, np.cumsum(read * head.width)).astype(np.int32)
            rows = pa.ListArray.from_arrays(pa.array(ends), pa.array(features[read].ravel()), type=kind, mask=pa.array(~read))
            texts = pa.array([to_utf8(name).decode() for name in names])
            held.append(pa.record_batch([texts, rows, pa.array(errors, pa.string())], schema=table.schema))
            if sum(map(len, held)) >= GROUP:
                table.write_table(pa.Table.from_batches(held))
                held.clear()

        yield append
        if held:
            table.write_table(pa.Table.from_batches(held))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file in the folder of `path`. At the end of the block the temporary file replaces `path`; after an
    error the temporary file is deleted."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
