"""Exported forms: the same results as the model for every head, and refusal of a form that differs."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import linnaeus
from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.errors import ConfigError
from linnaeus.workloads import export_cli
from linnaeus.workloads.taxonomy.config import HeadConfig, HierarchicalSoftmaxConfig, MformerConfig, TimmConfig
from linnaeus.workloads.taxonomy.models import build_network
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, encode
from linnaeus.workloads.taxonomy.trained.classifier.description import Description
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.export import export_check, export_forms, export_readme, timm_folder
from linnaeus.workloads.taxonomy.trained.export.exported_network import export_program
from tests import runs
from tests.workloads.taxonomy.trained.conftest import HAS_ONNX
from tests.workloads.taxonomy.trees import random_tree

SIDE = 16
MFORMER = MformerConfig("mformer", 0.0, 0.0, 8, "micro")
TIMM = TimmConfig("timm", 0.0, 0.0, 8, "test_vit", False, None)
HEADS = {
    "linear": HeadConfig("linear", "predict"),
    "conditional": HeadConfig("conditional", "ignore"),
    "marginal": HeadConfig("marginal", "predict"),
    "soft": HierarchicalSoftmaxConfig("hierarchical_softmax", "predict", "soft", 0.7),
    "hard": HierarchicalSoftmaxConfig("hierarchical_softmax", "ignore", "hard", 1.0),
}
TREES = {"regular": (4, 60), "irregular": (4, 60, 0.1, 0.25, 0.1)}
needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="the extra `export` is not installed")


class SmallTrunk(nn.Module):
    """Features of the mean colour and the metadata: a graph of a few operations."""

    def __init__(self, width: int, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3 + inputs, width)

    def forward(self, image: Tensor, meta: Tensor, present: Tensor) -> Tensor:
        return self.layer(torch.cat([image.mean((2, 3)), meta, present.to(meta.dtype)], 1)).unsqueeze(1)


def classifier(head="linear", tree="regular", model=MFORMER, tta="none", components=("SPATIAL", "TEMPORAL"), small=True, crop=1.0):
    """Return a classifier with random weights of distinct probabilities."""
    torch.manual_seed(0)
    taxa, side = random_tree(0, *TREES[tree])[0], SIDE if model is MFORMER else 32
    network = build_network(model, HEADS[head], (side,), taxa, components)
    for parameter in network.head.parameters():
        nn.init.normal_(parameter, std=0.3)
    weights = InitialWeights("here", "0" * 64, network.state_dict())
    made = TrainedClassifier(Description(model, HEADS[head], (side,), components, tta, 10**8, center_crop=crop), taxa, weights)
    if small:
        made.model.trunk = SmallTrunk(made.model.trunk.width, 12 + 2 if components else 0)
    return made


@pytest.mark.parametrize(
    "head, tree, tta",
    [
        pytest.param("linear", "irregular", "none", marks=pytest.mark.slow),
        ("conditional", "irregular", "flip"),
        pytest.param("marginal", "irregular", "none", marks=pytest.mark.slow),
        pytest.param("soft", "irregular", "none", marks=pytest.mark.slow),
        pytest.param("hard", "regular", "none", marks=pytest.mark.slow),
    ],
)
def test_the_graph_of_every_head_has_the_results_of_the_model(head, tree, tta):
    made = classifier(head, tree, tta=tta)
    found = export_check.examples(made, None)
    assert [len(expected.path) for _, expected in found.batches] == [1, 1, 1, 1, 7, 64]  # each combination of two components alone
    program = export_program(made, [torch.from_numpy(value) for value in found.batches[-1][0].values()])
    module = program.module()

    def run(inputs):
        return [value.numpy() for value in module(*map(torch.from_numpy, inputs.values())).values()]

    assert export_check.largest_difference("graph", run, found) < 1e-6


def changed(position, change):
    """Return the function of a form whose output at `position` is changed."""

    def run(inputs):
        found = made.scored(inputs["image"].transpose(0, 2, 3, 1), inputs["meta"], inputs["present"])
        outputs = [*(p.copy() for p in found.probabilities), found.path.copy()]
        if len(outputs[0]) == 7:
            outputs[position] = change(outputs[position])
        return outputs

    made = classifier("conditional")
    return run, export_check.examples(made, None)


@pytest.mark.parametrize(
    "position, change, words",
    [
        (0, lambda p: p, None),
        (2, lambda p: p + 2e-5, "a probability differs by 2.0e-05 in a batch of 7"),
        (2, lambda p: p + 5e-6, None),
        (1, lambda p: np.where(np.arange(len(p))[:, None] == 3, np.nan, p), "a probability differs by nan"),
        (3, lambda p: p[:, :-1], "a probability differs by inf"),
        (4, lambda path: np.where(np.arange(len(path))[:, None] == 6, path - 1, path), "it predicts another taxon"),
    ],
)
def test_another_result_is_refused(position, change, words):
    run, found = changed(position, change)
    if words is None:
        assert export_check.largest_difference("onnx", run, found) < 1e-5
        return
    with pytest.raises(ConfigError, match="--form: onnx disagrees with the model, so nothing is written") as error:
        export_check.largest_difference("onnx", run, found)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_the_limit_grows_with_scores_that_no_trained_network_has():
    even, sharp = np.full((3, 4), 0.25, np.float32), np.array([[1.0, np.exp(-64.0), 0.0]], np.float32)
    assert export_check.limit(even) == export_check.limit(np.zeros((2, 0), np.float32)) == 1e-5
    assert export_check.limit(sharp) == pytest.approx(2e-5)


@pytest.mark.slow
def test_a_file_with_broken_weights_is_refused_and_removed(tmp_path, monkeypatch):
    write = export_forms.write_program

    def broken(program, made, path):
        name = next(name for name in program.state_dict if name.endswith("head.levels.0.weight"))
        program.state_dict[name] = nn.Parameter(program.state_dict[name] * 1.5, requires_grad=False)
        write(program, made, path)

    monkeypatch.setattr(export_forms, "write_program", broken)
    with pytest.raises(ConfigError, match="torch_export disagrees with the model"):
        export_forms.write_forms(classifier("conditional"), None, tmp_path / "forms", ["torch_export"])
    assert list(tmp_path.iterdir()) == []


def test_the_backbone_is_a_timm_model_of_its_own(tmp_path, monkeypatch):
    import timm

    made = classifier(model=TIMM, small=False)
    lines = export_forms.write_forms(made, None, tmp_path / "forms", ["timm"])
    assert "checked on 75 synthetic images (a bundle has no photographs)" in lines[-1]
    folder = tmp_path / "forms" / "timm"
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()
    image, backbone = torch.randn(2, 3, 32, 32), made.model.trunk.backbone
    with torch.inference_mode():
        torch.testing.assert_close(loaded(image), backbone.forward_head(backbone.forward_features(image), pre_logits=True))
    config = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    assert config["input_size"] == [3, 32, 32] and "license" not in config and "test_input_size" not in config

    def broken(own, target):
        write(own, target)
        state = load_file(target / "model.safetensors")
        name = next(name for name in state if name.endswith("norm1.weight"))
        save_file(state | {name: state[name] * 1.001}, target / "model.safetensors")

    write = timm_folder.write_timm
    monkeypatch.setattr(export_forms, "write_timm", broken)
    with pytest.raises(ConfigError, match="timm disagrees with the model, so nothing is written: a feature differs"):
        export_forms.write_forms(made, None, tmp_path / "broken", ["timm"])
    assert [path.name for path in tmp_path.iterdir()] == ["forms"]


@pytest.mark.slow
def test_the_run_is_exported_with_its_photographs(forms, finished):
    names = {"README.md", "taxonomy.json", "model.pt2", *(["model.onnx"] if forms.onnx else [])}
    assert {path.name for path in forms.folder.iterdir()} == names
    text = (forms.folder / "README.md").read_text()
    assert "measured on 30 validation photographs" in text and "| `meta` | float32 [B, 20] |" in text
    assert "checked on 30 validation photographs" in forms.printed


WITHOUT_PROGRAM = """
import sys
sys.modules["linnaeus"] = None  # an import of it fails
import numpy as np, torch
inputs = [torch.from_numpy(value) for value in np.load(sys.argv[2]).values()]
outputs = torch.export.load(sys.argv[1]).module()(*inputs)
np.savez(sys.argv[3], **{name: value.numpy() for name, value in outputs.items()})
"""


@pytest.mark.slow
def test_torch_export_needs_no_other_program(forms, finished, tmp_path):
    model = linnaeus.load_model(finished.run)
    images = [model.read(finished.photograph(i)) for i in range(5)]
    meta, present = encode(metadata_of(5, {"latitude": 52.1, "longitude": 4.3, "date": [None, *["2026-05-01"] * 4]}), model.components)
    np.savez(tmp_path / "inputs.npz", image=model.pipeline(images, np.empty(0)).numpy(), meta=meta, present=present)
    words = [str(forms.folder / "model.pt2"), str(tmp_path / "inputs.npz"), str(tmp_path / "outputs.npz")]
    done = subprocess.run([sys.executable, "-c", WITHOUT_PROGRAM, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found, expected = np.load(tmp_path / "outputs.npz"), model.scored(images, meta, present)
    for rank, own in zip(model.tree.ranks, expected.probabilities, strict=True):
        np.testing.assert_allclose(found[f"{rank}_probabilities"], own, atol=1e-6)
    np.testing.assert_array_equal(found["path"], expected.path)


def test_a_model_without_metadata_has_one_input(tmp_path):
    made = classifier(components=())
    found = export_check.examples(made, None)
    assert [[*inputs] for inputs, _ in found.batches] == [["image"]] * 3
    module = export_program(made, [torch.from_numpy(found.batches[-1][0]["image"])]).module()
    outputs = module(torch.from_numpy(found.batches[1][0]["image"]))
    np.testing.assert_allclose(outputs["rank3_probabilities"], found.batches[1][1].probabilities[3], atol=1e-6)
    text = export_readme.readme(made, {"onnx": "model.onnx", "torch_export": "model.pt2"}, {"onnx": 0, "torch_export": 0}, "images")
    assert "outputs = model(image)" in text and "present" not in text.split("## Form onnx")[0]


@needs_onnx
def test_an_onnx_file_with_broken_weights_is_refused(tmp_path):
    import onnx

    made = classifier(tree="regular")
    export_forms.write_forms(made, None, tmp_path / "forms", ["onnx"])
    found, file = export_check.examples(made, None), tmp_path / "forms" / "model.onnx"
    assert export_check.largest_difference("onnx", export_forms.open_onnx(file), found) < 1e-5
    graph = onnx.load(file)
    largest = max((one for one in graph.graph.initializer if one.data_type == onnx.TensorProto.FLOAT), key=lambda one: len(one.raw_data))
    largest.raw_data = (np.frombuffer(largest.raw_data, np.float32) * 1.5).tobytes()
    onnx.save(graph, tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match="onnx disagrees with the model"):
        export_check.largest_difference("onnx", export_forms.open_onnx(tmp_path / "model.onnx"), found)


@pytest.mark.parametrize("unknown", ["", "uncertainty", "hour"])
def test_the_formulas_of_the_readme_are_the_encoding(unknown):
    values = {"latitude": -33.5, "longitude": 151.2, "uncertainty": 250.0, "day": 0.37, "hour": 17.25, "elevation": -120.0}
    values |= {unknown: np.nan} if unknown else {}
    metadata = Metadata(**{name: np.array([value], np.float32) for name, value in values.items()})
    meta, _ = encode(metadata, COMPONENTS)
    formulas = [formula for name in COMPONENTS for formula in export_readme.FORMULAS[name]]
    made = [0.0 if unknown and unknown in formula else eval(formula, vars(np) | values) for formula in formulas]
    np.testing.assert_allclose(np.array(made, np.float32), meta[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "form, line",
    [
        ("pickle", "--form: 'pickle' is not a form; choose from onnx, torch_export, timm"),
        ("timm", "--form: timm needs a run with model=timm; this one has model=mformer; leave it out"),
        ("onnx", "--form: onnx needs onnxscript, onnxruntime; install with: pip install 'linnaeus[export]'"),
    ],
)
def test_a_mistake_is_one_line(finished, tmp_path, monkeypatch, capsys, form, line):
    monkeypatch.setattr(export_forms, "find_spec", lambda name: object() if name == "onnx" else None)
    with pytest.raises(SystemExit) as exit_:
        export_cli.main([str(finished.bundle), str(tmp_path / "forms"), "--form", form])
    printed = capsys.readouterr().err
    assert exit_.value.code == 2 and line in printed and printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", [None, "torch_export", "timm"])
def test_a_full_disk_is_one_line_and_leaves_nothing(finished, tmp_path, capsys, form):
    with runs.full_disk(), pytest.raises((SystemExit, ConfigError)) as error:
        if form is None:
            export_cli.main([str(finished.run), str(tmp_path / "out")])
        made = classifier(model=TIMM, small=False) if form == "timm" else classifier()
        export_forms.write_forms(made, None, tmp_path / "out", [form])
    line = capsys.readouterr().err or f"{error.value}\n"
    assert line.count("\n") == 1 and "out cannot be written (File too large)" in line
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_cannot_be_exported_is_one_line(tmp_path):
    made = classifier()
    made.model.trunk.forward = lambda image, meta, present: torch.zeros(int(present.sum()), 1, made.model.trunk.width)
    made.scored = lambda *inputs: None  # the check has nothing to compare
    with pytest.raises(ConfigError, match=r"torch\.export cannot read the network of model=mformer") as error:
        export_forms.write_forms(made, None, tmp_path / "forms", ["torch_export"])
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []
