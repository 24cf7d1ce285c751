"""Every key of the loadout workload's groups has an observable effect, and the table has every key."""

import json
from typing import Any

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload
from linnaeus.workloads.loadout.game.weapons import builtin_weapons
from tests.config import observers as see
from tests.config.observers import Case, validation_batches
from tests.config.test_every_key import changes, keys
from tests.workloads.loadout.test_build_sources import write_battles, write_slots


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
BATTLES = "data=battles data.path=FOLDER/battles.csv"
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
    "data.name": Case(f"{BATTLES} data.max_bad_fraction=1", data),
    "data.max_bad_fraction": Case("data.max_bad_fraction=1", see.refusal(data), BATTLES),
    "data.path": Case("data.path=FOLDER/more.csv", see.refusal(data), f"{BATTLES} data.max_bad_fraction=1"),
    "data.weapons": Case("data.weapons=FOLDER/weapon.json", see.refusal(data), f"{BATTLES} data.max_bad_fraction=1"),
    "data.copies": Case("data.copies=1", data, f"{BATTLES} data.max_bad_fraction=1"),
    "data.win_share@battles": Case("data.win_share=1", data, f"{BATTLES} data.max_bad_fraction=1"),
    "data.tiers@builds": Case("data.tiers=[1]", data, "data=builds data.path=FOLDER/slots.csv"),
    "data.builds@loadouts": Case("data.builds=50", data),
    "data.world@loadouts": Case("data.world=1", data),
    "model.size": Case("model.size=published_cli", model),
    "model.layers": Case("model.layers=1", model),
    "model.width": Case("model.width=32", model),
    "model.heads": Case("model.heads=2", model, "model.layers=1"),
    "model.blocks": Case("model.blocks=1", model),
    "model.dropout": Case("model.dropout=0.5", model),
}


def test_the_table_has_every_key():
    found = {key for key, _ in keys("loadout") if key.startswith(("data.", "model."))}
    assert found - set(TABLE) == {"model.name"}, "there is one network"
    assert set(TABLE) <= found, "the table has keys that do not exist"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("keys")

    def wrong(rows):
        rows[0]["A2-weapon"] = "bow"
        return rows + rows

    write_battles(root / "battles.csv", wrong)
    write_battles(root / "more.csv", lambda rows: rows[:8])
    write_slots(root / "slots.csv")
    rows = [row for row in builtin_weapons().rows if row.key != "bold" and row.reskin_of != "bold"]
    entries = [{"key": row.key, "aliases": [row.number], "name": {"en_US": row.name}, "reskin_of": row.reskin_of} for row in rows]
    (root / "weapon.json").write_text(json.dumps(entries))
    return str(root)


@pytest.mark.parametrize("key", TABLE)
def test_a_key_has_an_effect(key, folder):
    small = [text for text in SMALL if "data=" not in TABLE[key].base + TABLE[key].change or not text.startswith("data.builds")]
    assert changes(TABLE[key], folder, "workload=loadout", f"run.root={folder}", *small)


def test_a_limit_of_bad_builds_is_refused_where_all_are_generated():
    with pytest.raises(ConfigError, match=r"data\.max_bad_fraction has no effect with data=loadouts"):
        build_workload(see.composed("workload=loadout", "data.builds=60", "data.max_bad_fraction=0.1"))


def test_negative_control_the_observers_are_deterministic(tmp_path):
    config = see.composed("workload=loadout", f"run.root={tmp_path}", *SMALL)
    for observe in (data, model, see.batches, see.plan_text):
        assert observe(config) == observe(config)
