"""Values of environment variables: read at each start, saved nowhere, not part of the identity of a run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from linnaeus import main
from linnaeus.config.environment import hidden_values, saved_tree
from linnaeus.config.load import compose
from linnaeus.config.typed_config import typed_config
from linnaeus.errors import ConfigError
from linnaeus.rundir import update_hash
from linnaeus.rundir.repeat import compose_repeat
from linnaeus.rundir.saved_config import fill_defaults
from linnaeus.train import loop
from tests import runs

MARK = "m4rk3r"
SETTINGS = ["data.path=${oc.env:LINNAEUS_TEXT}/text.txt", "seed='${oc.decode:${oc.env:LINNAEUS_SEED}}'", "trainer.length=1epochs"]
SETTINGS += ["logger.report=true", "logger.tensorboard=true", "logger.wandb=offline", "schedule.checkpoint=[1steps]"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs.write_text(tmp_path / MARK)
    monkeypatch.setenv("LINNAEUS_TEXT", str(tmp_path / MARK))
    monkeypatch.setenv("LINNAEUS_SEED", "3")
    return tmp_path


def files_with(root: Path, text: str) -> list[str]:
    return [path.name for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_no_file_of_a_run_contains_them_and_a_resume_reads_them_again(folder, monkeypatch):
    config = runs.configuration("language", folder / "runs", *SETTINGS)
    assert config.data.path.endswith(f"{MARK}/text.txt") and config.seed == 3
    with mock.patch("linnaeus.reporting.sinks.wandb_logger.WandbLogger") as wandb:
        with runs.killed(loop, "train_one_step", 3):
            runs.start(config)
        path = runs.run_path(config)
        assert files_with(folder / "runs", MARK) == []
        assert wandb.call_args.kwargs["config"]["data"]["path"] == "${oc.env:LINNAEUS_TEXT}/text.txt"
        assert "${oc.env:LINNAEUS_TEXT}/text.txt" in (path / "config.yaml").read_text()
        assert runs.newest(path).state["run"]["config"]["seed"] == "${oc.decode:${oc.env:LINNAEUS_SEED}}"
        shutil.move(folder / MARK, folder / "other")
        monkeypatch.setenv("LINNAEUS_TEXT", str(folder / "other"))
        (path / "config.yaml").unlink()  # the copy in the checkpoint has the texts too
        assert runs.start(runs.configuration("language", folder / "runs", *SETTINGS)) == 0
    assert files_with(folder / "runs", MARK) == files_with(folder / "runs", f"{folder.name}/other") == []


def test_an_error_in_summary_json_does_not_contain_them(folder):
    config = runs.configuration("language", folder / "runs", *SETTINGS, "logger.wandb=disabled")
    with mock.patch.object(loop, "train_one_step", side_effect=RuntimeError(f"{config.data.path} is gone")), pytest.raises(RuntimeError):
        runs.start(config)
    assert "${oc.env:LINNAEUS_TEXT}/text.txt is gone" in runs.summary(runs.run_path(config))["error"]
    assert files_with(folder / "runs", MARK) == []


def test_errors_and_tracebacks_do_not_contain_them(folder, monkeypatch, capsys):
    """A sweep and a SLURM job write them to files."""
    monkeypatch.setenv("LINNAEUS_TEXT", str(folder / MARK / "gone"))
    monkeypatch.setenv("LINNAEUS_WORD", "pa55word")
    texts = runs.overrides("language", folder / "runs", *SETTINGS, "logger.wandb_project='at:${oc.env:LINNAEUS_WORD}'")
    monkeypatch.setattr(sys, "argv", ["main.py", *texts])
    assert status_of(main.main) == 2
    error = capsys.readouterr().err
    assert MARK not in error and error.startswith("error: data.path: ${oc.env:LINNAEUS_TEXT}/text.txt does not exist")
    failure = RuntimeError(f"{folder / MARK} refuses pa55word")
    monkeypatch.setattr(main, "run_training", mock.Mock(side_effect=failure))
    assert status_of(main.main) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error and "RuntimeError: " in error and "refuses ${oc.env:LINNAEUS_WORD}" in error


def test_help_and_errors_of_the_configuration_do_not_contain_them(monkeypatch, capsys):
    monkeypatch.setenv("LINNAEUS_WORD", "pa55word")
    with pytest.raises(ConfigError, match=r"logger.wandb is '\$\{oc.env:LINNAEUS_WORD\}'; it must be one of"):
        compose(["logger.wandb=${oc.env:LINNAEUS_WORD}"])
    for words in (["--help"], ["--help", "notify"]):
        monkeypatch.setattr(sys, "argv", ["main.py", "logger.notify=['${oc.env:LINNAEUS_WORD}']", *words])
        assert main.main() == 0
        page = capsys.readouterr().out
        assert "logger.notify = ['${oc.env:LINNAEUS_WORD}']" in page and "pa55word" not in page


def test_the_record_of_initial_weights_does_not_contain_them(folder, monkeypatch):
    plain = [text for text in SETTINGS if not text.startswith("logger.")]
    monkeypatch.setenv("LINNAEUS_WEIGHTS", str(runs.run("language", folder / MARK, *plain)))
    path = runs.run("language", folder / "runs", *plain, "run.init_from=${oc.env:LINNAEUS_WEIGHTS}")
    assert "weights from ${oc.env:LINNAEUS_WEIGHTS}/checkpoints/" in (path / "launches/1/init_from.txt").read_text()
    assert files_with(folder / "runs", MARK) == []


def test_a_value_in_the_path_of_the_run_is_not_hidden(folder, monkeypatch):
    monkeypatch.setenv("LINNAEUS_PLACE", str(folder))
    texts = ["workload=language", "data.path=${oc.env:LINNAEUS_PLACE}/text.txt"]
    assert hidden_values(compose([*texts, f"run.root={folder}/runs"])) == {f"{folder}/text.txt": "${oc.env:LINNAEUS_PLACE}/text.txt"}
    assert str(folder) in hidden_values(compose([*texts, "run.root=elsewhere"]))


def status_of(program: Callable[[], int]) -> int:
    try:
        return program()
    except SystemExit as end:
        return end.code


def test_the_identity_of_a_run_does_not_depend_on_them(folder, monkeypatch):
    texts = [*SETTINGS, "workload=language", "optimizer.lr='${oc.decode:${oc.env:LINNAEUS_LR}}'", "run.name=null"]
    monkeypatch.setenv("LINNAEUS_LR", "0.5")
    one = compose(texts)
    monkeypatch.setenv("LINNAEUS_LR", "0.25")
    other = compose(texts)
    assert (one.optimizer.lr, other.optimizer.lr) == (0.5, 0.25)
    assert update_hash(saved_tree(one)) == update_hash(saved_tree(other))
    assert typed_config(saved_tree(one)) == other and fill_defaults(saved_tree(one))[0] == saved_tree(one)


def test_a_repeated_run_reads_them_again(folder, monkeypatch):
    with mock.patch("linnaeus.reporting.sinks.wandb_logger.WandbLogger"):
        path = runs.run("language", folder / "runs", *SETTINGS)
    tree = compose_repeat(str(path), ["run.name=again"])
    assert tree["seed"] == "${oc.decode:${oc.env:LINNAEUS_SEED}}" and typed_config(tree).seed == 3
    monkeypatch.delenv("LINNAEUS_SEED")
    with pytest.raises(ConfigError, match=r"seed is .*LINNAEUS_SEED.*set that variable"):
        typed_config(tree)
