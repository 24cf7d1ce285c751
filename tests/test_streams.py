"""Closed standard streams, a pipe whose reader has ended, paths that are not UTF-8: a run is the same, without a traceback."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import yaml

from tests import fork_server, runs

CLOSED = """
import os, runpy, sys
for number in {numbers}:
    os.close(number)
    setattr(sys, ("stdin", "stdout", "stderr")[number], None)
sys.argv = sys.argv[1:]
runpy.run_path("main.py", run_name="__main__")
"""


def command(root, *more: str) -> list[str]:
    texts = ["experiment=vectors", *(text for text in runs.TINY if "console" not in text), *runs.SAMPLES, "trainer.length=2steps"]
    return ["--config-dir", str(runs.VECTORS), *texts, f"run.root={root}", "run.name=run", *more]


@pytest.mark.parametrize("numbers", [(1,), (0, 1, 2)])
def test_closed_streams(tmp_path, numbers):
    code = CLOSED.format(numbers=numbers)
    process = fork_server.Popen([sys.executable, "-c", code, "main.py", *command(tmp_path)], cwd=runs.ROOT, stderr=subprocess.PIPE)
    assert process.communicate(timeout=120)[1] == b"" and process.returncode == 0
    assert runs.summary(tmp_path / "vectors" / "run")["status"] == "finished"
    for path in (tmp_path / "vectors" / "run").glob("*.json*"):
        for line in [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines():
            json.loads(line)


@pytest.mark.parametrize("more", [[], ["--help"], ["seed=x"]], ids=["run", "help", "mistake"])
def test_a_pipe_without_a_reader(tmp_path, more):
    process = fork_server.Popen(
        [sys.executable, "main.py", *command(tmp_path, *more)], cwd=runs.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    error = process.stderr.read().decode()
    assert process.wait(120) == (2 if "seed=x" in more else 0)
    assert error.splitlines() == (["error: seed is 'x'; it must be an integer"] if "seed=x" in more else [])


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_the_reader_of_a_command_may_end(size):
    """A long text fails when it is printed, a short one when it is flushed."""
    code = f"from linnaeus.config.messages import user_errors\nwith user_errors(2):\n    input()\n    print('x' * {size})"
    process = fork_server.Popen(
        [sys.executable, "-c", code], cwd=runs.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.stderr.read() == b"" and process.wait(120) == 141


def test_a_path_that_is_not_utf8(tmp_path):
    root = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    config = runs.configuration("vectors", tmp_path, "logger.tensorboard=true", "logger.report=true", "trainer.length=1epochs")
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, root=root))
    assert runs.start(config) == 0
    path = runs.run_path(config)
    assert yaml.safe_load((path / "config.yaml").read_bytes().decode())["run"]["root"] == root
    assert "\\udcff" in (path / "train.log").read_text(encoding="utf-8") and (path / "report.html").exists()
    (path / "summary.json").unlink()
    assert runs.start(config) == 0
