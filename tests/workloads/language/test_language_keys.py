"""Every key of the language workload's groups has an observable effect, and the table has every key."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from linnaeus.workloads import build_workload
from tests.config import observers as see
from tests.config.observers import Case, validation_batches
from tests.config.test_every_key import changes, keys


def data(config: Any) -> Any:
    """Return the fingerprint and notes of the data, and whether token bytes are unknown."""
    workload = build_workload(config)
    return workload.fingerprint, workload.notes, workload.store.byte_lengths is None


def text_of(config: Any) -> str:
    store = build_workload(config).store
    assert store.tokenizer is not None
    return store.tokenizer.decode(np.concatenate([store.train.tokens, store.validation.tokens]).tolist())


def model(config: Any) -> Any:
    t = see.built(config)
    tokens = torch.arange(8)[None] % 5
    torch.manual_seed(0)
    return see.digest({"scores": t.model.train()({"input": tokens})["logits"]}), [tuple(p.shape) for p in t.model.parameters()]


ONE, MANY, TOKENS = "data.path=FOLDER/one.txt", "data.path=FOLDER/many", "data=tokens data.path=FOLDER/tokens"
REFUSED = see.refusal(data)
SMALL = ["data.block=8", "data.validation_batch=2"]
TABLE = {
    "data.name": Case(TOKENS, data, ONE),
    "data.last_batch": Case("data.last_batch=drop", see.plan_text, ONE),
    "data.validation_batch": Case("data.validation_batch=3", validation_batches, ONE),
    "data.max_bad_fraction": Case("data.max_bad_fraction=0.5", REFUSED, f"{MANY} data.files=['*']"),
    "data.block": Case("data.block=4", see.batches, ONE),
    "data.order": Case("data.order=random", see.batches, ONE),
    "data.path@text": Case(MANY, data, ONE),
    "data.files@text": Case("data.files=['0.txt']", data, MANY),
    "data.sources@text": Case("data.sources={odd:['*[13].txt'],rest:['*.txt']}", data, MANY),
    "data.encoding@text": Case("data.encoding=latin-1", text_of, ONE),
    "data.vocabulary@text": Case("data.vocabulary=265", data, f"{ONE} data.tokenizer=bpe data.vocabulary=260"),
    "data.split_seed@text": Case("data.split_seed=1", data, f"{MANY} data.validation_fraction=0.5"),
    "data.path@tokens": Case("data.path=FOLDER/other", data, TOKENS),
    "data.train_files@tokens": Case("data.train_files=['val.bin','train.bin'] data.validation_files=['more.npy']", data, TOKENS),
    "data.validation_files@tokens": Case("data.validation_files=['more.npy']", data, TOKENS),
    "data.dtype@tokens": Case("data.dtype=uint32", REFUSED, TOKENS),
    "data.tokenizer_file@tokens": Case("data.tokenizer_file=FOLDER/gpt2.json", REFUSED, TOKENS),
    "data.vocabulary@tokens": Case("data.vocabulary=200", model, TOKENS),
    "model.rotary_base": Case("model.rotary_base=50", model, f"{ONE} model.positions=rotary"),
    "model.rotary_fraction": Case("model.rotary_fraction=0.5", model, f"{ONE} model.positions=rotary"),
    "model.dimensions": Case("model.dimensions=[calm,wide]", model, ONE),
    "model.adapter_width": Case("model.adapter_width=5", model, f"{ONE} model.dimensions=[calm]"),
    **{
        f"data.{key}@text": Case(f"data.{key}={value}", data, ONE)
        for key, value in {
            "separator": "mat",
            "tokenizer": "byte",
            "tokenizer_file": "FOLDER/reversed.json",
            "validation_fraction": "0.5",
        }.items()
    },
    **{
        f"model.{key}": Case(f"model.{key}={value}", model, ONE)
        for key, value in {
            **{"size": "gpt_micro", "layers": "1", "heads": "2", "width": "24", "positions": "rotary", "bias": "true", "dropout": "0.5"},
            **{"vocabulary_multiple": "64", "gelu": "tanh", "parallel_residual": "true", "tied_embeddings": "false"},
        }.items()
    },
}


def test_the_table_has_every_key():
    found = {key for key, _ in keys("language") if key.startswith(("data.", "model."))}
    assert found - set(TABLE) == {"model.name"}, "there is one network"
    assert set(TABLE) <= found, "the table has keys that do not exist"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("keys")
    one = "the cat sat on the mat and the dog lay on the log; café\n" * 6
    (root / "one.txt").write_text(one, encoding="utf-8")
    (root / "reversed.json").write_text(json.dumps({"kind": "character", "alphabet": "".join(sorted(set(one))[::-1]), "end": False}))
    (root / "many").mkdir()
    for i in range(8):
        (root / "many" / f"{i}.txt").write_text(f"text {i} " * 30)
    (root / "many" / "bad.dat").write_bytes(b"\xff\xff")
    for name in ("tokens", "other"):
        (root / name).mkdir()
        np.arange(200, dtype="<u2").tofile(root / name / "train.bin")
        np.save(root / name / "more.npy", np.arange(9))
        (np.arange(60, dtype="<u2") % (7 if name == "other" else 9)).tofile(root / name / "val.bin")
    return str(root)


@pytest.mark.parametrize("key", sorted(TABLE, key=lambda key: (TABLE[key].base, key)))
def test_a_key_has_an_effect(key, folder):
    if "bpe" in TABLE[key].base:
        pytest.importorskip("tokenizers")
    assert changes(TABLE[key], folder, "workload=language", "model.size=gpt_nano", f"run.root={folder}", *SMALL)


def test_negative_control_the_observers_are_deterministic(folder):
    """The same configuration gives the same result twice."""
    config = see.composed("workload=language", "model.size=gpt_nano", f"run.root={folder}", f"data.path={folder}/one.txt", "data.block=8")
    for observe in (data, text_of, model, see.batches, see.plan_text):
        assert observe(config) == observe(config)
