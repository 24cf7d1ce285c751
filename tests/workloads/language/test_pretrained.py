"""`run.init_from` for language models: the check of the tokens, and the layouts of GPT-2 and nanoGPT."""

import json
import math
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from linnaeus import train
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from tests import runs
from tests.config import observers

LAYERS, HEADS, WIDTH, BLOCK, TOKENS = 2, 3, 12, 10, 29
GPT2 = ["data=tokens", f"data.vocabulary={TOKENS}", f"data.block={BLOCK}", "trainer.precision=float64", "model.dropout=0"]
GPT2 += [f"model.layers={LAYERS}", f"model.heads={HEADS}", f"model.width={WIDTH}", "model.bias=true", "model.gelu=tanh"]


def published(positions: int = BLOCK, tokens: int = TOKENS) -> dict[str, torch.Tensor]:
    """Return random weights with the names and shapes of the published GPT-2, causal masks included."""
    draws = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(shape, generator=draws)

    state = {
        "wte.weight": some(tokens, WIDTH),
        "wpe.weight": some(positions, WIDTH),
        "ln_f.weight": 1 + some(WIDTH),
        "ln_f.bias": some(WIDTH),
    }
    for i in range(LAYERS):
        for name, inputs, outputs in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            state[f"h.{i}.{name}.weight"] = some(inputs * WIDTH, outputs * WIDTH)
            state[f"h.{i}.{name}.bias"] = some(outputs * WIDTH)
        for name in ("ln_1", "ln_2"):
            state |= {f"h.{i}.{name}.weight": 1 + some(WIDTH), f"h.{i}.{name}.bias": some(WIDTH)}
        state[f"h.{i}.attn.bias"] = torch.tril(torch.ones(positions, positions)).view(1, 1, positions, positions)
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    return state


def gpt2_scores(state: dict[str, torch.Tensor], tokens: list[int], gelu: Any) -> np.ndarray:
    """Return GPT-2's logits [T, V], computed in numpy float64."""
    w = {name: tensor.double().numpy() for name, tensor in state.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def layer(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x, later = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)], np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for i in range(LAYERS):
        projected = np.split(layer(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, -1)
        heads = []
        for query, key, value in zip(*(np.split(each, HEADS, -1) for each in projected)):
            share = np.exp(query @ key.T / math.sqrt(WIDTH // HEADS) + later)
            heads.append(share / share.sum(-1, keepdims=True) @ value)
        x = x + layer(np.concatenate(heads, -1), f"h.{i}.attn.c_proj")
        x = x + layer(gelu(layer(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w.get("lm_head.weight", w["wte.weight"]).T


def by_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def by_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokens").mkdir()
    for name in ("train.bin", "val.bin"):
        (np.arange(200) * 7 % TOKENS).astype("<u2").tofile(tmp_path / "tokens" / name)
    return tmp_path


def publish(folder: Path, state: dict[str, torch.Tensor], **config: Any) -> Path:
    (folder / "gpt2").mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "gpt2" / "model.safetensors")
    (folder / "gpt2" / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": HEADS} | config))
    return folder / "gpt2"


def prepared(folder: Path, path: Path, *more: str) -> Any:
    """Return the training before its first update, and its initial weights."""
    config = runs.configuration("language", folder, *GPT2, f"data.path={folder}/tokens", f"run.init_from={path}", *more)
    t = observers.built(config)
    directory = train.find_run_directory(config, DistributedContext())
    try:
        weights = train.find_initial_weights(t, directory)
    finally:
        directory.release()
    assert weights is not None
    return t, weights


def scores_of(folder: Path, path: Path, tokens: list[int], *more: str) -> np.ndarray:
    from linnaeus.checkpoint.weight_matching import load_matched, match_weights

    t, weights = prepared(folder, path, *more)
    load_matched(weights, match_weights(weights, t.model), t.model)
    with torch.no_grad():
        return t.model.eval()({"input": torch.tensor([tokens])})["logits"][0].numpy()


TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 28]


def test_published_weights_compute_gpt2s_function(folder: Path) -> None:
    state = published()
    found = scores_of(folder, publish(folder, state), TEXT)
    assert np.abs(found - gpt2_scores(state, TEXT, by_tanh)).max() < 1e-10
    assert np.abs(found - gpt2_scores(state, TEXT, by_erf)).max() > 1e-4, "negative control: the published GELU is the tanh one"
    assert np.abs(found).max() > 1, "the logits are not all near 0"


def test_a_single_file_with_other_prefixes_is_read(folder: Path) -> None:
    """A file without config.json, with the prefix `transformer.` and a stored copy of the tied head."""
    state = published()
    (folder / "alone").mkdir()
    named = {f"transformer.{name}": tensor for name, tensor in state.items()} | {"lm_head.weight": state["wte.weight"].clone()}
    save_file(named, folder / "alone" / "weights.safetensors")
    found = scores_of(folder, folder / "alone" / "weights.safetensors", TEXT)
    assert np.abs(found - gpt2_scores(state, TEXT, by_tanh)).max() < 1e-10
    _, weights = prepared(folder, folder / "alone" / "weights.safetensors")
    assert any("number of heads" in note for note in weights.notes)
    named["lm_head.weight"] = named["lm_head.weight"] + 1
    save_file(named, folder / "alone" / "untied.safetensors")
    with pytest.raises(ConfigError, match=r"set model\.tied_embeddings=false$"):
        prepared(folder, folder / "alone" / "untied.safetensors")
    found = scores_of(folder, folder / "alone" / "untied.safetensors", TEXT, "model.tied_embeddings=false")
    assert np.abs(found - gpt2_scores(state | {"lm_head.weight": named["lm_head.weight"]}, TEXT, by_tanh)).max() < 1e-10


def shard(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    """Write published weights in two files with an index, as large models have them."""
    path, index = publish(folder, {}), {}
    (path / "model.safetensors").unlink()
    for number in range(2):
        part = {name: tensor.contiguous() for i, (name, tensor) in enumerate(state.items()) if i % 2 == number}
        save_file(part, path / f"model-{number + 1}-of-2.safetensors")
        index |= dict.fromkeys(part, f"model-{number + 1}-of-2.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))
    return path


def test_weights_in_several_files_are_read(folder: Path) -> None:
    state = published()
    path = shard(folder, state)
    for given in (path, path / "model.safetensors.index.json"):
        assert np.abs(scores_of(folder, given, TEXT) - gpt2_scores(state, TEXT, by_tanh)).max() < 1e-10
    before = prepared(folder, path)[1].digest
    shutil.rmtree(path)
    assert prepared(folder, shard(folder, state | {"ln_f.bias": torch.zeros(WIDTH)}))[1].digest != before


def test_an_index_without_its_files_is_refused(folder: Path) -> None:
    path = shard(folder, published())
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for change, message in (
        ({"more.weight": "model-1-of-2.safetensors"}, "its files do not have more.weight"),
        ({"more.weight": "model-3-of-2.safetensors"}, "its file model-3-of-2.safetensors is absent; download it"),
        ({"more.weight": "../model.safetensors"}, "it has no weight_map of names of tensors and files"),
    ):
        index.write_text(json.dumps({"weight_map": content["weight_map"] | change}))
        with pytest.raises(ConfigError, match=f"index.json is not a safetensors file .{message}"):
            prepared(folder, path)


def test_a_checkpoint_of_nanogpt_is_read(folder: Path) -> None:
    """Its matrices are transposed relative to the published ones, its GELU is exact, and its names have the prefix of a compiled model."""
    state = published()
    state_dict = {
        f"_orig_mod.transformer.{name}": tensor.t().contiguous() if name.startswith("h.") and tensor.dim() == 2 else tensor
        for name, tensor in state.items()
        if not name.endswith((".attn.bias", ".attn.masked_bias"))
    }
    state_dict["_orig_mod.lm_head.weight"] = state_dict["_orig_mod.transformer.wte.weight"]
    torch.save({"model": state_dict, "iter_num": 5, "config": {"n_head": HEADS}}, folder / "ckpt.pt")
    found = scores_of(folder, folder / "ckpt.pt", TEXT, "model.gelu=erf")
    assert np.abs(found - gpt2_scores(state, TEXT, by_erf)).max() < 1e-10
    with pytest.raises(ConfigError, match=r"set model\.gelu=erf$"):
        prepared(folder, folder / "ckpt.pt")


def test_the_first_of_more_positions_are_used(folder: Path) -> None:
    state = published(positions=2 * BLOCK)
    path = publish(folder, state)
    assert np.abs(scores_of(folder, path, TEXT) - gpt2_scores(state, TEXT, by_tanh)).max() < 1e-10
    assert any(f"has {2 * BLOCK} positions; the first {BLOCK} are used" in note for note in prepared(folder, path)[1].notes)
    with pytest.raises(ConfigError, match=r"position\.weight"):
        prepared(folder, path, f"data.block={3 * BLOCK}")


def test_settings_that_differ_are_listed_in_one_line(folder: Path) -> None:
    path = publish(folder, published())
    others = "model.layers=1 model.heads=2 model.width=16 model.bias=false model.gelu=erf model.positions=rotary"
    others += " model.parallel_residual=true model.tied_embeddings=false"
    with pytest.raises(ConfigError) as caught:
        prepared(folder, path, *others.split())
    settings = "model.layers=2 model.heads=3 model.width=12 model.positions=learned model.bias=true model.gelu=tanh"
    settings += " model.parallel_residual=false model.tied_embeddings=true"
    assert str(caught.value).endswith(f"with other settings; set {settings}")
    with pytest.raises(ConfigError, match=r"set model\.vocabulary_multiple=1$"):
        prepared(folder, path, "model.vocabulary_multiple=64")
    with pytest.raises(ConfigError, match=r"token\.weight \[29, 12\] in the file, \[30, 12\] here"):
        prepared(folder, path, "data.vocabulary=30")
    prepared(folder, path, *settings.split())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"activation_function": "relu"}, "activation_function=relu"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon=1e-06"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ],
)
def test_unsupported_functions_are_refused(folder: Path, config: dict[str, Any], message: str) -> None:
    path = publish(folder, published(), **config)
    with pytest.raises(ConfigError, match=message):
        prepared(folder, path)


def test_a_folder_without_config_json_is_refused(folder: Path) -> None:
    """Weights without config.json may be an uncommitted checkpoint."""
    path = publish(folder, published())
    (path / "config.json").unlink()
    with pytest.raises(ConfigError, match="contains no checkpoint"):
        prepared(folder, path)


# -- tokens --------------------------------------------------------------------------------------------------------------------


def trained(root: Path, text: str, *more: str) -> Path:
    root.mkdir(exist_ok=True)
    (root / "text.txt").write_text(text)
    return runs.run("language", root, "trainer.length=2steps", "schedule.checkpoint=[2steps]", "schedule.validate=[]", *more)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the letters a to e."""
    return trained(tmp_path_factory.mktemp("earlier"), "abcde" * 160)


def test_a_run_can_be_used_with_its_tokens_or_without_its_embedding(earlier: Path, tmp_path: Path) -> None:
    more = [("edcba", []), ("edcab", [f"data.tokenizer_file={earlier}/tokenizer.json"]), ("abcdf", ["run.init_skip=[token]"])]
    for number, (letters, settings) in enumerate(more):
        run = trained(tmp_path / str(number), letters * 160, f"run.init_from={earlier}", *settings)
        assert (run / "launches" / "1" / "init_from.txt").is_file()


@pytest.mark.parametrize("part", ["", "checkpoints/step-00000002", "checkpoints/step-00000002/model.safetensors"])
def test_a_run_with_other_tokens_is_refused(earlier: Path, tmp_path: Path, part: str) -> None:
    """Both have five tokens, so the shapes would fit."""
    with pytest.raises(ConfigError) as caught:
        trained(tmp_path, "abcdf" * 160, f"run.init_from={earlier / part}")
    line = str(caught.value)
    identity = json.loads((earlier / "dataset.json").read_text())["identity"]
    assert identity in line and line.count("character-5-") == 2 and "\n" not in line
    assert f"data.tokenizer=character data.tokenizer_file={earlier}/tokenizer.json" in line
    assert not (tmp_path / "text" / "run").exists(), "refused before anything is written"


def test_unknown_tokens_are_logged(folder: Path) -> None:
    rows = [f"data.path={folder}/tokens", "data=tokens", "data.validation_batch=2"]
    first = trained(folder / "first", "", *rows, "data.vocabulary=29")
    (folder / "tokens" / "meta.pkl").write_bytes(pickle.dumps({"itos": {i: chr(65 + i) for i in range(TOKENS)}}))
    second = trained(folder / "second", "", *rows, f"run.init_from={first}")
    assert "it is unknown whether they are the same" in (second / "train.log").read_text()


def test_gpt2_needs_its_own_tokens(folder: Path) -> None:
    """Weights with 50,257 rows are GPT-2's and need its tokens. Tokens of a folder without meta.pkl are unknown and allowed."""
    state = published() | {"wte.weight": torch.zeros(50257, WIDTH)}
    path = publish(folder, state)
    prepared(folder, path, "data.vocabulary=50257")
    letters = {"itos": {i: chr(0x20000 + i) for i in range(50257)}}
    (folder / "tokens" / "meta.pkl").write_bytes(pickle.dumps(letters))
    with pytest.raises(ConfigError, match=r"was trained on the tokens of GPT-2, this run has character-50257-\w+; use data.tokenizer=gpt2"):
        prepared(folder, path, "data.vocabulary=null")
