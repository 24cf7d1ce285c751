"""The commands that README and the guide show are commands that work, and the names they map are there."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from linnaeus.config import compose

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "conf" / "experiment").glob("*.yaml"))]
COMMAND = re.compile(r"^(?:# )?(?:python|torchrun --nproc-per-node=\d+) main\.py(.*)$", re.M)


def commands():
    for page in PAGES:
        for found in COMMAND.finditer(page.read_text()):
            line = found[1].split("#")[0].strip()
            if "--help" not in line and "-m " not in line and "--config-dir" not in line:  # those are run by tests/test_extending.py
                yield page.name, line


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_a_command_composes(page, line):
    compose(shlex.split(line))


def test_the_pages_show_commands():
    assert {page for page, _ in commands()} >= {"README.md", "plants480.yaml", "plantnet20.yaml"}


def test_both_make_targets_are_named_first():
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < 1000
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo:" in makefile and "\ntest:" in makefile


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(linnaeus(?:\.\w+)+)`", (ROOT / "docs" / "names.md").read_text()))))
def test_a_name_of_ours_in_the_table_is_there(name):
    if name in (
        "linnaeus.utils.distributed",
        "linnaeus.utils.training_progress",
        "linnaeus.ops_schedule.training_progress",
        "linnaeus.ops_schedule",
    ):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
        return
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize(
    "key", sorted(set(re.findall(r"`((?:trainer|schedule|augment|run|debug|head)\.[a-z_.0-9]+)", (ROOT / "docs" / "names.md").read_text())))
)
def test_a_key_in_the_table_is_there(key):
    value = compose()
    for part in key.split("."):
        value = getattr(value, part)
