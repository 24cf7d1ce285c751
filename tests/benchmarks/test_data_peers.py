"""Peers in processes and environments of their own: the answers, the failures, and the batches. None of the peers is needed."""

from __future__ import annotations

import ast
import io
import itertools
import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import data, data_peers, peer_processes
from benchmarks.peer_processes import Peer, PeerFailed, make_environment, running_peers

FAKE_PEER = """
import json, os, sys
name, folder, prepared = sys.argv[1:4]
if name == "broken" or folder == "unreadable":
    sys.exit(f"Traceback ...\\n | ImportError: {name} cannot read {folder}\\nRuntimeError: a stage failed\\n+----")
for number, line in enumerate(sys.stdin):
    if line == "end\\n":
        break
    print(json.dumps({"seconds": number + 0.25, "number": 2}), flush=True)
open(prepared, "w").write(" ".join(sys.argv[4:]))
"""
FAKE_PIP = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in *missing*) echo "WARNING: slow" >&2; echo "ERROR: No matching distribution found for missing==1" >&2; exit 1;; esac
mkdir -p {packages}/av.libs && touch {packages}/av.libs/libavutil-5809ad29.so.60.26.102
"""


@pytest.fixture
def fake_peers(tmp_path, monkeypatch):
    """Peers `good` and `broken`, whose process is FAKE_PEER and whose environment is that of the tests."""
    child = tmp_path / "fake_peer.py"
    child.write_text(FAKE_PEER)
    monkeypatch.setattr(peer_processes, "CHILD", child)
    monkeypatch.setattr(peer_processes, "REQUIREMENTS", {"good": ["good==1.2", "more==3"], "broken": ["broken==0.1"]})
    monkeypatch.setattr(peer_processes, "make_environment", lambda root, name: Path(sys.executable))


def test_peers_answer_and_those_that_fail_are_named_with_the_reason(tmp_path, fake_peers, capsys):
    folders = {"originals": Path("photographs"), "short side 256": Path("unreadable")}
    with running_peers(tmp_path, folders, tmp_path, 2, "random") as peers:
        assert list(peers) == ["good 1.2, originals"]
        peer = peers["good 1.2, originals"]
        assert [peer.seconds(), peer.seconds()] == [1.25, 2.25]  # after 0.25 of the first pass
    assert peer.process.returncode == 0
    assert (tmp_path / "good 0").read_text() == "--workers 2 --crop random"
    reasons = ["good (ImportError: good cannot read unreadable)", "broken (ImportError: broken cannot read photographs)"]
    assert capsys.readouterr().out.splitlines() == [f"not measured: {reason}" for reason in reasons]


def test_without_a_root_there_are_no_peers(tmp_path):
    with running_peers(None, {}, tmp_path, 0, "fixed") as peers:
        assert peers == {}


@pytest.mark.parametrize("code, reason", [("exit(7)", "no answer, exit status 7"), ("raise OSError('disk\\nfull')", "OSError: disk")])
def test_a_peer_without_an_answer_fails_in_one_line(code, reason):
    with pytest.raises(PeerFailed) as failure:
        Peer([sys.executable, "-c", code]).seconds()
    assert str(failure.value) == reason


def test_a_peer_ends_although_another_process_has_its_input_open(tmp_path, fake_peers):
    with running_peers(tmp_path, {"originals": tmp_path}, tmp_path, 0, "fixed") as peers:
        open_elsewhere = [os.dup(peer.process.stdin.fileno()) for peer in peers.values()]
    assert [peer.process.returncode for peer in peers.values()] == [0]
    for number in open_elsewhere:
        os.close(number)


def test_an_environment_is_made_once_for_its_requirements(tmp_path, monkeypatch, capsys):
    calls, folder = tmp_path / "calls", tmp_path / "HF_datasets"
    packages = peer_processes._packages(folder)

    def create(made: Path, **_) -> None:
        for path in (made / "bin", packages):
            path.mkdir(parents=True, exist_ok=True)
        python = made / "bin" / "python"
        python.write_text(FAKE_PIP.format(calls=calls, packages=packages))
        python.chmod(0o755)

    monkeypatch.setattr(peer_processes.venv, "create", create)
    monkeypatch.setitem(peer_processes.REQUIREMENTS, "HF datasets", ["missing==1"])
    with pytest.raises(PeerFailed, match="ERROR: No matching distribution found for missing==1"):
        make_environment(tmp_path, "HF datasets")
    monkeypatch.setitem(peer_processes.REQUIREMENTS, "HF datasets", ["datasets==5", "other==1"])
    pythons = [make_environment(tmp_path, "HF datasets") for _ in range(2)]
    assert pythons == [folder / "bin" / "python"] * 2
    assert [call.split("-check ")[1] for call in calls.read_text().splitlines()] == ["missing==1", "datasets==5 other==1"]
    assert Path((packages / "shared.pth").read_text().strip(), "torch").is_dir()
    assert os.readlink(packages / "av.libs" / "libavutil.so.60") == "libavutil-5809ad29.so.60.26.102"
    variables = peer_processes.variables(pythons[0])
    assert variables["LD_LIBRARY_PATH"].split(":")[0] == str(packages / "av.libs") and "PYTHONPATH" not in variables


def test_the_script_of_the_peers_answers_each_line_before_the_end(tmp_path, monkeypatch):
    def decode_image(path: str) -> torch.Tensor:
        return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)

    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", types.SimpleNamespace(decode_image=decode_image))
    folder, clock, answers = data.make_photographs(tmp_path / "photographs", 8), itertools.count(step=4).__next__, io.StringIO()
    passes = data_peers.torchcodec(folder, tmp_path / "prepared", 0, "random")
    data_peers.answer(["\n", "\n", "end\n", "\n"], answers, passes, clock)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [{"seconds": 0.5, "number": 8}] * 2


def test_the_script_of_the_peers_has_our_sizes_and_no_import_of_ours():
    tree = ast.parse(peer_processes.CHILD.read_text())
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in imports} & {"linnaeus", "benchmarks"}
    names = ("SIZE", "BATCH", "SHORT_SIDE", "SCALE", "RATIO", "MEAN", "STD")
    assert [getattr(data_peers, name) for name in names] == [getattr(data, name) for name in names]
    assert set(data_peers.PEERS) == set(peer_processes.REQUIREMENTS)


def test_a_batch_that_is_not_as_asked_for_is_refused():
    assert data_peers.one_pass(lambda: [torch.zeros(4, 3, data.SIZE, data.SIZE)] * 2, lambda: 0.0)["number"] == 8
    with pytest.raises(ValueError, match="uint8"):
        data_peers.one_pass(lambda: [torch.zeros(4, 3, data.SIZE, data.SIZE, dtype=torch.uint8)], lambda: 0.0)
