"""`plugins: [mylab]`: a part that cannot be used is an error of one line. `tests/test_extending.py` trains with a package."""

from pathlib import Path

import pytest

from linnaeus.config import compose
from linnaeus.config.registry import register, registered_parts
from linnaeus.errors import ConfigError


def test_an_unknown_name_lists_what_there_is_and_how_to_add_one():
    with pytest.raises(ConfigError, match=r"optimizer.name is 'lamb'; it must be one of adamw, .*plugins, docs/extending.md"):
        compose(["optimizer.name=lamb"])


def test_an_option_of_another_workload_names_the_workload():
    with pytest.raises(ConfigError, match=r"data.name is 'text'; it must be one of .*, manifest, .*; add workload=language for text$"):
        compose(["data=text"])
    with pytest.raises(ConfigError, match=r"model.name is 'gpt'; .*; add workload=language for gpt$"):
        compose(["model=gpt"])


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
