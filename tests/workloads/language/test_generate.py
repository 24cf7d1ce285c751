"""`linnaeus generate`: reproducible text from a run, weights of its dimensions, and one line for every mistake."""

import io
import json
import random
import re
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from linnaeus.checkpoint import list_checkpoints
from linnaeus.errors import ConfigError
from linnaeus.workloads.language import generate_cli
from linnaeus.workloads.language.tokenizers import ByteTokenizer, CharacterTokenizer
from linnaeus.workloads.language.trained import language_model, load_model
from tests import runs

TEXT = "the cat sat on the mat and the dog lay on the log\n" * 40
TRAINED = ["model.layers=1", "model.dropout=0", "data.block=16", "trainer.global_batch_size=16", "trainer.micro_batch_size=16"]
TRAINED += ["trainer.length=120steps", "optimizer.lr=0.01", "lr_scheduler.warmup=0steps", "schedule.validate=[]"]
TRAINED += ["schedule.checkpoint=[60steps]", "schedule.keep_last=2", "model.dimensions=[calm,wide]"]
TRAINED += ["schedule.phases={only: {start: 0%, end: 100%, dimensions: {calm: 3}}}"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with one phase that triples the weight of one of its two dimensions."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text(TEXT)
    return runs.run("language", folder, *TRAINED)


@pytest.fixture
def generated(run, capsys):
    def command(*options, at=run):
        assert generate_cli.main([str(at), *options]) == 0
        return capsys.readouterr().out

    return command


@pytest.fixture
def refused(run, capsys):
    def command(*options, at=run):
        with pytest.raises(SystemExit) as ended:
            generate_cli.main([str(at), *options])
        line = capsys.readouterr().err
        assert ended.value.code == 2 and line.startswith("error: ") and line.count("\n") == 1
        return line

    return command


def test_generated_text_has_the_words_of_the_training_text(generated):
    text = generated("--prompt", "the cat sat", "--tokens", "60", "--temperature", "0")
    assert text.startswith("the cat sat ") and len(text) == len("the cat sat") + 60 + 1
    assert {word for word in text.split()[:-1]} <= set(TEXT.split()), "only words of the text"


def test_the_same_command_prints_the_same_text(generated):
    assert generated("--tokens", "40") == generated("--tokens", "40") != generated("--tokens", "40", "--seed", "1")


def test_prompts_and_samples_in_a_batch_equal_those_alone(generated, tmp_path):
    (tmp_path / "prompt.txt").write_text("the dog")
    both = generated("--prompt", "the", "--prompt-file", str(tmp_path / "prompt.txt"), "--samples", "2", "--tokens", "20")
    parts = both.split(generate_cli.SEPARATOR + "\n")[1:]
    assert len(parts) == 4 and parts[0] != parts[1] and parts[2].startswith("the dog")
    assert [generated("--prompt", prompt, "--tokens", "20") for prompt in ("the", "the dog")] == parts[::2]


def test_text_ends_before_a_stop(generated):
    text = generated("--prompt", "the cat", "--tokens", "300")
    assert "\n" in text[:-1] and " o" in text
    assert generated("--prompt", "the cat", "--tokens", "300", "--stop", "\n", "--stop", "zzz") == text[: text.index("\n")] + "\n"
    assert generated("--prompt", "the cat", "--tokens", "300", "--stop", " o") == text[: text.index(" o")] + "\n"


def test_the_dimension_option_changes_the_text(generated):
    hot = ["--prompt", "the", "--tokens", "60", "--temperature", "3"]
    assert generated(*hot) == generated(*hot, "--dimension", "calm=3") == generated(*hot, "--dimension", "calm=6", "--dimension", "wide=2")
    assert generated(*hot, "--dimension", "calm=0") != generated(*hot, "--dimension", "wide=0")


def test_a_checkpoint_can_be_used_instead_of_the_run(run, generated):
    first, last = (path for _, path in list_checkpoints(run / "checkpoints"))
    hot = ["--tokens", "60", "--temperature", "3"]
    assert generated(*hot) == generated(*hot, at=last) != generated(*hot, at=first)
    assert load_model(last / "model.safetensors").source == str(last / "model.safetensors")


def test_the_loaded_weights_are_those_of_the_checkpoint(run):
    trained = load_model(run)
    assert not trained.network.training and trained.network.dimension_weights.tolist() == [0.75, 0.25]
    with torch.no_grad():
        tokens = torch.from_numpy(trained.tokenizer.encode(TEXT[:17]))[None]
        found = trained.network({"input": tokens[:, :-1], "target": tokens[:, 1:]})["losses"].mean().item()
    assert found < 2.0, "3 if untrained"


def test_weights_that_are_not_finite_are_refused(run, refused, tmp_path):
    name = list_checkpoints(run / "checkpoints")[-1][1].name
    for file in (run / "config.yaml", run / "tokenizer.json", run / "dimensions.json"):
        shutil.copy(file, tmp_path)
    state = load_file(run / "checkpoints" / name / "model.safetensors")
    for value, temperature in ((torch.nan, "0"), (torch.nan, "1"), (torch.inf, "1")):
        bad = {key: tensor.clone() for key, tensor in state.items()}
        bad["token.weight"][1, 1] = value
        save_file(bad, tmp_path / "bad.safetensors")
        line = refused("--prompt", "the", "--temperature", temperature, at=tmp_path / "bad.safetensors")
        assert "token.weight in" in line and "contains values that are not finite; use an earlier checkpoint" in line
    huge = {key: tensor * 1e30 for key, tensor in state.items()}
    save_file(huge, tmp_path / "huge.safetensors")
    assert "logits that are not finite" in refused("--prompt", "the", at=tmp_path / "huge.safetensors")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(False), CharacterTokenizer("abcd é日🦋", False)])
def test_a_stop_is_found_where_the_text_has_it_and_in_linear_time(tokenizer, monkeypatch):
    drawn, decoded, decode = random.Random(0), [], type(tokenizer).decode
    monkeypatch.setattr(type(tokenizer), "decode", lambda self, ids: decoded.append(len(ids)) or decode(self, ids))
    for stops in (["a"], ["日b"], ["c🦋 ", "ddd"], ["abcdabcd", "éé"], ["\ue000"]):
        for _ in range(20):
            tokens = tokenizer.encode("".join(drawn.choices("abcd é日🦋", k=60))).tolist()
            found = language_model.stop_finder(tokenizer, stops)
            first = next((n for n in range(1, len(tokens) + 1) if found(tokens[:n])), None)
            expected = next((n for n in range(1, len(tokens) + 1) if any(stop in decode(tokenizer, tokens[:n]) for stop in stops)), None)
            assert first == expected
    assert max(decoded) <= 1 + 4 * 8
    assert language_model.stop_finder(tokenizer, []) is None


@pytest.mark.parametrize(
    "options, message",
    [
        (["--prompt", "Q"], "'Q'"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--top-p", "2"], "top_p is 2"),
        (["--tokens", "0"], "--tokens is 0"),
        (["--tokens", "1000000000000"], "tokens is 1000000000000; it must be from 1 to 1000000"),
        (["--stop", ""], "--stop is empty"),
        (["--slide", "17"], "slide is 17"),
        (["--prompt", "\udcff"], r"prompt: the text contains '\udcff', which"),  # an argument that is not UTF-8
        (["--prompt-file", "gone.txt"], "gone.txt cannot be read"),
        (["--dimension", "odd=1"], "odd is not a dimension of this model; it has calm, wide"),
        (["--dimension", "calm"], "calm: the weight must be a number of at least 0"),
        (["--dimension", "calm=-1"], "the weight must be a number of at least 0, as in calm=2"),
        (["--dimension", "calm=nan"], "the weight must be a number"),
        (["--dimension", "calm=0", "--dimension", "wide=0"], "all weights are 0"),
    ],
)
def test_mistakes_are_one_line(refused, options, message):
    assert message in refused(*options)


def test_options_that_this_machine_or_model_lacks_are_refused(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refused("--device", "cuda")
    with pytest.raises(ConfigError, match="it has none"):
        generate_cli.dimension_weights([], ["calm=1"])


def test_runs_that_cannot_generate_are_refused(run, refused, tmp_path):
    assert "does not exist" in refused(at=tmp_path / "nothing")
    assert "is not a run" in refused(at=tmp_path)
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "dimensions.json").write_text('{"calm": 1}')
    assert "dimensions.json is damaged ('wide')" in refused(at=copy)
    (copy / "dimensions.json").unlink()
    assert "dimensions.json is missing; copy it from another run" in refused(at=copy)
    shutil.copy(run / "dimensions.json", copy)
    (copy / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is damaged" in refused(at=copy)
    (copy / "tokenizer.json").write_text(json.dumps(CharacterTokenizer("abc", False).to_dict()))
    assert re.search(r"token.weight \[\d+, 48\] in the file, \[3, 48\] here", refused(at=copy)), "a tokenizer of another size"
    (copy / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in refused(at=copy)
    shutil.copy(run / "tokenizer.json", copy)
    for _, checkpoint in list_checkpoints(copy / "checkpoints"):
        (checkpoint / "model.safetensors").write_bytes(b"")
    line = refused(at=copy)
    assert "no checkpoint" in line and "run.init_from" not in line
    (copy / "config.yaml").write_text((copy / "config.yaml").read_text().replace("name: language", "name: taxonomy"))
    assert "workload=taxonomy" in refused(at=copy)


def test_a_prompt_file_keeps_its_line_ends(tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"one\r\ntwo\rthree\n")
    assert generate_cli._prompts(generate_cli._parse(["run", "--prompt-file", str(tmp_path / "prompt.txt")])) == ["one\r\ntwo\rthree\n"]


def test_a_character_outside_the_terminals_encoding_is_escaped(run, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(language_model, "text_of", lambda *_: "caf\xe9")
    assert generate_cli.main([str(run), "--prompt", "the", "--tokens", "1"]) == 0
    out.flush()
    assert out.buffer.getvalue() == b"thecaf\\xe9\n"


def test_an_empty_prompt_is_an_end_marker_or_a_line_break():
    assert language_model.encode_prompt(ByteTokenizer(with_end=True), "") == [256]
    assert language_model.encode_prompt(ByteTokenizer(with_end=False), "") == [ord("\n")]
    with pytest.raises(ConfigError, match="prompt is empty, and this model has no line break"):
        language_model.encode_prompt(CharacterTokenizer("abc", with_end=False), "")
