"""Compare all ways to use a trained classifier on the validation photographs of a finished run.

    python -m tests.faults.agreement RUN

`load_model`, `linnaeus predict`, the bundle copied elsewhere in a process that may not read the run, torch.export, ONNX Runtime (with the
extra `export`) and the service (with the extra `serve`) must predict the same taxa on every photograph, with probabilities that differ by
`LIMIT` at most. The accuracies of the command's files must be those of summary.json, with the metadata and without, to the last digit. The
run is of data=manifest, or of data=biota, whose photographs are written without loss and whose dates have no fractions: with metadata
only the ways are compared then.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from linnaeus import load_model
from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.biota.__main__ import _row
from linnaeus.workloads.taxonomy.data_source import build_data_source
from linnaeus.workloads.taxonomy.observations import VALIDATION, Source
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import configuration_of
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import ARGUMENTS, metadata_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.export.export_forms import ONNX_PACKAGES
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.probabilities.answers import Prediction
from tests.workloads.taxonomy.serving.client import running

LIMIT = 1e-5  # of a probability
Answer = dict[str, tuple[str, float]]  # rank -> predicted taxon, probability


class Photographs(NamedTuple):
    """Validation photographs of a run, copied to a folder with two tables of them. `exact`: the metadata are those of the run."""

    folder: Path
    paths: list[str]
    given: list[dict[str, str]]  # arguments of `predict`
    truth: list[dict[str, str]]  # rank -> name
    exact: bool


def copied(run: Path, folder: Path, most: int | None) -> Photographs:
    """Copy the validation photographs of a run, `most` of them or all, to `folder`."""
    config = configuration_of(run).data
    source = build_data_source(configuration_of(run))[0]
    chosen = np.flatnonzero(source.split == VALIDATION)[:most]
    folder.mkdir()
    files = config.name == "manifest"
    rows = _manifest_rows(Path(config.path), source, chosen) if files else [_biota_row(source, int(i)) for i in chosen]
    names = []
    for i, row in zip(chosen, rows, strict=True):
        names.append(f"{i}{Path(row['path']).suffix if files else '.png'}")
        if files:
            shutil.copy(Path(config.path).parent / row["path"], folder / names[-1])
        else:
            Image.fromarray(source.images.read(np.array([i]))[0]).save(folder / names[-1])
    given = [{name: row[name] for name in ARGUMENTS if row.get(name)} for row in rows]
    ranks = source.tree.ranks
    truth = [{rank: source.tree.names[r][c] for r, rank in enumerate(ranks) if (c := source.labels[i, r]) >= 0} for i in chosen]
    for table, columns in (("with.csv", ("path", *ARGUMENTS)), ("without.csv", ("path",))):
        with (folder / table).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", restval="")
            writer.writeheader()
            writer.writerows({"path": name, **known} for name, known in zip(names, given, strict=True))
    return Photographs(folder, names, given, truth, files and len(chosen) == (source.split == VALIDATION).sum())


def _manifest_rows(manifest: Path, source: Source, chosen: Sequence[int]) -> list[dict[str, str]]:
    with manifest.open(newline="") as file:
        by_path = {row["path"]: row for row in csv.DictReader(file)}
    return [by_path[str(source.ids[i])] for i in chosen]


def _biota_row(source: Source, i: int) -> dict[str, str]:
    columns = ("path", *source.tree.ranks, "latitude", "longitude", "uncertainty", "date", "time", "elevation", "split")
    return dict(zip(columns, _row(source, i), strict=True))


def of_predictions(predictions: Sequence[Prediction]) -> list[Answer]:
    """Return the predicted paths."""
    return [{taxon.rank: (taxon.name, taxon.probability) for taxon in one.path} for one in predictions]


def of_file(path: Path, ranks: Sequence[str]) -> list[Answer]:
    """Return the predicted paths in a CSV file of `linnaeus predict`."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{rank: (row[rank], float(row[f"{rank}_probability"])) for rank in ranks if row[rank]} for row in csv.DictReader(file)]


def of_command(model: Path, found: Photographs, table: str, out: Path, ranks: Sequence[str], alone: bool = False) -> list[Answer]:
    """Return the answers of `linnaeus predict`. `alone`: in a process that may read nothing but the folder that all is in."""
    words = [str(model), "--manifest", str(found.folder / table), "--out", str(out), "--threads", "1"]
    if not alone:
        assert predict_cli.main(words) == 0
    else:
        command = [sys.executable, "-m", "tests.faults.watched", str(found.folder.parent), "linnaeus", "predict", *words]
        temporary = found.folder.parent / "temporary"  # the packages that timm imports make files there
        temporary.mkdir(exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TMPDIR": str(temporary)})
        assert "opened" not in done.stderr, done.stderr
    return of_file(out, ranks)


def of_form(run: Any, names: Sequence[str], model: TrainedClassifier, found: Photographs) -> list[Answer]:
    """Return the answers of an exported form. `run`: inputs by name -> its outputs. `names`: of its inputs."""
    answers: list[Answer] = []
    for path, given in zip(found.paths, found.given, strict=True):
        meta, present = encode(metadata_of(1, given), model.components)
        pixels = model.pipeline([model.read(found.folder / path)], np.empty(0)).numpy()
        inputs = {"image": pixels, "meta": meta, "present": present}
        *probabilities, classes = run({name: inputs[name] for name in names})
        own = {}
        for r, rank in enumerate(model.tree.ranks):
            if (c := int(classes[0, r])) >= 0:
                own[rank] = (model.tree.names[r][c], float(probabilities[r][0, c]))
        answers.append(own)
    return answers


def ways(run: Path, model: TrainedClassifier, found: Photographs) -> dict[str, list[Answer]]:
    """Return the answers with metadata by each way."""
    import torch

    folder, ranks = found.folder.parent, model.tree.ranks
    for out, form in (("exported", []), ("forms", ["--form", "onnx,torch_export" if has_onnx() else "torch_export"])):
        assert export_cli.main([str(run), str(folder / out), *form]) == 0
    shutil.copytree(folder / "exported", folder / "alone" / "bundle")
    answers = {"linnaeus predict": of_command(run, found, "with.csv", folder / "run.csv", ranks)}
    answers["bundle alone"] = of_command(folder / "alone" / "bundle", found, "with.csv", folder / "bundle.csv", ranks, alone=True)
    program = torch.export.load(str(folder / "forms" / "model.pt2")).module()
    names = ["image", *(["meta", "present"] if model.components else [])]
    graph = lambda inputs: [value.numpy() for value in program(*map(torch.from_numpy, inputs.values())).values()]
    answers["torch.export"] = of_form(graph, names, model, found)
    if has_onnx():
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / "forms" / "model.onnx"))
        answers["ONNX Runtime"] = of_form(
            lambda inputs: session.run(None, inputs), [one.name for one in session.get_inputs()], model, found
        )
    if find_spec("uvicorn"):
        with running(folder / "exported", seconds=3600) as service:
            replies = [
                service.post((found.folder / path).read_bytes(), **given).json()
                for path, given in zip(found.paths, found.given, strict=True)
            ]
        answers["service"] = [{rank: (taxon["name"], taxon["probability"]) for rank, taxon in reply["path"].items()} for reply in replies]
    return answers


def has_onnx() -> bool:
    """Return True if the extra `export` is installed."""
    return all(map(find_spec, ONNX_PACKAGES))


def failures(run: Path, folder: Path, most: int | None = None) -> list[str]:
    """Return lines about differences between the ways, and between accuracies. `folder`: for files, which is empty."""
    found, model = copied(run, folder / "photographs", most), load_model(run)
    ranks = model.tree.ranks
    given = {name: [own.get(name) for own in found.given] for name in ARGUMENTS}
    expected = of_predictions(model.predict([found.folder / path for path in found.paths], **given))
    failed = []
    answers = ways(run, model, found)
    for way, own in answers.items():
        other = sum(
            {rank: name for rank, (name, _) in a.items()} != {rank: name for rank, (name, _) in b.items()}
            for a, b in zip(own, expected, strict=True)
        )
        largest = max(abs(a[rank][1] - b[rank][1]) for a, b in zip(own, expected, strict=True) for rank in a.keys() & b.keys())
        print(f"{way:<17} {len(own)} photographs, {other} with another path, probabilities differ by {largest:.1e} at most")
        failed += [f"{way}: {other} photographs have another path"] if other else []
        failed += [f"{way}: probabilities differ by {largest:.1e}"] if not largest <= LIMIT else []
    without = of_command(run, found, "without.csv", folder / "without.csv", ranks)
    final = json.loads((run / "summary.json").read_text())["final"]
    if most is None:
        tables = {"val": answers["linnaeus predict"]} if found.exact else {}
        failed += wrong_accuracies(tables | {"val_mask_meta": without}, found.truth, ranks, final)
    return failed


def wrong_accuracies(
    tables: dict[str, list[Answer]], truth: Sequence[dict[str, str]], ranks: Sequence[str], final: dict[str, Any]
) -> list[str]:
    """Return lines about the accuracies that differ from `final`, the metrics in summary.json. `tables`: pass -> answers."""
    failed = []
    for name, answers in tables.items():
        for rank in ranks:
            right = [a.get(rank, ("",))[0] == b[rank] for a, b in zip(answers, truth, strict=True) if rank in b]
            expected = final.get(f"{name}/{rank}/top1")
            print(f"{name}/{rank}/top1    {float(np.mean(right))!r} of the command's file, {expected!r} in summary.json")
            failed += [f"{name}/{rank}/top1 is {np.mean(right)!r}, not {expected!r}"] if np.mean(right) != expected else []
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    with tempfile.TemporaryDirectory() as folder:
        failed = failures(parser.parse_args().run, Path(folder))
    print("\n".join(failed) or "all agree")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
