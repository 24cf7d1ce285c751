"""Write the files of `linnaeus evaluate --manifest --output`.

metrics.json         metrics of each validation pass and each group, and the photographs that are not scored, with the reason
groups.csv           a row for each group of photographs: by clade, known metadata, number of training photographs, and value of --by
classes.csv          a row for each class, as `linnaeus evaluate RUN` writes it
photographs.csv      a row for each photograph: labels, predicted taxa, which of them are right, or why it cannot be read
precisions.csv       a row for each precision of a calibration: stated precision, and measured precision and share of answers
outside.csv          a row for each kind of photographs outside the model's taxa: AUROC, and share with the answer "none of these"
unknown_taxa.csv     taxa of the labels that the model does not have, with the number of their photographs
excluded_taxa.csv    the same for taxa that the model has and --checklist or --region excludes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linnaeus.errors import ConfigError, list_some
from linnaeus.files import to_csv, to_json, write_atomic
from linnaeus.reporting.results import strict
from linnaeus.workloads.taxonomy.observations.components import presence
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import LabelRows
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Measured
from linnaeus.workloads.taxonomy.trained.evaluate.paired_differences import Compared, label_of, probability


class Tables(NamedTuple):
    """Results of one model as rows of tables: groups of photographs, precisions of the calibration, and photographs outside the model's
    taxa."""

    parts: Sequence[Mapping[str, Any]]  # of `photograph_groups.part_row`
    tempered: Mapping[str, float]  # `<rank>/ece` with temperatures; empty: not calibrated
    precisions: Sequence[Mapping[str, Any]]  # of `stated_precision.of_model`
    outside: Sequence[Mapping[str, Any]]  # of `unfamiliar.unfamiliar_rows`


def write_model(folder: Path, manifest: str, rows: LabelRows, measured: Measured, tables: Tables) -> list[str]:
    """Write the results of one model to `folder`. Return the paths of the files. Raise `ConfigError` if the files cannot be written.

    `manifest`: path of the manifest. `rows`: rows of the manifest."""
    labels, tables_of = measured.labels, {}
    for kind, mask in (("unknown_taxa", labels.unknown), ("excluded_taxa", labels.excluded)):
        tables_of[kind] = taxa_rows(measured, rows, mask), mask.sum(axis=0)
    record = {
        "model": measured.name,
        "weights": {"source": measured.model.weights.source, "sha256": measured.model.weights.digest},
        "tta": measured.model.description.tta,
        "manifest": manifest,
        "rows": len(rows.records.labels),
        "scored": int(measured.table.real.sum()),
        "unreadable": [{"photograph": name, "reason": reason} for name, reason in unreadable(measured, rows)],
        "left_out": dict(rows.records.excluded),
        **{
            kind: {
                rank: {"taxa": sum(one["rank"] == rank for one in taxa), "photographs": int(photographs[r])}
                for r, rank in enumerate(measured.model.tree.ranks)
            }
            for kind, (taxa, photographs) in tables_of.items()
        },
        "metrics": measured.metrics,
        "calibrated": dict(tables.tempered),
        "precisions": list(tables.precisions),
        "outside": list(tables.outside),
        "groups": list(tables.parts),
    }
    classes = measured.classes
    if measured.training_counts is None:
        classes = [row | {"training_count": None} for row in classes]
    files = {
        "metrics.json": to_json(strict(record)),
        "groups.csv": _table(tables.parts),
        "classes.csv": to_csv(classes),
        "photographs.csv": to_csv(photograph_rows(measured, rows)),
        "precisions.csv": _table(tables.precisions) if tables.precisions else None,
        "outside.csv": _table(tables.outside) if len(tables.outside) > 1 else None,
        **{f"{kind}.csv": to_csv(taxa) if taxa else None for kind, (taxa, _) in tables_of.items()},
    }
    return write_files(folder, files)


def write_comparison(folder: Path, compared: Sequence[Compared]) -> list[str]:
    """Write differences.csv and disagreements.csv, the comparison of models. Return the paths of the files. Raise as `write_model` does."""
    differences = [{"model": one.name} | {key: _cell(value) for key, value in row.items()} for one in compared for row in one.differences]
    return write_files(
        folder,
        {"differences.csv": to_csv(differences), "disagreements.csv": to_csv([row for one in compared for row in one.disagreements])},
    )


def write_files(folder: Path, files: Mapping[str, str | None]) -> list[str]:
    """Write `files`, name -> text, to a folder. Make the folder if it does not exist. Return the paths of the files.

    Delete a file whose text is None, which an earlier command may have written. Raise `ConfigError` if the files cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if text is None:
                (folder / name).unlink(missing_ok=True)
            else:
                write_atomic(folder / name, text)
    except OSError as error:
        raise ConfigError(f"--output: {folder} cannot be written ({error.strerror}); choose another folder") from None
    return [str(folder / name) for name, text in files.items() if text is not None]


def left_over(folder: Path, written: Sequence[str]) -> list[str]:
    """Return a line that lists the results of earlier evaluations with other models in `folder`, which this evaluation did not replace;
    [] if there are none.

    `written`: paths of the files of this evaluation. Nothing is deleted."""
    names = ("metrics.json", "photographs.csv", "differences.csv", "disagreements.csv")
    found = [*(folder / name for name in names), *(path / "metrics.json" for path in sorted(folder.glob("model-*")))]
    earlier = [path.relative_to(folder).as_posix() for path in found if path.is_file() and str(path) not in written]
    return [f"{folder}: from an earlier evaluation, not replaced: {list_some(earlier, 5)}"] if earlier else []


def unreadable(measured: Measured, rows: LabelRows) -> list[tuple[str, str]]:
    """Return (path, reason) for each photograph that is missing, empty or cannot be decoded."""
    names = rows.records.files.names
    return [*rows.records.unreadable, *((str(names[row]), reason) for row, reason in sorted(measured.errors.items()))]


def taxa_rows(measured: Measured, rows: LabelRows, mask: np.ndarray) -> list[dict[str, Any]]:
    """Return a row for each taxon of the labels in `mask`, bool [N, R]: rank, taxon, lineage and number of photographs."""
    theirs, found = rows.records.tree, []
    for r, rank in enumerate(measured.model.tree.ranks):
        if mask[:, r].any():
            own = theirs.rank_index(rank)
            classes, counts = np.unique(rows.records.labels[mask[:, r], own], return_counts=True)
            lineages = theirs.lineage_ids(rank)
            for c, count in zip(classes.tolist(), counts.tolist(), strict=True):
                found.append({"rank": rank, "taxon": theirs.names[own][c], "lineage": lineages[c], "photographs": count})
    return found


def photograph_rows(measured: Measured, rows: LabelRows) -> list[dict[str, Any]]:
    """Return the rows of photographs.csv. `<rank>_known` is 0 if the model does not have the taxon of the label, otherwise 1.

    With a restriction, `<rank>_excluded` is 1 if it excludes the taxon of the label, otherwise 0."""
    tree, table, labels = measured.model.tree, measured.table, measured.labels
    components = measured.model.components
    present, columns = presence(rows.records.metadata, components), rows.records.columns
    found = []
    for i, name in enumerate(rows.records.files.names.tolist()):
        out: dict[str, Any] = {"photograph": name}
        out["familiarity"] = float(measured.tempered.familiarity[i]) if table.real[i] else None
        out["metadata"] = " ".join(c for c, there in zip(components, present[i], strict=True) if there)
        for r, rank in enumerate(tree.ranks):
            predicted, label = int(table.path[i, r]), int(labels.labels[i, r])
            scored = table.real[i] and label >= 0
            out |= {
                rank: label_of(rows, i, rank) or (tree.names[r][label] if label >= 0 else None),
                f"{rank}_known": int(not labels.unknown[i, r]),
                **({f"{rank}_excluded": int(labels.excluded[i, r])} if measured.model.restriction is not None else {}),
                f"{rank}_predicted": tree.names[r][predicted] if predicted >= 0 else None,
                f"{rank}_probability": probability(measured, i, r),
                f"{rank}_right": int(predicted == label) if scored else None,
                f"{rank}_top5": int(table.in_top5[i, r]) if scored else None,
                f"{rank}_loss": float(table.loss[i, r]) if scored else None,
            }
        own = {key: column.values[column.codes[i]] for key, column in columns.items()}
        found.append({**own, **out, "error": measured.errors.get(i)})
    missing = dict.fromkeys(found[0])
    return [*found, *(missing | {"photograph": name, "error": reason} for name, reason in rows.records.unreadable)]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as the text of a CSV file. NaN becomes an empty cell."""
    return to_csv([{key: _cell(value) for key, value in row.items()} for row in rows])


def _cell(value: Any) -> Any:
    """Return a value for CSV: "" for NaN, any other value unchanged."""
    return "" if isinstance(value, float) and np.isnan(value) else value
