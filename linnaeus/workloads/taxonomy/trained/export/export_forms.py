"""Export a trained classifier to formats of other programs ("forms"): ONNX, `torch.export`, and only the backbone for timm.

The folder of an export contains

    model.onnx        form onnx: for ONNX Runtime and other engines
    model.pt2         form torch_export: for `torch.export.load`, without this program
    timm/             form timm: for `timm.create_model("local-dir:...", pretrained=True, num_classes=0)`
    taxonomy.json     the taxa (`TaxonomyTree.to_dict`)
    README.md         inputs, outputs, and the encoding of metadata

Every form is read again and compared with the model (`export_check.py`) before the folder is renamed to its final name."""

from __future__ import annotations

import io
import logging
import shutil
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch.export import ExportedProgram

from linnaeus.errors import ConfigError, one_line
from linnaeus.files import commit_directory, to_json, write_atomic
from linnaeus.reporting.formatting import format_size
from linnaeus.workloads.taxonomy.trained.classifier.bundle import CARD, TREE
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.export.export_check import Examples, Inputs, Runner, examples, largest_difference
from linnaeus.workloads.taxonomy.trained.export.export_readme import readme
from linnaeus.workloads.taxonomy.trained.export.exported_network import export_program, input_names, output_names
from linnaeus.workloads.taxonomy.trained.export.timm_folder import backbone_of, feature_difference, write_timm

FORMS = {"onnx": "model.onnx", "torch_export": "model.pt2", "timm": "timm"}  # form -> file or folder
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class Written(NamedTuple):
    """Result of an export to one form.

    `size`: bytes of the files. `difference`: largest difference from the model in a probability; for timm, in a feature."""

    form: str
    size: int
    difference: float


def write_forms(classifier: TrainedClassifier, run: Path | None, out: Path, forms: Sequence[str]) -> list[str]:
    """Export a classifier to `forms` (keys of `FORMS`) in the new folder `out`. After an error the folder does not exist.

    Return the lines to print. `run`: run directory whose validation photographs are used for the check; None: synthetic images are used.
    Raise `ConfigError` if the folder exists or cannot be written, and for a form that cannot be made or gives other results."""
    if out.exists():
        raise ConfigError(f"OUT: {out} exists; choose another folder, or remove it")
    _check_possible(classifier, forms)
    checked = examples(classifier, run)
    temporary = out.with_name(f".tmp-{out.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # left over from a killed command
        temporary.mkdir(parents=True)
        written = _write(classifier, temporary, forms, checked)
        write_atomic(temporary / TREE, to_json(classifier.tree.to_dict(), indent=None))
        results = {one.form: one.difference for one in written}
        write_atomic(temporary / CARD, readme(classifier, {form: FORMS[form] for form in forms}, results, checked.origin))
        commit_directory(temporary, out)
    except OSError as error:
        raise ConfigError(f"OUT: {out} cannot be written ({error.strerror or one_line(error)}); choose another folder") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    lines = [f"{out / FORMS[form]}: {format_size(size)}; largest difference {difference:.1e}" for form, size, difference in written]
    return [*lines, f"checked on {checked.origin}; {out / CARD} describes inputs and outputs"]


def _check_possible(classifier: TrainedClassifier, forms: Sequence[str]) -> None:
    """Raise `ConfigError` for form timm if the model has no timm backbone, and for form onnx if the packages of ONNX are not installed."""
    if "timm" in forms:
        backbone_of(classifier)
    if "onnx" in forms and (missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]):
        raise ConfigError(f"--form: onnx needs {', '.join(missing)}; install with: pip install 'linnaeus[export]'")


def _write(classifier: TrainedClassifier, folder: Path, forms: Sequence[str], checked: Examples) -> list[Written]:
    """Write each form to `folder` and check it. Raise `ConfigError` for a form that cannot be made or gives other results."""
    graphs = [form for form in forms if form != "timm"]
    if graphs:
        inputs = checked.batches[-1][0]
        program = export_program(classifier, [torch.from_numpy(value) for value in inputs.values()])
    found = []
    for form in forms:
        path = folder / FORMS[form]
        if form == "timm":
            write_timm(classifier, path)
            difference = feature_difference(classifier, path, checked)
        else:
            difference = _write_graph(form, program, classifier, path, checked)
        files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else folder.glob(f"{path.name}*")
        found.append(Written(form, sum(file.stat().st_size for file in files), difference))
    return found


def _write_graph(form: str, program: ExportedProgram, classifier: TrainedClassifier, path: Path, checked: Examples) -> float:
    """Write the file of form onnx or torch_export, read the file again and check it. Return the largest difference in a probability.

    Raise `ConfigError` if the model cannot be written in this form, or if the file gives other results."""
    write, open_form = (write_onnx, open_onnx) if form == "onnx" else (write_program, open_program)
    try:
        write(program, classifier, path)
        return largest_difference(form, open_form(path), checked)
    except (ConfigError, OSError):
        raise
    except Exception as error:  # torch, onnxscript and ONNX Runtime raise exceptions of many types
        raise ConfigError(f"--form: {form} cannot be made of this model ({one_line(error)}); leave it out") from error


def write_onnx(program: ExportedProgram, classifier: TrainedClassifier, path: Path) -> None:
    """Write an ONNX file. If the weights exceed 1.5 GiB, they are written to a second file in the same folder."""
    names = input_names(classifier.components)
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # it warns of every operation that is not folded
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            program,
            (),
            path,
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=names,
            output_names=output_names(classifier.tree.ranks),
            dynamic_shapes={name: {0: "batch"} for name in names},
        )


def open_onnx(path: Path) -> Runner:
    """Return a function that runs an ONNX file with ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def write_program(program: ExportedProgram, classifier: TrainedClassifier, path: Path) -> None:
    """Write the program to a file that `torch.export.load` reads. `classifier` is not used."""
    content = io.BytesIO()  # given a path, torch ends the process if the disk is full
    torch.export.save(program, content)
    path.write_bytes(content.getbuffer())


def open_program(path: Path) -> Runner:
    """Return a function that runs a file that `torch.export.save` wrote."""
    module = torch.export.load(path).module()

    def run(inputs: Inputs) -> list:
        with torch.inference_mode():
            return [value.numpy() for value in module(*(torch.from_numpy(value) for value in inputs.values())).values()]

    return run
