"""The installed program: `linnaeus KEY=VALUE...` trains, `linnaeus NAME ...` runs a command."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from linnaeus.__main__ import main, usage
from linnaeus.commands import COMMANDS
from linnaeus.config.run_command import CONTINUES
from linnaeus.streams import print_page
from tests import fork_server, runs

ROOT = Path(__file__).parents[2]


def test_help_fits_a_screen_and_lists_every_command(capsys: pytest.CaptureFixture):
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert len(page.splitlines()) <= 24 and max(map(len, page.splitlines())) <= 100
    assert all(f"linnaeus {name}" in page and meaning in page for name, meaning in COMMANDS.items()) and usage() in page
    assert max(map(len, usage().splitlines())) < 80


def test_every_command_has_a_main_and_a_help_page(capsys: pytest.CaptureFixture):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(f"linnaeus.commands.{name}").main(["--help"])
        page = capsys.readouterr().out
        assert ended.value.code == 0 and "usage" in page and "(None)" not in page


def test_a_module_with_a_main_runs_with_m_too():
    silent = []
    for path in (ROOT / "linnaeus").rglob("*.py"):
        body = ast.parse(path.read_text()).body
        names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        names |= {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
        if "main" in names and not any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in body):
            silent.append(str(path))
    assert silent == []
    done = subprocess.run([sys.executable, "-m", "linnaeus.commands.report"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (2, "error: the following arguments are required: RUN\n")


def test_a_command_is_imported_only_when_it_is_called():
    loaded = "[n for n in sys.modules if n in ('torch', 'hydra') or 'commands.' in n]"
    script = f"import sys, linnaeus.__main__ as m; m.main(['--help']); print({loaded})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_word_that_is_neither_a_command_nor_a_setting_is_one_line(capsys: pytest.CaptureFixture):
    assert main(["trian"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "'trian' is not a command and not a setting" in line and "report" in line


def test_a_mistyped_command_option_or_choice_names_the_nearest_one(capsys: pytest.CaptureFixture):
    assert main(["docter", "manifest"]) == 2
    assert "; did you mean doctor? Commands: generate, " in capsys.readouterr().err
    for words, hint in (
        ("generate r --promt a", "unrecognized arguments: --promt a; did you mean --prompt?"),
        ("doctor manfest", "; did you mean manifest?"),
        ("evaluate r --split validaton", "; did you mean validation?"),
        ("generate r --zzz", "unrecognized arguments: --zzz"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words.split())
        line = capsys.readouterr().err
        assert ended.value.code == 2 and line.endswith(f"{hint}\n") and line.count("\n") == 1


@pytest.mark.parametrize(
    "words, line",
    [
        ("evaluate r --split test --split validation", "--split is given twice; give it once"),
        ("evaluate r --manifest f --compare a --compare b", "--compare is given twice; give it once, before all its values"),
        ("report r --output a --output b", "--output is given twice; give it once"),
    ],
)
def test_an_option_with_a_value_is_given_once(words: str, line: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert (ended.value.code, capsys.readouterr().err) == (2, f"error: {line}\n")


STARTED = functools.partial(subprocess.run, capture_output=True, text=True)


@pytest.mark.parametrize("run", [fork_server.run, pytest.param(STARTED, marks=pytest.mark.slow)], ids=["forked", "started"])
def test_settings_train_as_main_py_does(tmp_path: Path, run: Callable[..., subprocess.CompletedProcess]):
    command = [sys.executable, "-m", "linnaeus"]
    done = run([*command, *runs.overrides("biota", tmp_path, "plan=true")], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "biota" / "run" / "schedule.txt").is_file()
    assert fork_server.run([*command, "seed=x"], cwd=ROOT).returncode == 2


def test_an_installed_package_has_every_file_of_conf_but_the_settings_of_this_machine():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns, left_out = setuptools["package-data"]["linnaeus"], setuptools["exclude-package-data"]["linnaeus"]
    packed = {path for pattern in patterns for path in (ROOT / "linnaeus").glob(pattern)}
    packed -= {path for pattern in left_out for path in (ROOT / "linnaeus").glob(pattern)}
    conf = ROOT / "linnaeus" / "conf"
    report = ROOT / "linnaeus" / "reporting" / "report"
    taxonomy = ROOT / "linnaeus" / "workloads" / "taxonomy"
    others = {taxonomy / "serving" / "page.html", taxonomy / "doctor" / "capitals.csv", report / "report.js", report / "report.css"}
    assert packed - others == {path for path in conf.glob("**/*.yaml") if path.parent != conf / "local"} and len(packed) > 50
    assert others <= packed
    assert (ROOT / "linnaeus" / "main.py").read_text() == (ROOT / "main.py").read_text()


def test_a_run_of_an_installed_package_finds_the_user_s_modules(tmp_path: Path):
    """Runs of its sweeps do not have the package directory on sys.path, which contains `config` and `data` too."""
    shutil.copytree(ROOT / "linnaeus", tmp_path / "site" / "linnaeus")  # links become files, as in a wheel
    for name in ("config", "data"):
        (tmp_path / f"{name}.py").write_text(f"import sys\nprint('{name}.py of the user', file=sys.stderr)\n")
    start = "subprocess.run([sys.executable, *Job(['--cfg', 'job', 'plugins=[config,data]'], Path(), None, None).arguments()], check=True)"
    code = f"import subprocess, sys; from pathlib import Path; from linnaeus.launch import Job; {start}"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "config.py of the user\ndata.py of the user\n")


def test_report_of_an_interrupted_run(tmp_path: Path, capsys: pytest.CaptureFixture):
    from linnaeus import train

    config = runs.configuration("vectors", tmp_path)
    with runs.killed(train, "finish", 1):
        runs.start(config)
    page = runs.run_path(config) / "report.html"
    assert not page.exists()
    assert main(["report", str(runs.run_path(config))]) == 0
    assert str(page) in capsys.readouterr().out and "data-series" in page.read_text()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    for folder in (".", str(tmp_path)):
        with pytest.raises(SystemExit):
            main(["report", str(runs.run_path(config)), "--output", folder])
        assert capsys.readouterr().err == f"error: {folder} cannot be written (Is a directory); choose another file with --output\n"


def test_a_page_is_broken_between_words_on_a_terminal_only(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    page = "  trainer.length = 4epochs\n      str: length of the run, a number with a unit"
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda shown=terminal: shown)
        print_page(page)
    broken = "  trainer.length = 4epochs\n      str: length of the run, a number\n      with a unit"
    assert capsys.readouterr().out == f"{broken}\n{page}\n"


@pytest.mark.parametrize(
    ("room", "run", "words", "line"),
    [
        ("linnaeus.workloads.taxonomy.trained.predict.predict_cli", "predict", ["a", "x.jpg"], "interrupted"),
        ("linnaeus.workloads.taxonomy.trained.predict.predict_cli", "predict", ["a", "x.jpg", "--out", "x.csv"], CONTINUES),
        ("linnaeus.workloads.taxonomy.trained.embed.embed_cli", "embed", ["a", "x.jpg", "--out", "x.npy"], CONTINUES),
        ("linnaeus.workloads.taxonomy.trained.embed.nearest_cli", "search", ["x.npy", "--odd"], "interrupted"),
        ("linnaeus.workloads.taxonomy.trained.calibrate.calibrate_cli", "calibrate", ["a"], "interrupted"),
        ("linnaeus.workloads.export_cli", "_export", ["a", "b"], "interrupted"),
        ("linnaeus.commands.evaluate", "_of_run", ["a"], "interrupted"),
    ],
)
def test_ctrl_c_is_one_line(monkeypatch, capsys, room, run, words, line):
    module = importlib.import_module(room)

    def stopped(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, run, stopped)
    assert module.main(words) == 130
    assert capsys.readouterr() == (f"{line}\n", "")
