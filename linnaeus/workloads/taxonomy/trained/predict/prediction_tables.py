"""Write the formats `json`, `csv` and `parquet` of `linnaeus predict`, which follow no external standard."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.journal import Row
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
    """Write a row per photograph as CSV: the answer, the predicted taxon of each rank, probabilities, metadata and error."""
    ranks = answered.tree.ranks
    with open_text(path) as file:
        table = csv.DictWriter(file, columns(ranks), lineterminator="\n")
        table.writeheader()
        table.writerows(flat(row, ranks) for row in answered.rows)


def write_parquet(path: Path, answered: Answered) -> None:
    """Write a row per photograph as Parquet, with the columns of the CSV. Raise `ConfigError` if pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("--out: Parquet needs pyarrow (pip install pyarrow); choose a .csv or .json file") from None
    ranks, rows = answered.tree.ranks, answered.rows
    types = [pa.field(name, pa.float32() if name.endswith("_probability") else pa.string()) for name in columns(ranks)]
    metadata = {key: json.dumps(value) for key, value in answered.head.items()}
    with pq.ParquetWriter(path, pa.schema(types, metadata=metadata)) as writer:
        while block := [flat(row, ranks) for _, row in zip(range(BLOCK), rows, strict=False)]:
            for row in block:
                row["photograph"] = row["photograph"].encode("utf-8", "backslashreplace").decode()  # as `open_text` in the others
            writer.write_table(pa.Table.from_pylist(block, schema=writer.schema))


def columns(ranks: Sequence[str]) -> list[str]:
    """Return the names of the columns of the CSV and Parquet formats."""
    return [
        "photograph",
        "answer_rank",
        "answer",
        "answer_probability",
        *(name for rank in ranks for name in (rank, f"{rank}_probability")),
        "metadata",
        "error",
    ]


def flat(row: Row, ranks: Sequence[str]) -> dict[str, Any]:
    """Return a prediction as a row of the CSV and Parquet formats, column -> value.

    It has the rolled-up answer, the predicted taxon of each rank, and their probabilities. A missing value is None."""
    out: dict[str, Any] = {"photograph": row["photograph"], "metadata": " ".join(row.get("metadata", [])), "error": row.get("error")}
    answer = row.get("answer") or {}
    out |= {"answer_rank": answer.get("rank"), "answer": answer.get("name"), "answer_probability": answer.get("probability")}
    for rank in ranks:
        taxon = row.get("path", {}).get(rank, {})
        out |= {rank: taxon.get("name"), f"{rank}_probability": taxon.get("probability")}
    return out
