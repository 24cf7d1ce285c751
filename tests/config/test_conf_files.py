"""Every file under conf/ composes and validates, and the defaults list has its order."""

import dataclasses
import re

import pytest
import yaml

from linnaeus.config import CONF, Config, compose, typed_config
from linnaeus.config.help import describe
from linnaeus.config.schema import DebugConfig
from linnaeus.rundir import dump_yaml
from linnaeus.workloads.dictionary.config import SCHEMAS as DICTIONARY
from linnaeus.workloads.language.config import SCHEMAS as LANGUAGE
from linnaeus.workloads.loadout.config import SCHEMAS as LOADOUT
from tests.config.yaml_comments import commented, files

GROUPS = sorted(p.name for p in CONF.iterdir() if p.is_dir())
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
EXPERIMENTS = [path for path in sorted((CONF / "experiment").glob("*.yaml")) if path.stem != "none"]


def test_every_group_has_a_file_and_nothing_else_lies_there():
    assert all(any(group == g for g, _ in CHOICES) for group in GROUPS)
    assert [p.name for p in CONF.rglob("*") if p.is_file() and p.suffix != ".yaml"] == []


@pytest.mark.parametrize("group, name", CHOICES, ids=lambda x: x)
def test_a_file_composes_and_validates(group, name):
    config = compose([f"{group}={name}", *needed(group, name)])
    assert isinstance(config, Config)
    content = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    if group not in ("experiment", "sweep", "debug"):
        assert content.get("name", name) in (name, getattr(getattr(config, group), "name", name))


def needed(group: str, name: str) -> list[str]:
    """Return the settings that a file requires: a workload other than the default, a path, the run of a first stage."""
    stages = [CONF / group / f"{name.removesuffix('_rebalanced')}.yaml", CONF / group / f"{name}.yaml"]
    text = "".join(path.read_text() for path in stages if path.exists())
    path = "path: ???" in text or "override /data: manifest" in text
    others = {"language": LANGUAGE, "loadout": LOADOUT, "dictionary": DICTIONARY}
    workload = [f"workload={other}" for other, schemas in others.items() if name in schemas.get(group, {})]
    return workload + ["data.path=photos.csv"] * path + ["run.init_from=RUN"] * ("init_skip" in text)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_the_header_of_an_experiment_has_its_command_hardware_time_and_result(path):
    lines = path.read_text().splitlines()
    assert lines[0] == "# @package _global_"
    comment = [line for line in lines[1:5] if line.startswith("#")]
    assert f"experiment={path.stem}" in comment[0], "the command"
    rest = " ".join(comment[1:])
    assert re.search(r"CPU|GPU", rest), "the hardware"
    assert re.search(r"\b(second|minute|hour|day)s?\b|\d+ (s|min|h)\b", rest), "the time"
    assert len(rest.split()) > 12, "the result to expect"
    assert yaml.safe_load(path.read_text())["run"]["experiment"] == path.stem


def test_the_program_comes_first_and_the_experiment_last():
    defaults = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    assert defaults[0] == "_self_"
    assert defaults[-2:] == [{"experiment": "none"}, {"optional local": "default"}]
    assert {next(iter(d)) for d in defaults[1:-1]} == set(GROUPS)


@pytest.mark.parametrize(
    "overrides",
    [[], ["data=manifest", "data.path=x.csv", "model=timm"], ["weighting=gradnorm", "lr_scheduler=plateau", "optimizer=muon"]],
    ids=str,
)
def test_the_saved_configuration_is_the_same_one_again(overrides):
    config = compose([*overrides, "optimizer.param_groups=[{filter:{name:'re:.*bias'},lr_scale:1e-3}]", "weighting.weights={species:2}"])
    again = typed_config(yaml.safe_load(dump_yaml(dataclasses.asdict(config))))
    assert again == config
    assert list(describe(again)) == list(describe(config)), "types too: 1.0 is not 1"


def test_the_comment_of_every_key_is_its_meaning_in_the_schema():
    """`python -m tests.config.yaml_comments` rewrites them."""
    texts = {path: (path.read_text(), schema) for path, schema in files()}
    assert len(texts) > 40 and [path for path, (text, schema) in texts.items() if commented(text, schema) != text] == []


def test_a_comment_follows_the_schema_and_keeps_the_value():
    text = commented("# by hand\n\ndump_metrics: true # wrong\n# wrong too\nbatch_hashes: false\n", DebugConfig)
    assert text.startswith("# by hand\n\ndump_metrics: true # write") and "wrong" not in text
    assert commented(text, DebugConfig) == text
