"""A dictionary is used with the weights whose activations it was trained on, also if the run that was read has others since."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import linnaeus
from linnaeus.errors import ConfigError
from linnaeus.train.evaluation import evaluate
from linnaeus.workloads.dictionary import edit_cli
from linnaeus.workloads.language import trained as language
from tests import runs
from tests.workloads.dictionary.trained.conftest import train_dictionary


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the run of a dictionary, and the run that it read when that had one checkpoint. It has a second one since."""
    root = tmp_path_factory.mktemp("continued")
    read = runs.run("language", root / "read", "trainer.length=2steps", "schedule.checkpoint=[1steps]", "schedule.keep_last=2")
    newest = read / "checkpoints" / "step-00000002"
    shutil.move(newest, root / newest.name)
    run = train_dictionary(root, read, "blocks.1", "trainer.length=2steps", "logger.report=false")
    shutil.move(root / newest.name, newest)
    return run, read


def test_an_edit_uses_the_weights_that_were_read(continued, monkeypatch, capsys):
    run, _ = continued
    assert linnaeus.load_model(run).place.checkpoint == "1"
    opened, questions = [], language.questions
    monkeypatch.setattr(language, "questions", lambda path, options: opened.append(options.checkpoint) or questions(path, options))
    assert edit_cli.main([str(run), "abc", "--tokens=1"]) == 0 and opened == ["1"]
    capsys.readouterr()


def test_other_weights_are_one_line(continued, tmp_path, capsys):
    run, read = continued
    with pytest.raises(ConfigError, match=r"trained on .*step-00000001.*, not on .*step-00000002.*dictionary\.checkpoint=STEP"):
        evaluate(run, "validation", "newest", [], tmp_path / "results")
    evaluate(run, "validation", "newest", ["dictionary.checkpoint='1'"], tmp_path / "results")
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "dataset.json").write_text(json.dumps({"weights_digest": json.loads((run / "dataset.json").read_text())["weights_digest"]}))
    with pytest.raises(ConfigError, match=r"trained on other weights, not on .*step-00000002.*dictionary\.checkpoint=STEP"):
        evaluate(copy, "validation", "newest", [], tmp_path / "results")
    other = runs.run("language", tmp_path / "other", "trainer.length=1steps", "seed=5", f"data.path={runs.write_text(tmp_path)}")
    shutil.rmtree(read / "checkpoints")
    shutil.copytree(other / "checkpoints", read / "checkpoints")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        edit_cli.main([str(run), "abc"])
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1) and "was trained on other weights" in err


def test_a_run_that_is_not_there_and_a_damaged_record_are_one_line(continued, tmp_path, capsys):
    run, _ = continued
    record = json.loads((run / "dataset.json").read_text())
    for change, line in (
        ({"run": str(tmp_path / "none")}, "none, the run that the dictionary reads, does not exist"),
        *(({name: value}, "dataset.json is damaged") for name in ("run", "weights", "weights_digest") for value in (5, None)),
    ):
        copy = shutil.copytree(run, tmp_path / "copy", dirs_exist_ok=True)
        (copy / "dataset.json").write_text(json.dumps(record | change))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            edit_cli.main([str(copy), "abc"])
        err = capsys.readouterr().err
        assert (ended.value.code, err.count("\n")) == (2, 1) and line in err


def test_a_checkpoint_can_be_the_run_that_is_read(trained, tmp_path, capsys):
    checkpoint = next((trained["language"] / "checkpoints").glob("step-*"))
    run = train_dictionary(tmp_path, checkpoint, "blocks.1", "trainer.length=2steps", "logger.report=false")
    assert edit_cli.main([str(run), "abc", "--tokens=1"]) == 0
    capsys.readouterr()
