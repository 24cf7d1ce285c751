"""`linnaeus predict` and `linnaeus embed` after SIGKILL in the middle of a batch: only that batch is lost, and the bytes are the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linnaeus import load_model
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.trained.batches import journal, reading_ahead
from linnaeus.workloads.taxonomy.trained.embed import embed_cli
from linnaeus.workloads.taxonomy.trained.embed.embedding import Embedded, from_rows, to_rows
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import from_paths
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.probabilities.answers import Asked
from tests import fork_server

# Run a command, and end it with SIGKILL when a part of the third batch is in the journal.
KILLED = """
import importlib, os, signal, sys
from linnaeus.workloads.taxonomy.trained.batches.journal import Journal
append, made = Journal.append, []
def append_and_die(self, rows):
    made.append(rows)
    append(self, rows if len(made) < 3 else rows[:-1])
    if len(made) == 3:
        self.file.write(b'{"photograph": "a')
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
Journal.append = append_and_die
importlib.import_module(sys.argv[1]).main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    "command, name",
    [(predict_cli, "answers.csv"), (embed_cli, "features.npy"), (embed_cli, "features.parquet")],
    ids=lambda p: str(p)[-12:],
)
def test_a_command_killed_in_a_batch_goes_on_and_ends_with_the_same_bytes(finished, tmp_path, capsys, command, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    words = lambda out: [
        str(finished.bundle),
        "--manifest",
        str(finished.manifest),
        "--batch-size",
        "8",
        "--threads",
        "1",
        "--out",
        str(out),
    ]
    assert command.main(words(tmp_path / "whole" / name)) == 0
    call = [sys.executable, "-c", KILLED, command.__name__, *words(tmp_path / "killed" / name)]
    process = fork_server.Popen(call, cwd=fork_server.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert process.wait(100) == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "killed").iterdir()] == [f"{name}.journal"]
    capsys.readouterr()
    assert command.main(words(tmp_path / "killed" / name)) == 0
    assert "16 of them were done before" in capsys.readouterr().out
    contents = [{path.name: path.read_bytes() for path in sorted((tmp_path / folder).iterdir())} for folder in ("whole", "killed")]
    assert contents[0] == contents[1]


def test_rows_of_a_journal_have_the_features_to_the_bit(tmp_path):
    features = np.array([[1e-40, -0.0, 3.4e38], [np.nan] * 3, [0.1, 1 / 3, -1e-8]], np.float32)
    names = ["a", "b", "\udcff"]
    with journal.Journal(tmp_path / "x.npy", {}, 3) as written:
        written.append(to_rows(Embedded(names, features, [None, "no image", None])))
        (found,) = from_rows(written.rows(), 5, 3)
    assert found.features.tobytes() == features.tobytes() and list(found.errors) == [None, "no image", None] and list(found.names) == names


def test_a_journal_of_prediction_sets_is_continued(tmp_path):
    identity = {"asked": list(Asked(5, 0.95, 0.7, sets=(0.1, 0.2)))}
    with journal.Journal(tmp_path / "x.csv", identity, 1) as written:
        written.append([{"photograph": "a"}])
    with journal.Journal(tmp_path / "x.csv", identity, 1) as continued:
        assert continued.done == 1


def test_a_command_with_another_batch_size_is_told_the_first_one(tmp_path):
    with journal.Journal(tmp_path / "x.csv", {"model": "a"}, 8):
        pass
    with pytest.raises(ConfigError, match="was begun with --batch-size 8; give that number, or remove the file"):
        journal.Journal(tmp_path / "x.csv", {"model": "a"}, 4)
    with pytest.raises(ConfigError, match="is of another model or other photographs"):
        journal.Journal(tmp_path / "x.csv", {"model": "b"}, 8)


def test_the_ends_of_batches_of_sequences_are_found_without_a_search(finished, tmp_path, monkeypatch):
    """A list of the ends would be searched for each row: 34 s for 200,000 rows."""
    seen = []

    class Seen(journal.Journal):
        def __init__(self, out, identity, batch, ends=None):
            seen.append(ends)
            super().__init__(out, identity, batch, ends)

    monkeypatch.setattr(journal, "Journal", Seen)
    words = ["--manifest", str(finished.manifest), "--sequence", "species", "--batch-size", "8", "--threads", "1"]
    assert predict_cli.main([str(finished.bundle), *words, "--out", str(tmp_path / "x.csv")]) == 0
    assert isinstance(seen[0], frozenset) and len(seen[0]) > 1


def test_a_full_disk_is_one_line(tmp_path):
    """Rows of a small batch are still in the buffer when the journal is closed."""
    message = r"No space left on device\); then give the same command again"
    with pytest.raises(ConfigError, match=message), journal.Journal(tmp_path / "x.csv", {}, 3) as written:
        written.file.close()
        written.file = open("/dev/full", "r+b")  # noqa: SIM115 (closed by the journal)
        written.append([{"photograph": "a"}])


def test_names_that_match_nothing_of_an_earlier_command_are_deleted(finished, tmp_path):
    out, names = tmp_path / "out.csv", tmp_path / "names.txt"
    known = load_model(finished.bundle).tree.names[-1][0]
    for text, found in ((f"{known}\nNo such taxon\n", True), (f"{known}\n", False), (f"{known}\nNo such taxon\n", True), (None, False)):
        names.write_text(text or "")
        checklist = [] if text is None else ["--checklist", str(names)]
        assert predict_cli.main([str(finished.bundle), str(finished.photograph(0)), "--threads", "1", "--out", str(out), *checklist]) == 0
        assert Path(f"{out}.unmatched.txt").exists() == found


def test_the_progress_of_a_continued_command_ends_at_all_photographs(finished, monkeypatch):
    made = []

    class Recorded(reading_ahead.PreparationProgress):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append((self.done, self))

    monkeypatch.setattr(reading_ahead, "PreparationProgress", Recorded)
    inputs = from_paths([str(finished.photograph(i)) for i in range(7)], {})
    batches = [*reading_ahead.read_batches(load_model(finished.bundle), inputs, 2, 1, "predicting", 4)]
    assert [batch.first for batch in batches] == [4, 6] and [(before, bar.done) for before, bar in made] == [(4, 7)]
