"""Forms of a trained classifier for other programs: ONNX, `torch.export`, and the backbone alone in timm's layout. A folder has

    model.onnx        form onnx: for ONNX Runtime and other engines
    model.pt2         form torch_export: for `torch.export.load`, without this program
    timm/             form timm: for `timm.create_model("local-dir:...", pretrained=True, num_classes=0)`
    taxonomy.json     the taxa (`TaxonomyTree.to_dict`)
    README.md         inputs, outputs, and the encoding of metadata

Every form is read again and compared with the model (`export_check.py`) before the folder gets its name.
"""

from __future__ import annotations

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
from linnaeus.workloads.taxonomy.trained.bundle import CARD, TREE
from linnaeus.workloads.taxonomy.trained.export.export_check import Examples, Inputs, Runner, examples, largest_difference
from linnaeus.workloads.taxonomy.trained.export.export_readme import readme
from linnaeus.workloads.taxonomy.trained.export.exported_network import export_program, input_names, output_names
from linnaeus.workloads.taxonomy.trained.export.timm_folder import backbone_of, feature_difference, write_timm
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier

FORMS = {"onnx": "model.onnx", "torch_export": "model.pt2", "timm": "timm"}  # form -> file or folder
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class Written(NamedTuple):
    """A form that was written and checked. `difference`: the largest of a probability, or of a feature of the backbone."""

    form: str
    megabytes: float
    difference: float


def write_forms(classifier: TrainedClassifier, run: Path | None, out: Path, forms: Sequence[str]) -> list[str]:
    """Write the forms to the folder `out`, all or none. Return the lines to print. `run`: has the photographs of the check, if not None.

    Raise `ConfigError` if the folder exists or cannot be written, and for a form that cannot be made or disagrees with the model."""
    if out.exists():
        raise ConfigError(f"OUT: {out} exists; choose another folder, or remove it")
    _check_possible(classifier, forms)
    checked = examples(classifier, run)
    temporary = out.with_name(f".tmp-{out.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # of a command that was killed
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
    lines = [f"{out / FORMS[form]}: {size:,.1f} MB; largest difference {difference:.1e}" for form, size, difference in written]
    return [*lines, f"checked on {checked.origin}; {out / CARD} describes inputs and outputs"]


def _check_possible(classifier: TrainedClassifier, forms: Sequence[str]) -> None:
    """Raise `ConfigError` for a form that this model does not have, and for packages that are missing."""
    if "timm" in forms:
        backbone_of(classifier)
    if "onnx" in forms and (missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]):
        raise ConfigError(f"--form: onnx needs {', '.join(missing)}; install with: pip install 'linnaeus[export]'")


def _write(classifier: TrainedClassifier, folder: Path, forms: Sequence[str], checked: Examples) -> list[Written]:
    """Write and check each form. Raise `ConfigError` for one that cannot be made or disagrees."""
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
        found.append(Written(form, sum(file.stat().st_size for file in files) / 1e6, difference))
    return found


def _write_graph(form: str, program: ExportedProgram, classifier: TrainedClassifier, path: Path, checked: Examples) -> float:
    """Write, read and check a form of the graph. Return the largest difference of a probability."""
    write, open_form = (write_onnx, open_onnx) if form == "onnx" else (write_program, open_program)
    try:
        write(program, classifier, path)
        return largest_difference(form, open_form(path), checked)
    except (ConfigError, OSError):
        raise
    except Exception as error:  # torch, onnxscript and ONNX Runtime raise exceptions of many types
        raise ConfigError(f"--form: {form} cannot be made of this model ({one_line(error)}); leave it out") from error


def write_onnx(program: ExportedProgram, classifier: TrainedClassifier, path: Path) -> None:
    """Write an ONNX file. Weights above 1.5 GiB are in a second file beside it."""
    names = input_names(classifier.components)
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # a line for every operation that is not folded
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
    """Return the function of an ONNX file, by ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def write_program(program: ExportedProgram, classifier: TrainedClassifier, path: Path) -> None:
    """Write a file for `torch.export.load`."""
    torch.export.save(program, path)


def open_program(path: Path) -> Runner:
    """Return the function of a file of `torch.export`."""
    module = torch.export.load(path).module()

    def run(inputs: Inputs) -> list:
        with torch.inference_mode():
            return [value.numpy() for value in module(*(torch.from_numpy(value) for value in inputs.values())).values()]

    return run
