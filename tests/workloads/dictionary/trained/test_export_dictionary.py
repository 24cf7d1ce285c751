"""`linnaeus export` of dictionaries, and `linnaeus.load_model`."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import linnaeus
from linnaeus.workloads.dictionary.trained.load_dictionary import load_dictionaries
from linnaeus.workloads.export_cli import main
from tests import runs


def test_an_exported_dictionary_gives_the_same_activities_and_reconstructions(read_by, tmp_path, capsys):
    run = read_by("language")
    assert main([str(run), str(tmp_path / "out")]) == 0
    assert "architecture jumprelu of SAELens, 24 features" in capsys.readouterr().out
    model, x = linnaeus.load_model(run), 2 * torch.randn(200, linnaeus.load_model(run).dictionary.width)
    config, w = json.loads((tmp_path / "out" / "cfg.json").read_text()), load_file(tmp_path / "out" / "sae_weights.safetensors")
    pre = (x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]
    f = pre * (pre > w["threshold"])
    assert torch.equal(f > 0, model.encode(x) > 0) and bool((f > 0).any())
    assert torch.allclose(f, model.encode(x), atol=1e-5) and torch.allclose(f @ w["W_dec"] + w["b_dec"], model.decode(f), atol=1e-5)
    assert config["metadata"]["hook_name"] == model.place.module == "blocks.1"


def test_several_dictionaries_are_several_folders(tmp_path, capsys):
    run = runs.run("dictionary", tmp_path / "runs")
    assert main([str(run), str(tmp_path / "out")]) == 0
    found = load_dictionaries(run)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(found) == ["k2", "k5"]
    for name, trained in found.items():
        weights = load_file(tmp_path / "out" / name / "sae_weights.safetensors")
        assert torch.equal(weights["W_dec"], trained.dictionary.decoder.detach()) and weights["threshold"].shape == (trained.features,)
    assert linnaeus.load_model(run, dictionary="k5").source == found["k5"].source


def test_a_full_disk_is_one_line_and_leaves_nothing(read_by, tmp_path, capsys):
    run = read_by("language")
    capsys.readouterr()  # of its training
    with runs.full_disk(), pytest.raises(SystemExit) as ended:
        main([str(run), str(tmp_path / "out")])
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1) and "out cannot be written (File too large)" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--form", "onnx"], "--form has no effect with a dictionary"),
        (["--checkpoint", "step-7x"], "checkpoint"),
        ([], "exists; choose another"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(read_by, tmp_path, capsys, options, line):
    out, run = tmp_path if not options else tmp_path / "out", read_by("language")
    capsys.readouterr()  # of its training
    with pytest.raises(SystemExit) as ended:
        main([str(run), str(out), *options])
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1) and line in err and list(tmp_path.iterdir()) == []
