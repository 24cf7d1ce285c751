"""Every key of the loadout workload's groups has an observable effect, and the table has every key."""

from typing import Any

import pytest
import torch

from linnaeus.workloads import build_workload
from tests.config import observers as see
from tests.config.observers import Case, validation_batches
from tests.config.test_every_key import changes, keys


def data(config: Any) -> Any:
    """Return the fingerprint and notes of the data, and the size of an epoch."""
    workload = build_workload(config)
    return workload.fingerprint, workload.notes, workload.train_size, len(workload.split.test)


def model(config: Any) -> Any:
    t = see.built(config)
    batch = {"tokens": torch.arange(8)[None] % 5, "weapon": torch.tensor([3])}
    torch.manual_seed(0)
    return see.digest({"logits": t.model.train()(batch)}), [tuple(p.shape) for p in t.model.parameters()]


SMALL = ["data.builds=60", "data.validation_fraction=0.2", "data.validation_batch=40", "model.width=16", "trainer.global_batch_size=8"]
SMALL += ["trainer.micro_batch_size=4"]
TABLE = {
    "data.last_batch": Case("data.last_batch=drop", see.plan_text),
    "data.validation_batch": Case("data.validation_batch=30", validation_batches),
    "data.code": Case("data.code=points", see.batches),
    "data.subsets": Case("data.subsets=2", data),
    "data.empty": Case("data.empty=false", data),
    "data.removal": Case("data.removal=tokens", see.batches),
    "data.visible_targets": Case("data.visible_targets=true", see.batches),
    "data.validation_fraction": Case("data.validation_fraction=0.3", data),
    "data.test_fraction": Case("data.test_fraction=0.3", data),
    "data.split_seed": Case("data.split_seed=1", data),
    "data.builds": Case("data.builds=50", data),
    "data.world": Case("data.world=1", data),
    "model.size": Case("model.size=published_cli", model),
    "model.layers": Case("model.layers=1", model),
    "model.width": Case("model.width=32", model),
    "model.heads": Case("model.heads=2", model, "model.layers=1"),
    "model.blocks": Case("model.blocks=1", model),
    "model.dropout": Case("model.dropout=0.5", model),
}
SINGLE = {"model.name": "there is one network", "data.name": "there is one source", "data.max_bad_fraction": "generated rows are never bad"}


def test_the_table_has_every_key():
    found = {key for key, _ in keys("loadout") if key.startswith(("data.", "model."))}
    assert found - set(TABLE) == set(SINGLE)
    assert set(TABLE) <= found, "the table has keys that do not exist"


@pytest.mark.parametrize("key", TABLE)
def test_a_key_has_an_effect(key, tmp_path):
    assert changes(TABLE[key], str(tmp_path), "workload=loadout", f"run.root={tmp_path}", *SMALL)


def test_negative_control_the_observers_are_deterministic(tmp_path):
    config = see.composed("workload=loadout", f"run.root={tmp_path}", *SMALL)
    for observe in (data, model, see.batches, see.plan_text):
        assert observe(config) == observe(config)
