"""`benchmarks.on_gpu`: a step is killed at its limit with all of its processes, and the commands of the steps exist."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from benchmarks import on_gpu
from benchmarks.dictionary_recovery.__main__ import main as dictionary_recovery
from benchmarks.on_gpu import GPU_TESTS, STEPS, Step
from benchmarks.vision.__main__ import main as vision

ROOT = Path(__file__).resolve().parents[2]
MAINS = {"benchmarks.vision": vision, "benchmarks.dictionary_recovery": dictionary_recovery}
STARTS_ANOTHER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def start(monkeypatch: pytest.MonkeyPatch, out: Path, steps: dict[str, Step], *words: str) -> int:
    monkeypatch.setattr(on_gpu, "STEPS", steps)
    monkeypatch.setattr("sys.argv", ["on_gpu", "--out", str(out), "--steps", *steps, *words])
    return on_gpu.main()


def test_a_process_is_killed_with_its_processes(tmp_path):
    log, deadline = tmp_path / "log", time.monotonic() + 120
    process = on_gpu.start_group(["-c", STARTS_ANOTHER], log)
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    on_gpu.kill_group(process)
    child = int(log.read_text())
    while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < deadline, "the process of the process is alive"
        time.sleep(0.05)


def test_steps_that_fail_or_reach_their_limit_are_named(monkeypatch, tmp_path, capsys):
    steps = {"hangs": Step(("-c", "import time; time.sleep(600)"), 1, False), "fails": Step(("-c", "print(1); 1 / 0"), 120, False)}
    steps["works"] = Step(("-c", "print('done')"), 120, False)
    assert start(monkeypatch, tmp_path, steps) == 1
    said = capsys.readouterr().out
    assert "hangs: stopped by its limit" in said and "fails: status 1" in said and "ZeroDivisionError" in said
    assert "works: status 0" in said and said.endswith("failed or stopped: hangs, fails; left out: none\n")


def test_steps_without_time_are_named(monkeypatch, tmp_path, capsys):
    steps = {"never": Step(("-c", "open('started', 'w')"), 60, False)}
    assert start(monkeypatch, tmp_path, steps, "--limit", "5") == 1
    assert capsys.readouterr().out == "failed or stopped: none; left out: never\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
@pytest.mark.parametrize("name", [name for name, step in STEPS.items() if step.words[1] in MAINS])
def test_the_options_of_a_step_exist(name, capsys):
    with pytest.raises(SystemExit):
        MAINS[STEPS[name].words[1]]([*STEPS[name].words[2:], "--json", "numbers.json"])
    assert "no CUDA device here" in capsys.readouterr().err


def test_a_step_can_write_into_the_folder(monkeypatch, tmp_path):
    steps = {"writes": Step(("-c", "import sys; open(sys.argv[1], 'w')", "{out}/made"), 120, numbers=False)}
    assert start(monkeypatch, tmp_path, steps) == 0 and (tmp_path / "made").exists()


def test_no_file_with_tests_for_a_gpu_is_left_out():
    marked = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text()}
    assert marked - {"tests/benchmarks/test_gpu_steps.py"} == set(GPU_TESTS)
