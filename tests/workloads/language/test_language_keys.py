"""Every key of the language workload's groups has an observable effect, and the table has every key."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from linnaeus.workloads import build_workload
from linnaeus.workloads.language.config import SCHEMAS
from tests.config import observers as see
from tests.config.test_every_key import Case, validation_batches


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
TABLE = {
    "data.text.name": Case(TOKENS, data, ONE),
    "data.last_batch": Case("data.last_batch=drop", see.plan_text, ONE),
    "data.validation_batch": Case("data.validation_batch=3", validation_batches, ONE),
    "data.max_bad_fraction": Case("data.max_bad_fraction=0.5", REFUSED, f"{MANY} data.files=['*']"),
    "data.block": Case("data.block=4", see.batches, ONE),
    "data.order": Case("data.order=random", see.batches, ONE),
    "data.text.path": Case(MANY, data, ONE),
    "data.text.files": Case("data.files=['0.txt']", data, MANY),
    "data.text.sources": Case("data.sources={odd:['*[13].txt'],rest:['*.txt']}", data, MANY),
    "data.text.encoding": Case("data.encoding=latin-1", text_of, ONE),
    "data.text.separator": Case("data.separator=mat", data, ONE),
    "data.text.tokenizer": Case("data.tokenizer=byte", data, ONE),
    "data.text.tokenizer_file": Case("data.tokenizer_file=FOLDER/reversed.json", data, ONE),
    "data.text.vocabulary": Case("data.vocabulary=265", data, f"{ONE} data.tokenizer=bpe data.vocabulary=260"),
    "data.text.validation_fraction": Case("data.validation_fraction=0.5", data, ONE),
    "data.text.split_seed": Case("data.split_seed=1", data, f"{MANY} data.validation_fraction=0.5"),
    "data.tokens.path": Case("data.path=FOLDER/other", data, TOKENS),
    "data.tokens.tokenizer_file": Case("data.tokenizer_file=FOLDER/gpt2.json", REFUSED, TOKENS),
    "data.tokens.vocabulary": Case("data.vocabulary=200", model, TOKENS),
    "model.size": Case("model.size=gpt_micro", model, ONE),
    "model.layers": Case("model.layers=1", model, ONE),
    "model.heads": Case("model.heads=2", model, ONE),
    "model.width": Case("model.width=24", model, ONE),
    "model.positions": Case("model.positions=rotary", model, ONE),
    "model.rotary_base": Case("model.rotary_base=50", model, f"{ONE} model.positions=rotary"),
    "model.bias": Case("model.bias=true", model, ONE),
    "model.dropout": Case("model.dropout=0.5", model, ONE),
    "model.vocabulary_multiple": Case("model.vocabulary_multiple=64", model, ONE),
    "model.dimensions": Case("model.dimensions=[calm,wide]", model, ONE),
    "model.adapter_width": Case("model.adapter_width=5", model, f"{ONE} model.dimensions=[calm]"),
    "model.gelu": Case("model.gelu=tanh", model, ONE),
}
ONE_CHOICE = {"model.name"}  # there is one network


def keys() -> dict[str, dataclasses.Field]:
    """Return the fields by `group.key`, or by `group.variant.key` if variants differ."""
    found = {}
    for group, variants in SCHEMAS.items():
        named = {name: {field.name: field for field in dataclasses.fields(cls)} for name, cls in variants.items()}
        shared = set.intersection(*(set(fields) for fields in named.values()))
        for name, fields in named.items():
            for key, field in fields.items():
                common = key in shared and all(other[key].metadata == field.metadata for other in named.values())
                found[f"{group}.{key}" if common else f"{group}.{name}.{key}"] = field
    return found


def test_the_table_has_every_key():
    table = {key.replace("data.text.name", "data.name") for key in TABLE}
    assert set(keys()) - table == ONE_CHOICE
    assert table <= set(keys()), "the table has keys that do not exist"


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
        (np.arange(60, dtype="<u2") % (7 if name == "other" else 9)).tofile(root / name / "val.bin")
    return str(root)


_baselines: dict[tuple[str, str], Any] = {}


@pytest.mark.parametrize("key", sorted(TABLE, key=lambda key: (TABLE[key].base, key)))
def test_a_key_has_an_effect(key, folder):
    torch.set_num_threads(1)
    case = TABLE[key]
    if "bpe" in case.base:
        pytest.importorskip("tokenizers")
    always = ["workload=language", "model.size=gpt_nano", "data.block=8", f"run.root={folder}", "data.validation_batch=2"]

    def answer(*texts: str) -> Any:
        chosen = [text.replace("FOLDER", folder) for text in " ".join(texts).split()]
        return case.observe(see.composed(*always, *chosen))

    which = (case.base, str(case.observe))
    if which not in _baselines:
        _baselines[which] = answer(case.base)
    assert answer(case.base, case.change) != _baselines[which]


def test_negative_control_the_observers_are_deterministic(folder):
    """The same configuration gives the same result twice."""
    config = see.composed("workload=language", "model.size=gpt_nano", f"run.root={folder}", f"data.path={folder}/one.txt", "data.block=8")
    for observe in (data, text_of, model, see.batches, see.plan_text):
        assert observe(config) == observe(config)
