"""Pythia, a GPT-NeoX with parallel residuals, its own output layer and a fraction of the channels rotated: its folder is read, scored,
continued and written again, and such a model is trained."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import linnaeus
from linnaeus.commands import evaluate
from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload, export_cli
from linnaeus.workloads.language import tokenizers
from linnaeus.workloads.language.generation import window_start
from linnaeus.workloads.language.trained import export_transformers, transformers_check
from tests import runs
from tests.workloads.language import test_pretrained
from tests.workloads.language.trained.conftest import SETTINGS, validation_text
from tests.workloads.language.trained.test_export_transformers import neox_scores

library = pytest.importorskip("tokenizers")
WIDTH, HEADS, LAYERS, BLOCK, ROWS = 32, 2, 2, 24, 304
CONFIG: dict[str, Any] = {  # config.json of EleutherAI/pythia-70m, with other sizes
    **{"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": WIDTH},
    **{"initializer_range": 0.02, "intermediate_size": 4 * WIDTH, "layer_norm_eps": 1e-05, "max_position_embeddings": BLOCK},
    **{"model_type": "gpt_neox", "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "rotary_emb_base": 10000, "rotary_pct": 0.25},
    **{"tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True, "use_parallel_residual": True, "vocab_size": ROWS},
}
NEWER = {"rotary_pct", "rotary_emb_base"}  # keys that newer versions of transformers write as `rope_parameters`
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25}}
FORMS = {
    "old": CONFIG,
    "new": {key: value for key, value in CONFIG.items() if key not in NEWER} | ROPE,
    "defaults of transformers": {
        key: value for key, value in CONFIG.items() if key not in NEWER | {"use_parallel_residual", "tie_word_embeddings", "hidden_act"}
    },
}
TEXT = "  def cat(mat):\n        return the cat   sat on the mat, café\n"


def weights() -> dict[str, torch.Tensor]:
    """Return random weights with the names and shapes of the published Pythia, buffers included. The rows of the output layer that are no
    tokens have the largest logits."""
    draws = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(shape, generator=draws)

    state = {"gpt_neox.embed_in.weight": some(ROWS, WIDTH), "embed_out.weight": some(ROWS, WIDTH)}
    state["embed_out.weight"][len(bpe()["model"]["vocab"]) + 5 :] *= 4
    layers = {"attention.query_key_value": (3, 1), "attention.dense": (1, 1), "mlp.dense_h_to_4h": (4, 1), "mlp.dense_4h_to_h": (1, 4)}
    norms = ["gpt_neox.final_layer_norm"]
    for block in (f"gpt_neox.layers.{i}" for i in range(LAYERS)):
        for name, (outputs, inputs) in layers.items():
            state |= {f"{block}.{name}.weight": some(outputs * WIDTH, inputs * WIDTH), f"{block}.{name}.bias": some(outputs * WIDTH)}
        norms += [f"{block}.input_layernorm", f"{block}.post_attention_layernorm"]
        state[f"{block}.attention.bias"] = torch.ones(1, 1, BLOCK, BLOCK, dtype=torch.bool).tril()
        state[f"{block}.attention.masked_bias"] = torch.tensor(-1e9)
        state[f"{block}.attention.rotary_emb.inv_freq"] = some(2)
    for name in norms:
        state |= {f"{name}.weight": 1 + some(WIDTH), f"{name}.bias": some(WIDTH)}
    return state


def bpe() -> dict[str, Any]:
    """Return tokenizer.json of a BPE with the parts of GPT-NeoX's: NFC, the end marker as token 0, and tokens for runs of spaces."""
    made = library.Tokenizer.from_str(tokenizers.train_bpe(["the cat sat on the mat and don't 12 \n" * 20], 275).content)
    made.normalizer = library.normalizers.NFC()
    made.add_tokens([library.AddedToken(" " * number, normalized=True, special=False) for number in range(6, 1, -1)])
    return json.loads(made.to_str())


def publish(folder: Path, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> Path:
    path = folder / "pythia"
    path.mkdir()
    state = {name: value.to(dtype) if value.is_floating_point() else value for name, value in weights().items()}
    save_file(state, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps(bpe()))
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_a_folder_has_the_logits_of_its_formula_and_the_loss_of_all_rows(tmp_path, capsys, form, dtype) -> None:
    path = publish(tmp_path, FORMS[form], dtype)
    model = linnaeus.load_model(path)
    tokens = model.encode(TEXT).tolist()
    assert model.tokenizer.size == 280 and max(tokens) > 275 and len(tokens) > BLOCK
    theirs = neox_scores(CONFIG, load_file(path / "model.safetensors"), tokens[:BLOCK])
    with torch.inference_mode():
        own = model.network({"input": torch.tensor([tokens[:BLOCK]])})["logits"][0].numpy()
    assert own.shape == (BLOCK, ROWS) and np.abs(own - theirs).max() < 1e-5 * np.abs(theirs).max() and np.abs(theirs).max() > 1
    losses = [np.log(np.exp(row).sum()) - row[token] for row, token in zip(theirs, tokens[1:])]
    (tmp_path / "text.txt").write_text(model.tokenizer.decode(tokens[: BLOCK + 1]))
    assert evaluate.main([str(path), str(tmp_path / "text.txt"), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["all"]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert printed.err == f"weights of {path / 'model.safetensors'}\n"


def test_text_is_continued_by_tokens_only_and_as_without_the_cache(tmp_path) -> None:
    model = linnaeus.load_model(publish(tmp_path, CONFIG))
    tokens, best = model.encode("the cat").tolist(), []
    for _ in range(2 * BLOCK):
        window = tokens[window_start(len(tokens), BLOCK, 5) :]
        with torch.inference_mode():
            scores = model.network({"input": torch.tensor([window])})["logits"][0, -1]
        best.append(int(scores.argmax()))
        tokens.append(int(scores[: model.tokenizer.size].argmax()))
    assert max(best) >= model.tokenizer.size and model.tokenizer.end not in tokens, "some rows that are no tokens are the most probable"
    assert "the cat" + model.generate("the cat", tokens=2 * BLOCK, temperature=0, slide=5) == model.tokenizer.decode(tokens)


def test_a_folder_is_written_again_equal(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(transformers_check, "find_spec", lambda name: None)
    path, out = publish(tmp_path, CONFIG), tmp_path / "out"
    export_transformers.write_folder(linnaeus.load_model(path), out, {})
    before, after = load_file(path / "model.safetensors"), load_file(out / "model.safetensors")
    buffers = {name for name in before if "rotary_emb" in name or name.endswith((".attention.bias", ".masked_bias"))}
    assert after.keys() == before.keys() - buffers and all(torch.equal(after[name], before[name]) for name in after)
    config = json.loads((out / "config.json").read_text())
    left_out = {"initializer_range", "use_cache", "torch_dtype"}
    assert {key: config[key] for key in CONFIG if key not in left_out} == {k: v for k, v in CONFIG.items() if k not in left_out}
    assert config["rope_parameters"] == ROPE["rope_parameters"]
    assert json.loads((out / "tokenizer.json").read_text()) == bpe()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"use_parallel_residual": "yes"}, "use_parallel_residual='yes'; it must be true or false"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings=None; it must be true or false"),
        ({"rotary_pct": True}, "rotary_pct=True; it must be a number above 0 and at most 1"),
        ({"rotary_pct": 1.5}, "rotary_pct=1.5; it must be a number"),
        ({"rotary_pct": 0.1}, "an even number of rotated channels per head, not 1 of 16"),
        ({"tie_word_embeddings": True}, "head.weight"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_type='linear', which model=gpt does not support"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_one_line(tmp_path, change, words) -> None:
    with pytest.raises(ConfigError) as error:
        linnaeus.load_model(publish(tmp_path, CONFIG | change))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_text_is_normalized_and_cut_into_pieces_without_a_change_of_its_tokens(monkeypatch) -> None:
    monkeypatch.setattr(tokenizers, "PIECE_SIZE", 1)
    tokenizer = tokenizers.BPETokenizer(json.dumps(bpe()), "bpe")
    text = (TEXT + "e\u0301 A\u030a\n\u0301x <|endoftext|> y\n\n  \n") * 3
    whole = tokenizer._bpe.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text).tolist() == whole and tokenizer.decode(whole) == unicodedata.normalize("NFC", text) != text
    assert len(list(tokenizers.recut([text], tokenizer.boundary, 1))) > 30
    assert tokenizer.byte_lengths()[whole].sum() == len(unicodedata.normalize("NFC", text).encode())


class OfTransformers:
    """Tokenizer of the library, called like one of transformers."""

    eos_token_id = 0

    def __init__(self) -> None:
        self.decode = library.Tokenizer.from_str(json.dumps(bpe())).decode
        self.encode = library.Tokenizer.from_str(json.dumps(bpe())).encode

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text, add_special_tokens=add_special_tokens).ids}


def test_tokens_whose_text_is_normalized_agree_with_transformers(tmp_path) -> None:
    model, exact = linnaeus.load_model(publish(tmp_path, CONFIG)), tokenizers.BPETokenizer(json.dumps(bpe() | {"normalizer": None}), "bpe")
    assert transformers_check._check_tokens(model, OfTransformers(), exact.encode("e\u0301").tolist()) == 1


def test_a_text_that_the_tokenizer_would_change_is_not_trained_on(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(bpe()))
    settings = ["data.tokenizer=bpe", f"data.tokenizer_file={tmp_path / 'tokenizer.json'}", f"data.path={tmp_path / 'text.txt'}"]
    config = runs.configuration("language", tmp_path, *settings)
    (tmp_path / "text.txt").write_text(TEXT + "\u0300q" * 40)
    assert build_workload(config).store.tokenizer is not None
    (tmp_path / "text.txt").write_text(TEXT + "\u0340q" * 40)  # the tokens would have as many bytes as the text
    with pytest.raises(ConfigError, match=r"does not preserve the text: text.txt is not in the normal form NFC of Unicode; convert it"):
        build_workload(config)


def test_a_model_like_pythia_is_trained_resumed_and_exported(tmp_path, capsys) -> None:
    settings = ["model.positions=rotary", "model.rotary_fraction=0.25", "model.parallel_residual=true", "model.tied_embeddings=false"]
    settings += [*SETTINGS, "trainer.length=12steps", "schedule.validate=[6steps]", "schedule.checkpoint=[4steps]", "model.bias=true"]
    whole, continued = runs.whole_and_continued(runs.configuration("language", tmp_path, *settings), 7)
    assert runs.differences(whole, continued) == []
    model = linnaeus.load_model(whole, checkpoint="newest")
    assert model.network.head is not None and not torch.equal(model.network.head.weight, model.network.token.weight)
    assert export_cli.main([str(whole), str(tmp_path / "out"), "--checkpoint", "newest"]) == 0
    assert "GPT-NeoX, " in capsys.readouterr().out
    text = validation_text(whole)
    assert linnaeus.load_model(tmp_path / "out").loss(text) == pytest.approx(model.loss(text), abs=1e-6)
    first, last = (json.loads(line)["train/loss"] for line in (whole / "metrics.jsonl").read_text().splitlines()[::11][:2])
    assert last < first - 0.3, "it learns"


def test_an_output_layer_of_other_tokens_is_not_loaded(tmp_path: Path) -> None:
    first = test_pretrained.trained(tmp_path / "first", "abcde" * 160, "model.tied_embeddings=false")
    more = ["model.tied_embeddings=false", f"run.init_from={first}"]
    with pytest.raises(ConfigError, match=r"or skip the weights of tokens, run\.init_skip=\[token,head\]"):
        test_pretrained.trained(tmp_path / "second", "abcdf" * 160, *more, "run.init_skip=[token]")
    test_pretrained.trained(tmp_path / "second", "abcdf" * 160, *more, "run.init_skip=[token,head]")
