"""`augment.place=auto`, the default: chosen by the device at the first start of a run, saved, and kept on any other device."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import yaml

from linnaeus.config import compose
from linnaeus.config.load import compose_tree
from linnaeus.errors import ConfigError
from linnaeus.rundir.identity import update_hash
from linnaeus.rundir.saved_config import fill_defaults
from linnaeus.workloads.taxonomy import augment_config, automatic
from linnaeus.workloads.taxonomy.augment_config import choose_place
from tests import runs

SHORT = ["trainer.length=4steps", "schedule.checkpoint=[1steps]", "schedule.validate=[]", "schedule.validate_at_end=false"]


def saved(run: Path) -> dict:
    return yaml.safe_load((run / "config.yaml").read_text())


def on_gpu():
    """A start on a GPU, as far as the choice is concerned: the images are augmented in the same way on the CPU."""
    return mock.patch.object(automatic, "choose_place", lambda config, device: choose_place(config, "cuda"))


def test_on_the_cpu_the_default_is_the_run_with_host(tmp_path):
    found = runs.run("biota", tmp_path / "auto", *SHORT)
    assert runs.differences(found, runs.run("biota", tmp_path / "host", *SHORT, "augment.place=host")) == []
    assert saved(found) | {"run": None} == saved(tmp_path / "host/biota/run") | {"run": None} and saved(found)["augment"]["place"] == "host"
    assert "augment.place=host (auto): the run trains on the CPU" in (found / "train.log").read_text()


@pytest.mark.parametrize("place", ["device", "host"])
def test_a_run_that_is_continued_on_another_device_keeps_its_value(tmp_path, place):
    config = runs.configuration("biota", tmp_path, *SHORT)
    first, second = (on_gpu(), mock.MagicMock()) if place == "device" else (mock.MagicMock(), on_gpu())
    with first, runs.killed(runs.train.loop, "train_one_step", 3):
        runs.start(config)
    with second:
        run = runs.resumed(config)
    assert saved(run)["augment"]["place"] == place
    assert f"augment.place={place} (auto): from the saved configuration of this run" in (run / "train.log").read_text()
    assert runs.differences(run, runs.run("biota", tmp_path / "given", *SHORT, f"augment.place={place}")) == []
    other = {"device": "host", "host": "device"}[place]
    with pytest.raises(ConfigError, match=f'augment.place: "{place}" -> "{other}"'):
        runs.start(runs.configuration("biota", tmp_path, *SHORT, f"augment.place={other}"))


def test_the_rule(monkeypatch):
    standard = compose([]).augment
    policy = dataclasses.replace(standard, policy="randaugment")
    assert choose_place(standard, "cpu") == ("host", "the run trains on the CPU")
    assert choose_place(standard, "cuda") == ("device", "the run trains on a GPU")
    assert choose_place(policy, "cuda") == ("host", "augment.policy=randaugment runs on the host only")
    monkeypatch.setattr(augment_config, "registered", lambda group, name: SimpleNamespace())
    assert choose_place(standard, "cuda") == ("host", "augment=standard is of a plugin, which runs on the host")


def test_the_name_of_the_directory_is_the_one_of_earlier_versions():
    """Their default was host. The name does not depend on the device of the first start."""
    assert update_hash(compose_tree([])) == update_hash(compose_tree(["augment.place=host"]))
    assert update_hash(compose_tree([])) != update_hash(compose_tree(["augment.place=device"]))


def test_a_run_that_was_saved_without_the_key_has_augmented_on_the_host():
    tree = compose_tree([])
    del tree["augment"]["place"]
    found, names = fill_defaults(tree)
    assert names == ["augment.place"] and found["augment"]["place"] == "host"
