"""A few cases of `make fuzz`, and the rules that it checks. Bundles and archives are slow."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fork_server
from tests.faults import archives, bundles, fuzz, gear_requests, http_requests, mutations


@pytest.mark.slow
def test_mutated_settings_and_manifests_end_in_one_line_or_work(tmp_path):
    found = []
    for check, numbers in ((fuzz.overrides, range(3)), (fuzz.manifests, range(2))):
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


@pytest.mark.slow
def test_mutated_bundles_end_in_one_line_or_answer(tmp_path):
    """Run the cases in a separate process without threads, because every case is a fork of it."""
    command = [sys.executable, "-m", "tests.faults.fuzz", "bundles", "--count=12", "--jobs=1", "--seed=3"]
    with (tmp_path / "out").open("wb") as out:
        process = fork_server.Popen(command, cwd=fork_server.ROOT, stdout=out, stderr=subprocess.STDOUT)
    status = process.wait(300)
    assert (tmp_path / "out").read_text().splitlines()[-1] == "12 cases, 0 failed" and status == 0


@pytest.mark.slow  # quick: test_changed_requests_do_no_harm in tests/workloads/taxonomy/serving/test_service.py
def test_mutated_requests_are_answered_in_one_line():
    with http_requests.service() as service:
        found = [f"{number}: {line}" for number in range(60) for line in http_requests.check(service, number, 5, fork_server.ROOT)[1]]
        assert found == [] and service.get("/health").status == 200


def test_every_rule_for_answers_finds_its_fault():
    head = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\n\r\n"
    assert http_requests.wrong_reply(head % 422 + b'{"error": "top is 0"}', True) == []
    assert http_requests.wrong_reply(b"", True) and not http_requests.wrong_reply(b"", False)
    for reply in (head % 500 + b"{}", head % 200 + b"{", head % 400 + b'{"error": "a\\nb"}', head % 200 + b'{"a": "root:x:0"}', b"hello"):
        assert http_requests.wrong_reply(reply, True), reply


def test_every_rule_for_bundles_finds_its_fault(tmp_path, monkeypatch, capsys):
    """Each fault is one that `linnaeus predict` had, or could have."""
    shutil.copytree(bundles.original(), tmp_path / "inside")
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(tmp_path)
    found = lambda linked=False: bundles.failures(bundles.Case(tmp_path / "inside", [], "csv", linked), watched=False)
    assert found() == [] and found(linked=True) == ["a file outside of the bundle was read"]
    broken = {
        "exit status 1": "raise SystemExit(1)",
        "an error of 4 characters": "print('a', file=sys.stderr); print('b', file=sys.stderr); raise SystemExit(2)",
    }
    broken |= {"is written as": "path = argv_out(words); path.write_text('a,b')", "outside was printed": "print(bundles.SECRET)"}
    for text, code in broken.items():
        (tmp_path / "inside" / "answers.csv").write_text("photograph\n")
        names = {"argv_out": lambda words: Path(words[words.index("--out") + 1]), "bundles": bundles, "sys": sys}
        monkeypatch.setattr(bundles.predict_cli, "main", lambda words, code=code, names=names: exec(code, names | {"words": words}) or 0)
        assert any(text in failure for failure in found()), text


@pytest.mark.slow
def test_mutated_archives_of_every_format_end_in_one_line_or_are_accounted_for(tmp_path):
    """Run the cases in a separate process without threads, because every case is a fork of it."""
    command = [sys.executable, "-m", "tests.faults.fuzz", "archives", f"--count={3 * len(archives.FORMATS)}", "--jobs=1"]
    with (tmp_path / "out").open("wb") as out:
        process = fork_server.Popen(command, cwd=fork_server.ROOT, stdout=out, stderr=subprocess.STDOUT)
    status = process.wait(300)
    assert (tmp_path / "out").read_text().splitlines()[-1] == f"{3 * len(archives.FORMATS)} cases, 0 failed" and status == 0


def test_random_requests_for_builds_have_legal_ones_or_a_reason(tmp_path):
    assert [gear_requests.check(number, 5, tmp_path, 60)[1] for number in (0, 3, 4, 9)] == [[]] * 4


def test_every_rule_for_builds_finds_its_fault():
    part = lambda main, sub: {"main": main, "subs": [sub] * 3}
    gear = {
        "head": part("comeback", "swim_speed_up"),
        "clothes": part("haunt", "run_speed_up"),
        "shoes": part("swim_speed_up", "run_speed_up"),
    }
    asked = {"weapon": "45", "have": "comeback, swim_speed_up: main sub", "points": {"run_speed_up": 18}}
    wrong = lambda gear, **more: gear_requests.wrong_answer(asked | more, {"builds": [{"gear": gear}]}, 1)
    assert wrong(gear) == [] and gear_requests.wrong_answer(asked, {"builds": [], "reason": "no"}, 1) == []
    for text, found in {
        "a reason of": gear_requests.wrong_answer(asked, {"builds": [], "reason": "a\nb"}, 1),
        "0 builds of at most 1": gear_requests.wrong_answer(asked, {"builds": []}, 1),
        "the same build twice": gear_requests.wrong_answer(asked, {"builds": [{"gear": gear}] * 2}, 2),
        "the pieces": wrong({name: gear[name] for name in ("head", "shoes")}),
        "haunt in a slot that it does not fit": wrong(gear | {"head": part("haunt", "swim_speed_up")}),
        "tenacity in a slot that it does not fit": wrong(gear | {"shoes": part("swim_speed_up", "tenacity")}),
        "given gear is changed": wrong(gear | {"shoes": part("run_speed_up", "run_speed_up")}),
        "run_speed_up has 18 points": wrong(gear, points={"run_speed_up": 19}),
    }.items():
        assert any(text in failure for failure in found), (text, found)
