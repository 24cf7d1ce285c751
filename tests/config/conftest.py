"""Run `python main.py ...` in this process, which saves the three seconds of a start."""

import sys

import pytest

import main


@pytest.fixture
def start(monkeypatch, capsys, tmp_path):
    """Return a function that runs main with arguments, with runs below `tmp_path`. It returns (exit status, stdout, stderr)."""

    def run(*arguments: str, root: bool = True):
        where = [f"run.root={tmp_path}/runs"] if root and not any(a.startswith(("run.root", "--help")) for a in arguments) else []
        monkeypatch.setattr(sys, "argv", ["main.py", *arguments, *where])
        try:
            status = main.main()
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return run
