"""Test the progress of the preparation of data: a bar on a terminal, lines elsewhere; of manifests, photographs and texts."""

from __future__ import annotations

import gzip
import logging
import re
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from linnaeus.reporting.terminal import preparation_progress
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.language import corpus
from linnaeus.workloads.taxonomy.images import contents, image_files
from linnaeus.workloads.taxonomy.manifest.tables import table
from tests import runs
from tests.reporting.terminal import on_terminal

LONG = "a_folder/" * 12 + "photograph.png"
BAR = f"""
import sys
from linnaeus.reporting.terminal import preparation_progress
from linnaeus.reporting import setup_logging
preparation_progress.REDRAW = 0
log = setup_logging(style=sys.argv[1])
with preparation_progress.PreparationProgress("comparing photographs", 4, "4") as progress:
    for number in progress.each(range(4)):
        log.warning("%d {LONG}", number)
log.info("done")
"""
COMMAND = """
from linnaeus.reporting.terminal import preparation_progress
preparation_progress.REDRAW = preparation_progress.FIRST_LINE = 0
with preparation_progress.PreparationProgress("comparing photographs", 4, "4") as progress:
    for number in progress.each(range(4)):
        pass
print("done")
"""


def test_a_terminal_gets_a_bar_with_unbroken_lines_above_it() -> None:
    shown, _ = on_terminal([sys.executable, "-c", BAR, "auto"], columns=80)
    assert "preparing" in shown and "comparing photographs, 0s left" in shown and " 50 %" in shown
    assert [line for line in shown.split("\r\n") if line.strip().endswith(LONG)], "rich would break the path"
    assert "preparing" not in shown.rpartition("\x1b[2K")[2] and shown.rstrip().endswith("done"), "the bar is gone at the end"
    assert "?25l" not in shown.rpartition("?25h")[2], "the cursor stays visible"
    shown, _ = on_terminal([sys.executable, "-c", BAR, "plain"], columns=80)
    assert "preparing" not in shown and "\x1b[" not in shown


def test_a_command_shows_the_progress_without_a_log() -> None:
    """The commands, such as `linnaeus prepare`, do not set up the logger."""
    shown, errors = on_terminal([sys.executable, "-c", COMMAND], columns=80)
    assert re.search(r"comparing photographs, \d+s left", shown) and shown.rstrip().endswith("done") and not errors
    elsewhere = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True)
    assert elsewhere.stdout == "done\n" and re.fullmatch(r"comparing photographs: 25 % of 4, about \d+s left\n", elsewhere.stderr)


def test_elsewhere_a_line_after_some_seconds_and_one_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 6.0, 60.0, 67.0, 80.0])
    monkeypatch.setattr(preparation_progress.time, "monotonic", lambda: next(clock))
    with caplog.at_level("INFO", "linnaeus"), PreparationProgress("tokenizing", 50, "50 MB") as progress:
        for _ in range(5):
            progress.add(10)
    assert [record.getMessage() for record in caplog.records] == [
        "tokenizing: 40 % of 50 MB, about 9s left",
        "tokenizing: 80 % of 50 MB, about 17s left",
    ]


def test_work_of_an_earlier_start_counts_for_the_share_and_not_for_the_speed(caplog, monkeypatch) -> None:
    clock = iter([0.0, 6.0])
    monkeypatch.setattr(preparation_progress.time, "monotonic", lambda: next(clock))
    with caplog.at_level("INFO", "linnaeus"), PreparationProgress("predicting", 100, "100 photographs", 70) as progress:
        progress.add(10)
    assert caplog.messages == ["predicting: 80 % of 100 photographs, about 12s left"]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Return the activities of the lines so far; each step of each preparation takes an hour."""
    clock = count(0, 3600)
    monkeypatch.setattr(preparation_progress.time, "monotonic", lambda: next(clock))
    caplog.set_level(logging.INFO, "linnaeus")
    return lambda: {record.getMessage().partition(":")[0] for record in caplog.records}


@pytest.mark.parametrize("name", ["photos.csv", "photos.csv.gz"])
def test_reading_a_manifest(name: str, tmp_path: Path, lines) -> None:
    rng = np.random.default_rng(0)
    text = "path,species\n" + "".join(f"{rng.integers(2**62)}.png,{rng.integers(2**62)}\n" for _ in range(20 * table.CHUNK))
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert len(table.read_table(tmp_path / name, lambda header: header)) == 20 * table.CHUNK
    assert lines() == {f"reading {name}"}


def test_looking_for_photographs_and_comparing_them(tmp_path: Path, lines, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{i}.png" for i in range(5)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    monkeypatch.setattr(contents, "BLOCK", 2)
    monkeypatch.setattr(image_files, "BLOCK", 2)
    files = image_files.FolderFiles(tmp_path, names)
    sizes = files.sizes()
    assert sizes.tolist() == [5] * 5 and lines() == {"looking for photographs"}
    hashes = contents.content_hashes(files, sizes)
    assert len(set(hashes.tolist())) == 5 and lines() == {"looking for photographs", "comparing photographs"}


def test_reading_a_text(tmp_path: Path, lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linnaeus.workloads.language.text_pieces.CHUNK", 64)
    found = corpus.scan_texts(runs.configuration("language", tmp_path).data)
    assert lines() == {"reading the text"}
    for _, pieces in found.documents("tokenizing"):
        list(pieces)
    assert lines() == {"reading the text", "tokenizing"}
