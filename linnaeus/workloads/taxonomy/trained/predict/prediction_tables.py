"""Write the formats `json`, `csv` and `parquet` of `linnaeus predict`, which follow no external standard."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.batches.journal import Row
from linnaeus.workloads.taxonomy.trained.predict.answered import Answered, open_text

BLOCK = 10_000  # rows of a Parquet file that are in memory at once


def write_json(path: Path, answered: Answered) -> None:
    """Write a JSON object: the description of the model, and the list `predictions` with everything that was predicted."""
    start = json.dumps(dict(answered.head), indent=2, ensure_ascii=False)
    with open_text(path) as file:
        file.write(start.removesuffix("\n}") + ',\n  "predictions": [')
        for number, row in enumerate(answered.rows):
            file.write(f"{',' if number else ''}\n    {json.dumps(row, ensure_ascii=False)}")
        file.write("\n  ]\n}\n")


def write_csv(path: Path, answered: Answered) -> None:
    """Write a row per photograph (or sequence) as CSV: the answer, the predicted taxon of each rank, probabilities, metadata and error."""
    ranks = answered.tree.ranks
    with open_text(path) as file:
        table = csv.DictWriter(file, columns(answered), lineterminator="\n")
        table.writeheader()
        table.writerows(flat(row, ranks) for row in answered.rows)


def write_parquet(path: Path, answered: Answered) -> None:
    """Write a row per photograph (or sequence) as Parquet, with the columns of the CSV. Raise `ConfigError` if pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("--out: Parquet needs pyarrow (pip install pyarrow); choose a .csv or .json file") from None
    ranks, rows = answered.tree.ranks, answered.rows
    kinds = {"photographs": pa.int64(), "familiarity": pa.float32(), "outside": pa.int8(), "calibrated": pa.int8()}
    kinds |= {f"{name}_probability": pa.float32() for name in ("answer", *ranks)}
    types = [pa.field(name, kinds.get(name, pa.string())) for name in columns(answered)]
    metadata = {key: json.dumps(value) for key, value in answered.head.items()}
    with pq.ParquetWriter(path, pa.schema(types, metadata=metadata)) as writer:
        while block := [flat(row, ranks) for _, row in zip(range(BLOCK), rows, strict=False)]:
            for row in block:
                row["photograph"] = row["photograph"].encode("utf-8", "backslashreplace").decode()  # as `open_text` in the others
            writer.write_table(pa.Table.from_pylist(block, schema=writer.schema))


def columns(answered: Answered) -> list[str]:
    """Return the names of the columns of the CSV and Parquet formats."""
    return [
        "photograph",
        *(["sequence", "photographs"] if answered.sequences is not None else []),
        "answer_rank",
        "answer",
        "answer_probability",
        "familiarity",
        "outside",
        "calibrated",
        *(name for rank in answered.tree.ranks for name in (rank, f"{rank}_probability")),
        "metadata",
        "error",
    ]


def flat(row: Row, ranks: Sequence[str]) -> dict[str, Any]:
    """Return a prediction as a row of the CSV and Parquet formats, column -> value. A missing value is None.

    The row has the rolled-up answer (None without calibration), the predicted taxon of each rank, and the probabilities of these taxa."""
    out: dict[str, Any] = {"photograph": row["photograph"], "metadata": " ".join(row.get("metadata", [])), "error": row.get("error")}
    if "sequence" in row:
        out |= {"sequence": row["sequence"], "photographs": len(row["photographs"])}
    answer = row.get("answer") or {}
    out |= {"answer_rank": answer.get("rank"), "answer": answer.get("name"), "answer_probability": answer.get("probability")}
    outside = row.get("outside")
    out |= {"familiarity": row.get("familiarity"), "outside": None if outside is None else int(outside)}
    out["calibrated"] = None if "calibrated" not in row else int(row["calibrated"])
    for rank in ranks:
        taxon = row.get("path", {}).get(rank, {})
        out |= {rank: taxon.get("name"), f"{rank}_probability": taxon.get("probability")}
    return out
