"""`linnaeus export` of a language model: both layouts compute the model's function, by their published formulas and by transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import linnaeus
from linnaeus.config import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads import export_cli
from linnaeus.workloads.language import generate_cli
from linnaeus.workloads.language.model.gpt import build_gpt
from linnaeus.workloads.language.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer, train_bpe
from linnaeus.workloads.language.trained import export_transformers, load_model, transformers_check
from linnaeus.workloads.language.trained.language_model import LanguageModel
from tests import runs
from tests.workloads.language import test_pretrained
from tests.workloads.language.trained import kept_neox
from tests.workloads.language.trained.conftest import ALPHABET, validation_text

pytest.importorskip("tokenizers")
MODEL = ["workload=language", f"model.layers={test_pretrained.LAYERS}", f"model.heads={test_pretrained.HEADS}", "model.width=12"]
BLOCK = 10
LEARNED, ROTARY = ["model.positions=learned"], ["model.positions=rotary", "model.rotary_base=100"]
PARALLEL, UNTIED = [*ROTARY, "model.rotary_fraction=0.5", "model.parallel_residual=true"], ["model.tied_embeddings=false"]
LAYOUTS = {"learned": LEARNED, "learned, untied": LEARNED + UNTIED, "rotary": ROTARY, "parallel": PARALLEL, "Pythia": PARALLEL + UNTIED}
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "character": lambda: CharacterTokenizer(ALPHABET, False),
    "characters with an end": lambda: CharacterTokenizer(ALPHABET, True),
    "byte": lambda: ByteTokenizer(True),
    "bpe": lambda: train_bpe(["the cat sat on the mat and don't 12 \n" * 20], 275),
}


def model_of(*settings: str, tokenizer: Tokenizer | None = None) -> LanguageModel:
    """Return a model with random weights, biases and norms included."""
    tokenizer = tokenizer or CharacterTokenizer(ALPHABET, False)
    network = build_gpt(compose([*MODEL, *settings]).model, 0, tokenizer.size, BLOCK)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws))
    return LanguageModel(network, tokenizer, "weights")


def written(model: LanguageModel, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Write the folder of a model without transformers. Return config.json and the weights."""
    export_transformers.write_folder(model, folder, {})
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_check, "find_spec", lambda name: None)


def neox_scores(config: dict[str, Any], state: dict[str, torch.Tensor], tokens: list[int]) -> np.ndarray:
    """Return the logits [T, V] of a GPT-NeoX (Black et al. 2022), in numpy float64."""
    w = {name: tensor.double().numpy() for name, tensor in state.items()}
    heads, time = config["num_attention_heads"], np.arange(len(tokens))
    width = config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {"rope_theta": config["rotary_emb_base"], "partial_rotary_factor": config["rotary_pct"]}
    assert config.get("rotary_pct", rope["partial_rotary_factor"]) == rope["partial_rotary_factor"], "both forms of the key agree"
    turned = int(width * rope["partial_rotary_factor"])
    turn = np.exp(1j * time[:, None] / rope["rope_theta"] ** (np.arange(0, turned, 2) / turned))

    def layer(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config["layer_norm_eps"]) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def rotated(x: np.ndarray) -> np.ndarray:
        pairs = (x[:, : turned // 2] + 1j * x[:, turned // 2 : turned]) * turn
        return np.concatenate([pairs.real, pairs.imag, x[:, turned:]], -1)

    gelu = {"gelu": test_pretrained.by_erf, "gelu_pytorch_tanh": test_pretrained.by_tanh}[config["hidden_act"]]
    x, later = w["gpt_neox.embed_in.weight"][tokens], np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for i in range(config["num_hidden_layers"]):
        block, parts = f"gpt_neox.layers.{i}", []
        mixed = layer(norm(x, f"{block}.input_layernorm"), f"{block}.attention.query_key_value").reshape(len(tokens), heads, 3 * width)
        for head in range(heads):
            query, key, value = np.split(mixed[:, head], 3, -1)
            share = np.exp(rotated(query) @ rotated(key).T / math.sqrt(width) + later)
            parts.append(share / share.sum(-1, keepdims=True) @ value)
        after = x + layer(np.concatenate(parts, -1), f"{block}.attention.dense")
        read = norm(x if config["use_parallel_residual"] else after, f"{block}.post_attention_layernorm")
        x = after + layer(gelu(layer(read, f"{block}.mlp.dense_h_to_4h")), f"{block}.mlp.dense_4h_to_h")
    return norm(x, "gpt_neox.final_layer_norm") @ w["gpt_neox.embed_in.weight" if config["tie_word_embeddings"] else "embed_out.weight"].T


@pytest.mark.parametrize("more", [[], ["model.bias=true", "model.gelu=tanh", "model.vocabulary_multiple=8"]])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_computes_the_models_function_by_its_published_formula(tmp_path, without_transformers, name, more) -> None:
    model, tokens = model_of(*LAYOUTS[name], *more), [3, 1, 4, 1, 5, 9, 2, 6, 5, 28]
    config, state = written(model, tmp_path / "out")
    with torch.inference_mode():
        own = model.network.double()({"input": torch.tensor([tokens])})["logits"][0].numpy()
    assert config["tie_word_embeddings"] == (UNTIED[0] not in LAYOUTS[name])
    if config["model_type"] == "gpt_neox":
        theirs = neox_scores(config, state, tokens)
    else:
        gelu = {"gelu": test_pretrained.by_erf, "gelu_pytorch_tanh": test_pretrained.by_tanh}[config["activation_function"]]
        theirs = test_pretrained.gpt2_scores({key.removeprefix("transformer."): tensor for key, tensor in state.items()}, tokens, gelu)
    assert np.abs(own - theirs).max() < 1e-5 * np.abs(own).max() and np.abs(own).max() > 1


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("name", ["learned", "learned, untied", "rotary", "Pythia"])
def test_the_folder_is_the_model_when_it_is_loaded_again(tmp_path, without_transformers, name, tokenizer) -> None:
    model = model_of(*LAYOUTS[name], tokenizer=TOKENIZERS[tokenizer]())
    config, _ = written(model, tmp_path / "out")
    again = linnaeus.load_model(tmp_path / "out")
    text = "the cat sat on the mat."
    assert again.loss(text) == model.loss(text) and again.generate("the", tokens=8) == model.generate("the", tokens=8)
    assert config["eos_token_id"] == model.tokenizer.end == again.tokenizer.end
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("folder", [kept_neox.FOLDER, kept_neox.PYTHIA], ids=lambda folder: folder.name)
def test_a_neox_of_transformers_is_read_and_written_again_equal(tmp_path, without_transformers, folder) -> None:
    """The folders were written by transformers, with biases in all layers, and so were their logits."""
    model = linnaeus.load_model(folder)
    theirs = np.array(json.loads((folder / "logits.json").read_text()))
    with torch.inference_mode():
        own = model.network({"input": torch.from_numpy(model.encode(kept_neox.TEXT))[None]})["logits"][0].numpy()
    assert np.abs(own - theirs).max() < 1e-5 * np.abs(theirs).max() and np.abs(theirs).max() > 1
    losses = [np.log(np.exp(row).sum()) - row[kept_neox.ALPHABET.index(letter)] for row, letter in zip(theirs, kept_neox.TEXT[1:])]
    assert model.loss(kept_neox.TEXT) == pytest.approx(np.mean(losses), rel=1e-5)
    config, state = written(model, tmp_path / "out")
    before, original = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    assert state.keys() == before.keys() and all(torch.equal(state[name], before[name]) for name in before)
    same = [*kept_neox.SIZES, *kept_neox.READ, "rope_parameters", "model_type", "architectures", "layer_norm_eps", "attention_bias"]
    assert {name: config[name] for name in same} == {name: original[name] for name in same}


def test_the_command_writes_a_run_that_other_commands_read(run, rotary_run, tmp_path, capsys) -> None:
    for number, (source, name) in enumerate([(run, "GPT-2"), (rotary_run, "GPT-NeoX")]):
        out = tmp_path / str(number)
        assert export_cli.main([str(source), str(out)]) == 0
        printed = capsys.readouterr().out
        assert f"{name}, " in printed and "checkpoint step-" in printed
        compared = "a text of" if find_spec("transformers") else "not compared with transformers, which is not installed"
        assert compared in printed
        own = linnaeus.load_model(source)
        text = validation_text(source)
        assert linnaeus.load_model(out).loss(text) == pytest.approx(own.loss(text), abs=1e-6)
        assert f"| nats per token | {own.loss(text):.4f} |" in (out / "README.md").read_text()
        assert generate_cli.main([str(out), "--prompt", "ab", "--tokens", "9"]) == 0
        assert capsys.readouterr().out == "ab" + own.generate("ab", tokens=9) + "\n"


def test_what_cannot_be_exported_is_one_line_and_writes_nothing(run, tmp_path, capsys, monkeypatch, without_transformers) -> None:
    with pytest.raises(ConfigError, match=r"has dimensions \(model.dimensions=\[calm,wide\]\), which no architecture of transformers has"):
        written(model_of("model.dimensions=[calm,wide]"), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"model.positions=learned and model.parallel_residual=true, which no architecture"):
        written(model_of("model.parallel_residual=true"), tmp_path / "out")
    (tmp_path / "there").mkdir()
    for words, message in (
        ([run, tmp_path / "there"], "there exists; choose another folder"),
        ([run, tmp_path / "out", "--form", "onnx"], "--form has no effect with a language model"),
        ([run, tmp_path / "out", "--plugins", "a"], "--plugins has no effect with a language model"),
        ([run, tmp_path / "out", "--checkpoint", "7"], "has no checkpoint of step 7"),
        ([run, run / "run.json" / "out"], "cannot be written (Not a directory)"),
        ([tmp_path / "there", tmp_path / "out"], "neither a run directory"),
    ):
        with pytest.raises(SystemExit) as ended:
            export_cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        assert ended.value.code == 2 and message in captured.err.splitlines()[-1] and captured.out == "", captured.err
    with runs.full_disk(), pytest.raises(ConfigError, match=r"out cannot be written \(File too large\)"):
        written(model_of(), tmp_path / "out")
    monkeypatch.setattr(export_transformers, "write_weights", lambda path, state: save_file(changed(state), path))
    with pytest.raises(ConfigError, match="differs from the run when it is read again"):
        written(model_of(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def changed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return state | {"transformer.wte.weight": state["transformer.wte.weight"].nextafter(torch.tensor(1e9))}


# -- with transformers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed; the formulas above are checked without it")


CASES = {
    "learned": [*LEARNED],
    "learned, biases": [*LEARNED, "model.bias=true", "model.gelu=tanh", "model.vocabulary_multiple=64"],
    "rotary": [*ROTARY],
    "rotary, biases": [*ROTARY, "model.bias=true", "model.gelu=tanh", "model.vocabulary_multiple=64"],
    "learned, untied": [*LEARNED, *UNTIED],
    "parallel": [*PARALLEL],
    "Pythia": [*PARALLEL, *UNTIED, "model.bias=true", "model.vocabulary_multiple=64"],
}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("case", CASES)
def test_transformers_computes_the_same(transformers, tmp_path, case, tokenizer) -> None:
    model = model_of(*CASES[case], tokenizer=TOKENIZERS[tokenizer]())
    (line,) = export_transformers.write_folder(model, tmp_path / "out", {})
    assert line.startswith(f"transformers {transformers.__version__}: the logits of {BLOCK} tokens ")
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens = torch.arange(3 * BLOCK).view(3, BLOCK) % model.tokenizer.size
    with torch.inference_mode():
        own, theirs = model.network({"input": tokens})["logits"], network(tokens).logits
    assert (own - theirs).abs().max() <= 1e-5 * own.abs().max()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "  the cat \n sat. "
    assert theirs(text)["input_ids"] == model.encode(text).tolist() and theirs.decode(theirs(text)["input_ids"]) == text
    assert theirs.eos_token_id == network.config.eos_token_id == model.tokenizer.end and len(theirs) == model.tokenizer.size


@pytest.mark.parametrize("damage", ["weights", "activation", "tokens"])
def test_a_folder_that_disagrees_is_refused(transformers, tmp_path, monkeypatch, damage) -> None:
    """Only the comparison with transformers can find these: reading with this program is switched off."""
    model = model_of(*ROTARY)
    monkeypatch.setattr(export_transformers, "check_reading", lambda model, again: None)
    if damage == "weights":
        swap = ("gpt_neox.layers.0.input_layernorm.weight", "gpt_neox.layers.0.post_attention_layernorm.weight")
        layout = export_transformers.to_layout
        monkeypatch.setattr(
            export_transformers, "to_layout", lambda network: (state := layout(network)) | {swap[0]: state[swap[1]].clone()}
        )
    elif damage == "activation":
        configuration = export_transformers.configuration
        monkeypatch.setattr(export_transformers, "configuration", lambda *given: configuration(*given) | {"hidden_act": "gelu_new"})
    else:
        other = CharacterTokenizer(ALPHABET[::-1], False)
        content = export_transformers.library_json
        monkeypatch.setattr(export_transformers, "library_json", lambda tokenizer: content(other))
    with pytest.raises(ConfigError, match="differ by up to" if damage != "tokens" else "gives other tokens"):
        export_transformers.write_folder(model, tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == []


def test_float64_weights_stay_float64(transformers, tmp_path) -> None:
    model = model_of(*LEARNED)
    model.network.double()
    export_transformers.write_folder(model, tmp_path / "out", {})
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", torch_dtype="auto").dtype == torch.float64
    assert load_model(tmp_path / "out").network.token.weight.dtype == torch.float64
