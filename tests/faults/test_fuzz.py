"""A few cases of `make fuzz`, and the rules that it checks."""

import subprocess
import sys

from tests import fork_server
from tests.faults import archives, fuzz, mutations


def test_mutated_settings_and_manifests_end_in_one_line_or_work(tmp_path):
    found = []
    for check, numbers in ((fuzz.overrides, range(8)), (fuzz.manifests, range(6))):
        for number in numbers:
            folder = tmp_path / f"{check.__name__}-{number}"
            folder.mkdir()
            case, failures = check(number, 7, folder)
            found += [f"{case}: {failure}" for failure in failures]
    assert found == []


def test_every_rule_finds_its_fault():
    good, line = fuzz.Ending(0, "1 training and 2 validation rows\n", "", ("schedule.svg",)), "error: seed is x; it must be a number\n"
    assert good.failures() == [] and fuzz.Ending(2, "", line, ()).failures() == []
    broken = {
        "no end within": fuzz.Ending(None, "", "", ()),
        "a traceback": fuzz.Ending(1, "", "Traceback (most recent call last):\n", ()),
        "exit status -11": fuzz.Ending(-11, "", "", ()),
        "2 lines on stderr": fuzz.Ending(2, "", line * 2, ()),
        "the longest of": fuzz.Ending(2, "", "x" * 2000, ()),
        "1 files were written": fuzz.Ending(2, "", line, ("run.json",)),
        "control characters": fuzz.Ending(0, "\x1b[31m\x07", "", ()),
    }
    for text, ending in broken.items():
        assert any(text in failure for failure in ending.failures()), text


def test_photographs_that_pillow_refuses_are_counted(tmp_path):
    path, refused = mutations.photographs(3, 60, tmp_path)
    assert 20 < len(refused) < 60 and all(int(name.split("/")[1].split(".")[0]) >= 48 for name in refused)
    assert len(path.read_text().splitlines()) == 109


def test_mutated_archives_of_every_format_end_in_one_line_or_are_accounted_for(tmp_path):
    """Run the cases in a separate process without threads, because every case is a fork of it."""
    command = [sys.executable, "-m", "tests.faults.fuzz", "archives", f"--count={6 * len(archives.FORMATS)}", "--jobs=1"]
    with (tmp_path / "out").open("wb") as out:
        process = fork_server.Popen(command, cwd=fork_server.ROOT, stdout=out, stderr=subprocess.STDOUT)
    status = process.wait(300)
    assert (tmp_path / "out").read_text().splitlines()[-1] == f"{6 * len(archives.FORMATS)} cases, 0 failed" and status == 0
