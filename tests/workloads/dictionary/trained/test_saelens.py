"""Test the layout of SAELens: the arithmetic by hand, and in SAELens itself if SAELENS_PYTHON names an interpreter that has it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from linnaeus.files import to_json
from linnaeus.workloads.dictionary.model.sparse_dictionary import SparseDictionary
from linnaeus.workloads.dictionary.model.variants import build_dictionary
from linnaeus.workloads.dictionary.trained.saelens_layout import ARCHITECTURES, to_saelens
from tests.workloads.dictionary.test_variants import CONFIGS, WIDTH, activations

PYTHON = os.environ.get("SAELENS_PYTHON")
READ = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from sae_lens import SAE
for folder in map(Path, sys.argv[1:]):
    sae, x = SAE.load_from_disk(folder), load_file(folder / "x.safetensors")["x"]
    with torch.no_grad():
        f = sae.encode(x)
        save_file({"f": f.contiguous(), "found": sae.decode(f).contiguous()}, folder / "read.safetensors")
"""


def dictionary(name: str) -> SparseDictionary:
    """Return a dictionary with random biases, thresholds and gains, a scale that is not 1, and an encoder that differs from its decoder."""
    model: Any = build_dictionary(CONFIGS[name], WIDTH, seed=3).eval()
    model.fit_scale(activations(300))
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in (model.encoder, model.encoder_bias, *([model.log_gain, model.magnitude_bias] if name == "gated" else [])):
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
        for threshold in {"threshold", "slow_threshold"} & model.state_dict().keys():
            model.state_dict()[threshold].copy_(0.2 + torch.rand(model.state_dict()[threshold].shape, generator=draw))
    return model


def by_hand(config: dict[str, Any], w: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return activities and reconstruction as the papers define them, from the two files alone."""
    z = x - w["b_dec"]
    if config["architecture"] == "gated":
        f = (z @ w["W_enc"] + w["b_gate"] > 0) * (z @ w["W_enc"] * w["r_mag"].exp() + w["b_mag"]).relu()
    else:
        p = z @ w["W_enc"] + w["b_enc"]
        least: Tensor | float = 0.0
        if config["architecture"] == "jumprelu":
            least = w["threshold"]
        elif config["architecture"] == "topk":
            least = p.sort(1, descending=True).values[:, config["k"], None]
        f = p.relu() * (p > least)
    return f, f @ w["W_dec"] + w["b_dec"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[SparseDictionary, Path]]:
    found = {}
    for name in CONFIGS:
        model, folder = dictionary(name), tmp_path_factory.mktemp(name)
        config, weights = to_saelens(model, {"hook_name": "blocks.1"})
        (folder / "cfg.json").write_text(to_json(config))
        save_file(weights, folder / "sae_weights.safetensors")
        save_file({"x": activations(400, seed=9)}, folder / "x.safetensors")
        found[name] = (model, folder)
    return found


def check_equal(model: SparseDictionary, x: Tensor, f: Tensor, found: Tensor) -> None:
    """Fail unless `f` and `found` are the activities, in the units of `x`, and the reconstructions of the dictionary."""
    with torch.no_grad():
        own = model.encode(x)
        expected = model.decode(own)
    assert torch.equal(f > 0, own > 0) and 0 < int((f > 0).sum()) < f.numel()
    assert torch.allclose(f, own / model.scale, rtol=1e-4, atol=1e-4) and torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_the_files_alone_give_the_same_activities_and_reconstructions(folders, name):
    model, folder = folders[name]
    config, weights = json.loads((folder / "cfg.json").read_text()), load_file(folder / "sae_weights.safetensors")
    x = activations(400, seed=9)
    check_equal(model, x, *by_hand(config, weights, x))
    assert (config["architecture"], config["d_in"], config["d_sae"]) == (ARCHITECTURES[name], WIDTH, model.features)
    assert config["metadata"]["hook_name"] == "blocks.1" and config["metadata"]["sae_lens_version"] >= "6"
    for forgotten in set(weights) - {"W_enc", "W_dec", "r_mag"}:  # each of these was left unscaled by a published program
        wrong = weights | {forgotten: weights[forgotten] * model.scale}
        with pytest.raises(AssertionError):
            check_equal(model, x, *by_hand(config, wrong, x))


@pytest.mark.skipif(PYTHON is None, reason="SAELENS_PYTHON is not set")
def test_saelens_loads_the_folders_with_the_same_results(folders):
    done = subprocess.run([str(PYTHON), "-c", READ, *(str(folder) for _, folder in folders.values())], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for model, folder in folders.values():
        read = load_file(folder / "read.safetensors")
        check_equal(model, load_file(folder / "x.safetensors")["x"], read["f"], read["found"])
