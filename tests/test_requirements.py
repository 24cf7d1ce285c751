"""Test the one line about a system or an environment without which the program cannot run, and the import of torch without garbage
collection: the collector is on after it, and leaves out the objects of the modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

from linnaeus.requirements import obstacle, without_collection

CHILD = """
import gc, sys
from linnaeus.requirements import without_collection
collections = []
gc.callbacks.append(lambda phase, facts: collections.append(phase))
try:
    with without_collection():
        during = gc.isenabled()
        {body}
except ImportError:
    pass
print(during, len(collections), gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [pytest.param("import torch", "False 0 True True", marks=pytest.mark.slow), ("import torch; import not_there", "False 0 True True")],
    ids=["torch", "failure"],
)
def test_the_collector_rests_during_the_import_and_is_on_after_it(body: str, says: str):
    done = subprocess.run([sys.executable, "-c", CHILD.format(body=body)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == says


def test_a_second_run_of_a_process_freezes_nothing():
    import gc

    import torch  # noqa: F401  the condition of this test

    frozen = gc.get_freeze_count()
    with without_collection():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_the_import_of_another_module_freezes_nothing():
    import gc

    frozen = gc.get_freeze_count()
    with without_collection("not_imported_yet"):
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == frozen
    gc.disable()
    try:
        with without_collection("not_imported_yet"):
            assert not gc.isenabled()
        assert not gc.isenabled(), "it was off before"
    finally:
        gc.enable()


def test_nothing_hinders_the_program_here():
    assert obstacle() is None


def test_windows_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    assert "Windows" in obstacle() and "WSL" in obstacle() and "\n" not in obstacle()


def test_missing_packages_are_named_as_pip_names_them(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("PIL", "hydra") else object())
    assert "does not have hydra-core, pillow; " in obstacle()
