"""Make finished runs of language models on letters, with learned positions and two validations, and their folders for transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import runs
from tests.workloads.language import test_pretrained

SETTINGS = ["trainer.length=40steps", "schedule.validate=[20steps]", "schedule.checkpoint=[20steps]", "data.validation_batch=4"]
SETTINGS += ["model.layers=2", "optimizer.lr=0.01", "schedule.keep_last=4"]
ALPHABET = "abcdefghijklmnopqrstuvwxyz .\n"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.run("language", tmp_path_factory.mktemp("trained"), *SETTINGS)


@pytest.fixture(scope="session")
def rotary_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = ["model.positions=rotary", "model.bias=true", "model.gelu=tanh", "model.vocabulary_multiple=8", "data.tokenizer=byte"]
    return runs.run("language", tmp_path_factory.mktemp("rotary"), *SETTINGS, *more)


def validation_text(run: Path) -> str:
    """Return the validation part of the text of a run."""
    text = next(run.parents[1].glob("*.txt")).read_text()
    return text[int(len(text) * 0.9) :]


def published_gpt2(folder: Path) -> Path:
    """Write random weights and a tokenizer of 29 characters as a published GPT-2."""
    config = {"activation_function": "gelu_new", "n_layer": 2, "n_embd": 12, "n_positions": 10, "n_ctx": 10}
    path = test_pretrained.publish(folder, test_pretrained.published(), **config)
    words = {character: number for number, character in enumerate(ALPHABET)}
    content = {"normalizer": None, "added_tokens": [], "model": {"type": "WordLevel", "vocab": words, "unk_token": "?"}}
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path
