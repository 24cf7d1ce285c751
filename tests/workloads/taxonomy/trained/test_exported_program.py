"""The program for ONNX Runtime in the README.md of exported forms."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from linnaeus.workloads.taxonomy.trained.export import export_readme
from tests.workloads.taxonomy.trained.test_exported_forms import SIDE, classifier


@pytest.mark.parametrize("crop", [1.0, 0.9, 0.5])
def test_the_program_of_the_readme_reads_the_central_square_of_the_model(crop, tmp_path, monkeypatch):
    made, photograph, read = classifier(components=(), crop=crop), tmp_path / "photo.jpg", []
    pixels = np.random.default_rng(0).integers(0, 256, (48, 81, 3), np.uint8)
    Image.fromarray(pixels).save(photograph, "PNG")
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FOLDER" / "taxonomy.json").write_text(json.dumps({"names": made.tree.names}))

    class Session:
        """A session of ONNX Runtime that keeps the image."""

        def __init__(self, path):
            pass

        def get_inputs(self):
            return [SimpleNamespace(name="image", shape=["photographs", 3, SIDE, SIDE])]

        def run(self, names, inputs):
            read.append(inputs["image"])
            return [np.ones((1, made.tree.sizes[-1])), np.zeros((1, 4), int)]

    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Session))
    monkeypatch.chdir(tmp_path)
    text = export_readme.readme(made, {"onnx": "model.onnx"}, {"onnx": 0}, "images")
    exec(text.split("```python\n")[1].split("```")[0], {})
    expected = made.pipeline([pixels], np.empty(0)).numpy()
    assert read[0].shape == expected.shape and np.abs(read[0].astype(int) - expected).max() <= 1
