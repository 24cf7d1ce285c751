"""Log lines on stdout and in train.log, the live panel, which is on a terminal only, and summary.json."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from linnaeus.reporting import attach_log_file, setup_logging
from linnaeus.reporting.results import write_summary
from linnaeus.reporting.terminal.console import LOGGER, RESULT
from linnaeus.train.building.build import log_notes
from tests.reporting.terminal import on_terminal

ROOT = Path(__file__).resolve().parents[2]

RUN = """
import sys
from linnaeus.reporting import ProgressDisplay, setup_logging
from linnaeus.reporting.terminal.console import RESULT
log = setup_logging(True, sys.argv[1])
with ProgressDisplay(100, sys.argv[1]) as display:
    for step in range(1, 101):
        if display.due():
            display.update(step, None, True)
        if step == 50:
            log.info("half way")
    log.debug("in full")
    log.warning("careful")
log.log(RESULT, "the result")
print("rich" in sys.modules, file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()
    LOGGER.propagate = True


def test_lines_before_the_file_exists_are_its_first_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = setup_logging()
    log.info("first")
    assert not list(tmp_path.iterdir())
    attach_log_file(tmp_path / "train.log")
    log.warning("second")
    out = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d first", out[0]) and re.fullmatch(r"\d\d:\d\d:\d\d WARNING second", out[1])
    for _ in range(2):  # a second setup does not duplicate lines
        setup_logging()
    attach_log_file(tmp_path / "train.log")
    logging.getLogger("linnaeus.child").info("of the next start")
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["first", "WARNING second", "of the next start"]
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_control_characters_of_names_are_escaped_on_the_terminal_and_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = setup_logging()
    attach_log_file(tmp_path / "train.log")
    log.info("two lines:\nQuercus \x1b[2J\x9b1m\r\u202e \u00e9 \u6a39")
    log.log(RESULT, "result \x07")
    for text in (capsys.readouterr().out, (tmp_path / "train.log").read_text()):
        assert "two lines:\nQuercus \\x1b[2J\\x9b1m\\r\\u202e \u00e9 \u6a39\n" in text
        assert "result \\x07\n" in text


def test_a_note_with_a_line_break_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="linnaeus"):
        log_notes(SimpleNamespace(text=""), logging.INFO, ["the taxon Quercus\n12:00:00 step 9 is saved"])
    assert caplog.messages == ["the taxon Quercus\\n12:00:00 step 9 is saved"]


def test_a_long_line_is_broken_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    words = "columns used: path as image, family, genus, species, latitude, longitude"
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda shown=terminal: shown)
        log = setup_logging()
        log.info("%s\n%s", words, "a row of a table  " * 5)
        log.log(RESULT, "next %s", "word " * 20)
        lines = capsys.readouterr().out.splitlines()
        assert lines[-2:] == ["a row of a table  " * 5, "next " + "word " * 20]
        assert [line[9:] for line in lines[:-2]] == (
            ["columns used: path as image, family, genus,", "species, latitude, longitude"] if terminal else [words]
        )


def test_another_rank_has_a_file_of_its_warnings_if_there_are_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for warnings, name in ((["first", "second"], "train-rank1.log"), ([], "train-rank2.log")):
        log = setup_logging(is_master=False)
        log.warning("about the settings, which rank 0 logs")
        attach_log_file(tmp_path / name)
        log.info("rank 0 has this line")
        for text in warnings:
            log.warning(text)
    assert [path.name for path in tmp_path.iterdir()] == ["train-rank1.log"]
    lines = (tmp_path / "train-rank1.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["WARNING first", "WARNING second"]
    assert capsys.readouterr() == ("", "")


def test_quiet_and_ranks_other_than_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = setup_logging(style="quiet")
    attach_log_file(tmp_path / "train.log")
    log.info("to the file")
    log.warning("to both")
    assert "to the file" in (tmp_path / "train.log").read_text()
    assert [line[9:] for line in capsys.readouterr().out.splitlines()] == ["WARNING to both"]
    other = setup_logging(is_master=False)
    other.warning("not printed")
    other.error("printed")
    captured = capsys.readouterr()
    assert captured.out == "" and "printed" in captured.err and "not printed" not in captured.err


def run_display(style: str, terminal: bool) -> tuple[str, str]:
    command = [sys.executable, "-c", RUN, style]
    if not terminal:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
        return done.stdout, done.stderr
    return on_terminal(command, columns=100)


@pytest.mark.parametrize(
    "style, lines",
    [
        ("auto", ["half way", "WARNING careful", "the result"]),
        ("live", ["WARNING logger.console=live", "half way", "WARNING careful", "the result"]),
        ("quiet", ["WARNING careful", "the result"]),
        ("full", ["half way", "in full", "WARNING careful", "the result"]),
    ],
)
def test_a_pipe_gets_plain_lines_in_every_style(style: str, lines: list[str]) -> None:
    out, errors = run_display(style, terminal=False)
    found = [re.sub(r"^\d\d:\d\d:\d\d |:.*", "", line) for line in out.splitlines()]
    assert found == lines and "\x1b" not in out
    assert errors.strip() == "False", "rich was imported without need"


def test_a_terminal_gets_a_panel_with_the_lines_above_except_with_plain() -> None:
    out, errors = run_display("auto", terminal=True)
    assert "\x1b[" in out and "of 100" in out and "validation" in out and "in full" not in out
    assert re.search(r"\d\d:\d\d:\d\d half way", out) and errors.strip() == "True"
    assert "?25l" not in out.rpartition("?25h")[2], "the cursor stays visible"
    assert out.rstrip().endswith("the result")
    out, _ = run_display("plain", terminal=True)
    assert "\x1b[" not in out and "half way" in out


def test_summary_is_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    best = {"val/loss": {"value": float("inf"), "global_step": 5}}
    write_summary(path, "running", 7, best=best, final={"val/x": float("nan"), "val/y": 0.5}, samples_per_second=3.0, extra=(1, 2))
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content == {
        "status": "running",
        "global_step": 7,
        "best": {"val/loss": {"value": None, "global_step": 5}},
        "final": {"val/x": None, "val/y": 0.5},
        "samples_per_second": 3.0,
        "wall_seconds": None,
        "extra": [1, 2],
    }
    with pytest.raises(AssertionError):
        write_summary(path, "done", 7)


def test_a_full_disk_behind_stdout_does_not_stop_a_run(tmp_path: Path) -> None:
    lines = f"log = setup_logging(); attach_log_file({str(tmp_path / 'log')!r}); [log.info('line %d', i) for i in range(9)]"
    script = f"from linnaeus.reporting import attach_log_file, setup_logging; {lines}"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 0 and done.stderr == b""
    assert len((tmp_path / "log").read_text().splitlines()) == 9
