"""The files that `linnaeus predict` writes. Predictions are collected in a journal beside the file, which is made from it at the end.

The journal has a line for the command that it belongs to, then a line per photograph in the order of the inputs. It is written batch by
batch, so that a killed command goes on after the last complete batch, and the file has the same bytes in the end.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from linnaeus.errors import ConfigError
from linnaeus.files import no_follow

Row = dict[str, Any]  # `Prediction.plain`, or photograph and error


class Journal:
    """The predictions that are done. `identity`: everything that determines them; a journal of another identity is not continued."""

    def __init__(self, path: Path, identity: Mapping[str, Any], batch: int) -> None:
        """Raise `ConfigError` if the journal belongs to another command, or cannot be written."""
        self.path, self.batch = path, batch
        head = json.dumps({"predictions of": dict(identity)}, sort_keys=True) + "\n"
        try:
            self.file: IO[bytes] = open(path, "r+b" if path.exists() else "w+b", opener=no_follow)  # noqa: SIM115 (open until `remove`)
            first = self.file.readline()
            if first.endswith(b"\n") and first.decode(errors="replace") != head:
                raise ConfigError(f"--out: {path} is of another model or other photographs; finish that command, or remove the file")
            if first.decode(errors="replace") != head:
                self.file.seek(0)
                self.file.write(head.encode())
            self.done = self._complete_batches()
        except OSError as error:
            raise ConfigError(f"--out: {path} cannot be written ({error.strerror}); choose another file") from None

    def _complete_batches(self) -> int:
        """Return the number of photographs in complete batches, and cut off what follows them."""
        done, end = 0, self.file.tell()
        position = end
        for lines, line in enumerate(self.file, 1):
            if not line.endswith(b"\n"):
                break
            position += len(line)
            if lines % self.batch == 0:
                end, done = position, lines
        self.file.seek(end)
        self.file.truncate()
        return done

    def append(self, rows: Sequence[Row]) -> None:
        """Write the rows of a batch."""
        self.file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogateescape"))
        self.file.flush()

    def rows(self) -> Iterator[Row]:
        """Yield the rows from the first on."""
        self.file.flush()
        with open(self.path, "rb") as file:
            file.readline()
            for line in file:
                yield json.loads(line.decode("utf-8", "surrogateescape"))

    def remove(self) -> None:
        """Close and remove the journal."""
        self.file.close()
        self.path.unlink()


def write_file(out: Path, journal: Journal, head: Mapping[str, Any], ranks: Sequence[str]) -> None:
    """Make the file of the predictions from the journal, in the format of its suffix, and remove the journal."""
    temporary = out.with_name(f".tmp-{out.name}")
    try:
        WRITERS[out.suffix.lower()](temporary, journal.rows(), head, ranks)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(out)
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror}); {journal.path} has the predictions") from None
    journal.remove()


def _write_json(path: Path, rows: Iterator[Row], head: Mapping[str, Any], ranks: Sequence[str]) -> None:
    start = json.dumps(dict(head), indent=2, ensure_ascii=False)
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(start.removesuffix("\n}") + ',\n  "predictions": [')
        for number, row in enumerate(rows):
            file.write(f"{',' if number else ''}\n    {json.dumps(row, ensure_ascii=False)}")
        file.write("\n  ]\n}\n")


def _write_csv(path: Path, rows: Iterator[Row], head: Mapping[str, Any], ranks: Sequence[str]) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        table = csv.DictWriter(file, columns(ranks), lineterminator="\n")
        table.writeheader()
        table.writerows(flat(row, ranks) for row in rows)


def _write_parquet(path: Path, rows: Iterator[Row], head: Mapping[str, Any], ranks: Sequence[str]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("--out: Parquet needs pyarrow (pip install pyarrow); choose a .csv or .json file") from None
    types = [pa.field(name, pa.float32() if name.endswith("_probability") else pa.string()) for name in columns(ranks)]
    with pq.ParquetWriter(path, pa.schema(types, metadata={key: json.dumps(value) for key, value in head.items()})) as writer:
        while block := [flat(row, ranks) for _, row in zip(range(10_000), rows, strict=False)]:
            writer.write_table(pa.Table.from_pylist(block, schema=writer.schema))


WRITERS: dict[str, Callable[[Path, Iterator[Row], Mapping[str, Any], Sequence[str]], None]] = {
    ".json": _write_json,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}


def columns(ranks: Sequence[str]) -> list[str]:
    """Return the columns of a table of predictions."""
    return ["photograph", *(name for rank in ranks for name in (rank, f"{rank}_probability")), "metadata", "error"]


def flat(row: Row, ranks: Sequence[str]) -> dict[str, Any]:
    """Return a row of the table: the predicted taxon of each rank and its probability; None where there is none."""
    out: dict[str, Any] = {"photograph": row["photograph"], "metadata": " ".join(row.get("metadata", [])), "error": row.get("error")}
    for rank in ranks:
        taxon = row.get("path", {}).get(rank, {})
        out |= {rank: taxon.get("name"), f"{rank}_probability": taxon.get("probability")}
    return out
