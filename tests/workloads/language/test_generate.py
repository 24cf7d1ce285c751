"""`linnaeus generate`: reproducible text from a run, and one line for every mistake."""

from __future__ import annotations

import io
import re
import shutil
import sys

import pytest
import torch

import main
from linnaeus.checkpoint import list_checkpoints
from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads.language import generate_cli
from linnaeus.workloads.language.trained_model import load_trained_model

TEXT = "the cat sat on the mat and the dog lay on the log\n" * 40
TINY = ["workload=language", "run.name=run", "run.experiment=text"]
TINY += ["model.size=gpt_nano", "model.layers=1", "data.block=16", "trainer.global_batch_size=16", "trainer.micro_batch_size=16"]
TINY += ["trainer.length=120steps", "trainer.threads=1", "trainer.num_workers=0", "trainer.device=cpu", "optimizer.lr=0.01"]
TINY += ["lr_scheduler.warmup=0steps", "schedule.validate=[120steps]", "schedule.checkpoint=[60steps]", "schedule.keep_last=2"]
TINY += ["schedule.log=[60steps]", "logger.report=false", "logger.console=quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text(TEXT)
    config = compose([*TINY, f"data.path={folder}/text.txt", f"run.root={folder}"])
    assert main.run(config) == 0
    return folder / "text" / "run"


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
    parts = [part.removesuffix("\n") for part in both.split(generate_cli.SEPARATOR + "\n")[1:]]
    assert len(parts) == 4 and parts[0] != parts[1] and parts[2].startswith("the dog")
    assert [generated("--prompt", "the", "--tokens", "20"), generated("--prompt", "the dog", "--tokens", "20")] == [
        parts[0] + "\n",
        parts[2] + "\n",
    ]


def test_text_ends_before_a_stop(generated):
    text = generated("--prompt", "the cat", "--tokens", "300")
    assert "\n" in text[:-1] and " o" in text
    assert generated("--prompt", "the cat", "--tokens", "300", "--stop", "\n", "--stop", "zzz") == text[: text.index("\n")] + "\n"
    assert generated("--prompt", "the cat", "--tokens", "300", "--stop", " o") == text[: text.index(" o")] + "\n"


def test_a_checkpoint_can_be_used_instead_of_the_run(run, generated):
    first, last = (path for _, path in list_checkpoints(run / "checkpoints"))
    hot = ["--tokens", "60", "--temperature", "3"]
    assert generated(*hot) == generated(*hot, at=last) != generated(*hot, at=first)
    assert load_trained_model(str(last / "model.safetensors")).source == str(last / "model.safetensors")


def test_the_loaded_weights_are_those_of_the_checkpoint(run):
    trained = load_trained_model(str(run))
    assert not trained.model.training and trained.tokenizer.decode(trained.tokenizer.encode("the mat")) == "the mat"
    with torch.no_grad():
        tokens = torch.from_numpy(trained.tokenizer.encode(TEXT[:17]))[None]
        found = trained.model({"input": tokens[:, :-1], "target": tokens[:, 1:]})["losses"].mean().item()
    assert found < 2.0, "3 if untrained"


def test_mistakes_are_one_line(run, refused, tmp_path):
    assert "does not exist" in refused(at=tmp_path / "nothing")
    assert "is not a run" in refused(at=tmp_path)
    assert "'Q'" in refused("--prompt", "Q")
    assert "temperature is -1" in refused("--temperature", "-1")
    assert "top_p is 2" in refused("--top-p", "2")
    assert "--tokens is 0" in refused("--tokens", "0")
    assert "--stop is empty" in refused("--stop", "")
    assert "slide is 17" in refused("--slide", "17")
    assert "--prompt: " in refused("--prompt", "\udcff"), "an argument that is not UTF-8"
    assert "prompt.txt cannot be read" in refused("--prompt-file", str(tmp_path / "prompt.txt"))
    if not torch.cuda.is_available():
        assert "no CUDA device" in refused("--device", "cuda")


def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def test_runs_that_cannot_generate_are_refused(run, refused, tmp_path):
    copy = copied(run, tmp_path)
    (copy / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is damaged" in refused(at=copy)
    (copy / "tokenizer.json").write_text('{"kind": "character", "alphabet": "abc", "end": false}')
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


def test_a_prompt_file_keeps_its_line_ends(monkeypatch, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"one\r\ntwo\rthree\n")
    assert generate_cli._prompts(generate_cli._parse(["run", "--prompt-file", str(tmp_path / "prompt.txt")])) == ["one\r\ntwo\rthree\n"]


def test_a_character_outside_the_terminals_encoding_is_escaped(run, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(generate_cli, "text_of", lambda *_: "caf\xe9")
    assert generate_cli.main([str(run), "--prompt", "the", "--tokens", "1"]) == 0
    out.flush()
    assert out.buffer.getvalue() == b"thecaf\\xe9\n"


def test_an_empty_prompt_is_an_end_marker_or_a_line_break():
    from linnaeus.workloads.language.tokenizers import ByteTokenizer

    assert generate_cli.encode_prompt(ByteTokenizer(with_end=True), "") == [256]
    assert generate_cli.encode_prompt(ByteTokenizer(with_end=False), "") == [ord("\n")]
    with pytest.raises(ConfigError, match="--prompt: this model has no line break"):
        from linnaeus.workloads.language.tokenizers import CharacterTokenizer

        generate_cli.encode_prompt(CharacterTokenizer("abc", with_end=False), "")
