"""`plugins: [mylab]`: parts of a package outside the program are found by name; a part that cannot be used is an error of one line."""

import sys
from pathlib import Path

import pytest

from linnaeus.config import compose
from linnaeus.config.monitors import directions
from linnaeus.config.registry import _parts, register, registered, registered_parts
from linnaeus.errors import ConfigError

PACKAGE = """
from dataclasses import dataclass
from linnaeus.config.registry import register
from linnaeus.config.schema_optimization import OptimizerConfig
from linnaeus.config.setting import setting

@dataclass(frozen=True)
class LionConfig(OptimizerConfig):
    beta: float = setting("decay of the first moment", low=0, below=1)

@register("optimizer", "lion", LionConfig)
def build(config, param_groups):
    raise NotImplementedError

@register("metric", "rmse", direction="min")
def rmse(tree, device):
    raise NotImplementedError
"""
LION = "name: lion\nlr: 0.001\nlr_scaling: none\nlr_reference_batch: 256\nweight_decay: 0.1\nfused: false\nparam_groups: []\nbeta: 0.9\n"


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers: other tests of this process must not see its metrics."""
    monkeypatch.setattr("linnaeus.config.registry._parts", {group: dict(parts) for group, parts in _parts.items()})
    monkeypatch.delitem(sys.modules, "mylab", raising=False)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the package `mylab` and the config folder `conf`; the working directory."""
    (tmp_path / "conf" / "optimizer").mkdir(parents=True)
    (tmp_path / "conf" / "optimizer" / "lion.yaml").write_text(LION)
    (tmp_path / "mylab.py").write_text(PACKAGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_registered_part_is_composed_checked_and_known(lab: Path):
    config = compose(["plugins=[mylab]", "optimizer=lion", "optimizer.beta=0.8"], lab / "conf")
    assert type(config.optimizer).__name__ == "LionConfig" and config.optimizer.beta == 0.8
    assert registered("optimizer", "lion") is not None and registered("optimizer", "tiger") is None
    with pytest.raises(ConfigError, match=r"optimizer.beta is 2.0; it must be less than 1"):
        compose(["plugins=[mylab]", "optimizer=lion", "optimizer.beta=2"], lab / "conf")
    assert directions("taxonomy")["rmse"] == "min"


def test_an_unknown_name_lists_what_there_is_and_how_to_add_one():
    with pytest.raises(ConfigError, match=r"optimizer.name is 'lamb'; it must be one of adamw, .*plugins, docs/extending.md"):
        compose(["optimizer.name=lamb"])


@pytest.mark.parametrize("name", ["nolab", "os.nothing"])
def test_a_package_that_is_not_there_is_one_line(name: str):
    with pytest.raises(ConfigError, match=f"plugins: {name} cannot be imported") as caught:
        compose([f"plugins=[{name}]"])
    assert "\n" not in str(caught.value)


def test_what_cannot_be_registered_is_refused():
    with pytest.raises(ConfigError, match="'trainer' is not a group that can be extended"):
        register("trainer", "mine", dict)
    with pytest.raises(ConfigError, match="the metric wer must state direction"):
        register("metric", "wer")
    with pytest.raises(ConfigError, match="head=mine must name the class of its configuration"):
        register("head", "mine")
    assert "wer" not in registered_parts("metric")


def test_settings_of_this_machine_come_last(tmp_path: Path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "default.yaml").write_text("# @package _global_\ntrainer:\n  threads: 3\n")
    assert compose([], tmp_path).trainer.threads == 3 and compose(["trainer.threads=2"], tmp_path).trainer.threads == 2
    assert compose().trainer.threads is None
