"""`load_model` of a language model: text, loss and likelihood of a run and of published weights."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import linnaeus
from linnaeus.commands import evaluate
from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.workloads import export_cli
from linnaeus.workloads.language import generate_cli
from linnaeus.workloads.language.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer, train_bpe
from linnaeus.workloads.language.trained import library_tokenizers, text_questions
from linnaeus.workloads.language.trained.language_model import LanguageModel
from tests import runs
from tests.workloads.language import test_pretrained
from tests.workloads.language.trained.conftest import ALPHABET, published_gpt2, validation_text

ROOT = Path(linnaeus.__file__).parents[1]
WITHOUT_TRAINING = """
import sys
sys.path.insert(0, {root!r})
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hydra", "omegaconf", "wandb", "rich") or name.startswith("linnaeus.train"):
            raise ImportError(name)
sys.meta_path.insert(0, Forbidden())
import linnaeus
model = linnaeus.load_model("gpt2")
print(model.loss("abcabc"), len(model.generate("abc", tokens=3, temperature=0)))
"""


def log_probabilities(model: LanguageModel, tokens: list[int]) -> np.ndarray:
    """Return the log-probability of each token but the first, from one pass over all of them."""
    with torch.inference_mode():
        scores = model.network({"input": torch.tensor([tokens[:-1]])})["logits"][0].double().log_softmax(1)
    return scores[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])].numpy()


def test_the_score_of_the_validation_text_equals_the_runs_own(run: Path) -> None:
    for step, checkpoint in ((20, "20"), (40, "newest")):
        saved = read_json(run / "validation" / f"step-{step:08d}" / "val.json")["metrics"]
        model = linnaeus.load_model(run, checkpoint=checkpoint)
        score = model.score(validation_text(run))
        assert {f"val/{name}": value for name, value in score._asdict().items() if name not in ("tokens", "bytes")} == saved
        assert model.loss(validation_text(run)) == saved["val/loss"] and score.tokens == score.bytes == len(validation_text(run)) - 1


def test_the_best_validated_checkpoint_is_the_default(run: Path) -> None:
    saved = {step: read_json(run / "validation" / f"step-{step:08d}" / "val.json")["metrics"]["val/loss"] for step in (20, 40)}
    best = min(saved, key=saved.__getitem__)
    model = linnaeus.load_model(run)
    assert f"step-{best:08d}" in model.source and any("the best of 2 by val/loss" in note for note in model.notes)
    with pytest.raises(ConfigError, match="has no checkpoint of step 3"):
        linnaeus.load_model(run, checkpoint="3")
    with pytest.raises(ConfigError, match="which this machine does not have"):
        linnaeus.load_model(run, device="cuda:77")


def test_generated_text_is_that_of_the_command(run: Path, capsys: pytest.CaptureFixture) -> None:
    model = linnaeus.load_model(run)
    assert generate_cli.main([str(run), "--prompt", "ab", "--samples", "2", "--tokens", "20"]) == 0
    printed = capsys.readouterr().out.split(generate_cli.SEPARATOR + "\n")[1:]
    both = model.generate(["ab", "ab"], tokens=20)
    assert [f"ab{text}\n" for text in both] == printed and both[0] != both[1] and model.generate("ab", tokens=20) == both[0]
    text = model.generate("ab", tokens=60, temperature=0)
    stop = text[30:32]
    assert model.generate("ab", tokens=60, temperature=0, stop=stop) == text[: text.index(stop)]
    for wrong in ({"tokens": 0}, {"stop": ""}, {"temperature": -1}, {"top_k": 0}):
        with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} is"):
            model.generate("ab", **wrong)


@pytest.mark.parametrize("more", [0, 1, 7])
def test_a_question_of_an_edit_reads_the_tokens_that_its_continuation_reads(run: Path, more: int) -> None:
    model = linnaeus.load_model(run)
    prompt, read = ("the quick brown fox " * 9)[: model.network.block + more], list[torch.Tensor]()
    model.network.token.register_forward_hook(lambda module, inputs, output: read.append(inputs[0]))
    question = text_questions._question(model, prompt, 1)
    answer = question.ask()
    assert len(read) == 2 and torch.equal(*read) and len(question.places) == read[1].shape[1]
    assert model.tokenizer.decode([int(answer.probabilities["next token"].argmax())]) == answer.lines[0]


def test_the_likelihood_of_a_continuation_is_the_sum_over_its_tokens(run: Path) -> None:
    model = linnaeus.load_model(run)
    context, continuations = "abc", ["d", "efg", "zz"]
    found = model.log_likelihoods([(context, text) for text in continuations])
    for text, one in zip(continuations, found, strict=True):
        expected = log_probabilities(model, model.encode(context + text).tolist())[-len(text) :]
        assert one.log_likelihood == pytest.approx(expected.sum(), abs=1e-5) and one.tokens == len(text)
        assert model.log_likelihood(context, text) == pytest.approx(one.log_likelihood, abs=1e-5), "alone as in a batch"
    most_probable = model.generate(context, tokens=3, temperature=0)
    assert model.log_likelihoods([(context, most_probable), (context, "zz")])[0].greedy and not found[2].greedy
    line_break = log_probabilities(model, model.encode("\na").tolist())[0]
    assert model.log_likelihood("", "a") == pytest.approx(line_break, abs=1e-5), "an empty context starts a document"


def test_a_long_continuation_is_read_in_blocks_of_which_each_token_counts_once(run: Path) -> None:
    model = linnaeus.load_model(run)
    text, block = validation_text(run)[:31], model.network.block
    assert block == 8
    near = log_probabilities(model, model.encode(text[-block - 1 :]).tolist())[-2:].sum()
    assert model.log_likelihood(text[:-2], text[-2:]) == pytest.approx(near, abs=1e-5), "the last tokens of a long context are read"
    tokens = model.encode(text).tolist()
    blocks = sum(log_probabilities(model, tokens[start : start + block + 1]).sum() for start in (2, 10, 18))
    blocks += log_probabilities(model, tokens[-block - 1 :])[-4:].sum()
    assert model.log_likelihoods([(text[:3], text[3:])])[0] == (pytest.approx(blocks, abs=1e-4), len(text) - 3, False)


def test_a_word_across_context_and_continuation_is_one_token() -> None:
    """Texts are cut in the middle of a word: "the c" and "at" alone do not have the tokens of "the cat"."""
    pytest.importorskip("tokenizers")
    tokenizer = train_bpe(["the cat sat on the mat " * 20], 265)
    model = LanguageModel(untrained_network(tokenizer.size), tokenizer, "")
    whole = tokenizer.encode("the cat").tolist()
    alone = tokenizer.encode("the c").tolist()
    shared = next(i for i, (a, b) in enumerate(zip(alone, whole)) if a != b)
    assert 0 < shared < len(alone)
    expected = log_probabilities(model, whole)[shared - 1 :].sum()
    assert model.log_likelihood("the c", "at") == pytest.approx(expected, abs=1e-5)
    start = log_probabilities(model, [tokenizer.end, *tokenizer.encode("the").tolist()]).sum()
    assert model.log_likelihood("t", "he") == pytest.approx(start, abs=1e-5), "no token of the context is left"


def untrained_network(tokens: int):
    from linnaeus.config import compose
    from linnaeus.workloads.language.model.gpt import build_gpt

    return build_gpt(compose(["workload=language", "model.size=gpt_nano"]).model, 0, tokens, 16)


def test_what_cannot_be_scored_is_one_line(run: Path) -> None:
    model = linnaeus.load_model(run)
    for text, words in (
        ("a", "a text of 1 token has no token to predict"),
        ("", "0 tokens"),
        ("aéb", "'é'"),
        ("a\udcff", "not a character"),
    ):
        with pytest.raises(ConfigError, match=words):
            model.loss(text)
    with pytest.raises(ConfigError, match="continuation is empty"):
        model.log_likelihood("a", "")
    with torch.no_grad():
        model.network.norm.weight[0] = math.nan
    for compute in (lambda: model.loss("abc"), lambda: model.log_likelihood("a", "b"), lambda: model.generate("a")):
        with pytest.raises(ConfigError, match="not finite"):
            compute()


@pytest.fixture(scope="module")
def tokens_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the tokens of another program: 29 of them, with no tokenizer."""
    folder = tmp_path_factory.mktemp("tokens")
    for name in ("train.bin", "val.bin"):
        (np.arange(400) * 7 % 29).astype("<u2").tofile(folder / name)
    settings = ["data=tokens", f"data.path={folder}", "data.vocabulary=29", "model.layers=1", "trainer.length=2steps"]
    return runs.run("language", folder, *settings, "schedule.validate=[]", "schedule.checkpoint=[2steps]")


def test_a_run_without_a_tokenizer_is_used_with_a_given_one(tokens_run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    given = published_gpt2(tmp_path)
    with pytest.raises(ConfigError, match=r"its data had no tokenizer; give the tokenizer of its tokens with --tokenizer FOLDER"):
        linnaeus.load_model(tokens_run)
    model = linnaeus.load_model(tokens_run, tokenizer=given)
    tokens = model.encode("the cat").tolist()
    assert tokens == [ALPHABET.index(letter) for letter in "the cat"]
    assert model.log_likelihood("t", "he cat") == pytest.approx(log_probabilities(model, tokens).sum(), abs=1e-5)
    assert generate_cli.main([str(tokens_run), "--tokenizer", str(given / "tokenizer.json"), "--prompt", "a", "--tokens", "5"]) == 0
    assert capsys.readouterr().out == "a" + model.generate("a", tokens=5) + "\n"
    (tmp_path / "text.txt").write_text("the cat")
    assert evaluate.main([str(tokens_run), str(tmp_path / "text.txt"), "--tokenizer", str(given), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["loss"] == model.loss("the cat")
    if find_spec("tokenizers"):
        assert export_cli.main([str(tokens_run), str(tmp_path / "out"), "--tokenizer", str(given)]) == 0
        assert linnaeus.load_model(tmp_path / "out").loss("the cat") == model.loss("the cat")


def test_a_tokenizer_that_is_not_needed_or_of_another_model_is_refused(run: Path, tokens_run: Path, tmp_path: Path) -> None:
    given = published_gpt2(tmp_path)
    for path in (run, given):
        with pytest.raises(ConfigError, match=r"--tokenizer has no effect with .*, which has its own"):
            linnaeus.load_model(path, tokenizer=given)
    with pytest.raises(ConfigError, match=r"has 257 tokens, but .* was trained on the tokens unknown-29; give the tokenizer"):
        (tmp_path / "bytes.json").write_text(json.dumps(ByteTokenizer(True).to_dict()))
        linnaeus.load_model(tokens_run, tokenizer=tmp_path / "bytes.json")
    with pytest.raises(ConfigError, match=r"--tokenizer: .* cannot be read"):
        linnaeus.load_model(tokens_run, tokenizer=tmp_path / "gone.json")


# -- folders of transformers -----------------------------------------------------------------------------------------------------


def test_published_weights_have_the_loss_of_gpt2s_function(tmp_path: Path) -> None:
    model = linnaeus.load_model(published_gpt2(tmp_path))
    text = "the cat sat"
    tokens = [ALPHABET.index(letter) for letter in text]
    scores = test_pretrained.gpt2_scores(test_pretrained.published(), tokens[:-1], test_pretrained.by_tanh)
    losses = [np.log(np.exp(row).sum()) - row[target] for row, target in zip(scores, tokens[1:])]
    assert model.loss(text) == pytest.approx(np.mean(losses), rel=1e-5) and model.score(text).tokens == 10


@pytest.mark.slow
def test_a_folder_of_transformers_needs_no_training_code(tmp_path: Path) -> None:
    path = published_gpt2(tmp_path)
    code = WITHOUT_TRAINING.format(root=str(ROOT))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[0]) == pytest.approx(linnaeus.load_model(path).loss("abcabc"), abs=1e-6)


CHANGES = {
    "truth": ({"n_positions": True}, "n_positions=True; it must be an integer"),
    "activation": ({"activation_function": "relu"}, "activation_function='relu', which model=gpt does not support"),
    "untied head": ({"tie_word_embeddings": False}, "head.weight"),
    "scale": ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    "heads": ({"n_head": 5}, "heads"),
    "no number": ({"n_head": "3"}, "n_head='3'; it must be an integer from 1 on"),
    "huge": ({"n_positions": 10**12}, "n_positions=1000000000000"),
    "layers": ({"n_layer": 3}, "has 3 layers, and its weights 2"),
    "width": ({"n_embd": 24}, "has the width 24, and its weights 12"),
    "positions": ({"n_positions": 11}, "position.weight"),
    "list": ({"activation_function": []}, "activation_function="),
    "other": ({"model_type": "bert"}, "neither a run directory"),
    "neox": ({"model_type": "gpt_neox"}, "num_hidden_layers=None; it must be an integer"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_architecture_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    change, words = CHANGES[name]
    path = published_gpt2(tmp_path)
    content = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(content | change))
    with pytest.raises(ConfigError) as error:
        linnaeus.load_model(path)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_out_of_a_folder_and_a_pipe_are_not_read(tmp_path: Path, name: str) -> None:
    path = published_gpt2(tmp_path)
    (path / name).rename(tmp_path / name)
    (path / name).symlink_to(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} leads to a file outside of the folder"):
        linnaeus.load_model(path)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(ConfigError, match=f"{name} is not a file"):
        linnaeus.load_model(path)


def test_a_folder_with_missing_or_other_files_is_refused(tmp_path: Path) -> None:
    path = published_gpt2(tmp_path)
    with pytest.raises(ConfigError, match="one set of weights"):
        linnaeus.load_model(path, checkpoint="best")
    content = json.loads((path / "tokenizer.json").read_text())
    for change, words in (
        ({"vocab": {"a": 0, "b": 2}}, "gaps"),
        ({"vocab": {"ab": 0}}, "longer than a character"),
        ({"vocab": {chr(200 + i): i for i in range(30)}}, "a tokenizer of 30 tokens"),
        ({"type": "Unigram"}, "not a tokenizer of characters"),
    ):
        (path / "tokenizer.json").write_text(json.dumps(content | {"model": content["model"] | change}))
        with pytest.raises(ConfigError, match=words):
            linnaeus.load_model(path)
    (path / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json, nor vocab\.json"):
        linnaeus.load_model(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has neither model\.safetensors nor"):
        linnaeus.load_model(path)


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("kind", ["character", "byte", "bpe"])
def test_a_tokenizer_is_the_same_in_the_files_of_the_library(tmp_path: Path, kind: str, end: bool) -> None:
    library = pytest.importorskip("tokenizers")
    text = "a b\tc\r\n日é🦋  <d>\x00 don't 12 "
    made = {
        "character": lambda: CharacterTokenizer("".join(sorted(set(text))), end),
        "byte": lambda: ByteTokenizer(end),
        "bpe": lambda: train_bpe([text * 30], 270),
    }
    tokenizer = made[kind]()
    (tmp_path / "tokenizer.json").write_text(library_tokenizers.library_json(tokenizer))
    theirs = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode(text).tolist()
    assert theirs.encode(text).ids == ids and theirs.decode(ids, skip_special_tokens=False) == text
    assert theirs.token_to_id("<|endoftext|>") == tokenizer.end
    again = library_tokenizers.read_library_tokenizer(tmp_path)
    if isinstance(tokenizer, BPETokenizer):
        assert isinstance(again, BPETokenizer) and again.meaning() == tokenizer.meaning()
    else:
        assert again.to_dict() == tokenizer.to_dict()
    if kind == "character":
        with pytest.raises(Exception, match="Missing"):
            theirs.encode("ß")
