"""The quarantine lists each photograph once, is read after a restart, and raises an error above the limit."""

import errno
import json

import numpy as np
import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.images import quarantine
from linnaeus.workloads.taxonomy.images.quarantine import Quarantine
from linnaeus.workloads.taxonomy.manifest import build_source

REASON = "not an image of a format that is read (JPEG, PNG, WEBP, GIF, BMP, TIFF)"


@pytest.fixture
def source(write_manifest, manifest_config):
    path = write_manifest([{"path": f"{i}.png", "species": f"S{i % 2}"} for i in range(20)])
    (path.parent / "4.png").write_text("no photograph")
    (path.parent / "9.png").write_bytes(b"")
    return build_source(manifest_config(path, max_bad_fraction=0.2))


def test_bad_samples_are_written_once_with_name_and_reason(source, tmp_path):
    quarantine = Quarantine(tmp_path, source, 0.2)
    assert quarantine.report(np.array([-1, -1])) == [] and not quarantine.path.exists()
    messages = quarantine.report(torch.tensor([-1, 4]))
    assert messages == [f"quarantined 4.png: {REASON}"]
    assert quarantine.report(np.array([4, 4])) == [] and quarantine.samples == [4]
    assert [json.loads(line) for line in quarantine.path.read_text().splitlines()] == [{"id": "4.png", "reason": REASON}]


def test_the_file_is_read_after_a_restart_even_with_an_incomplete_line(source, tmp_path):
    first = Quarantine(tmp_path, source, 0.2)
    first.record_unreadable()
    first.report(np.array([4]))
    with open(first.path, "a") as file:
        file.write('{"id": "11.p')
    again = Quarantine(tmp_path, source, 0.2)
    assert again.samples == [4]
    again.record_unreadable()
    again.report(np.array([11]))
    assert Quarantine(tmp_path, source, 0.2).samples == [4, 11]
    names = [json.loads(line)["id"] for line in first.path.read_text().splitlines() if line.endswith("}")]
    assert sorted(names) == sorted(["9.png", "4.png", str(source.ids[11])])


def test_the_order_of_the_lines_does_not_depend_on_who_was_first(source, tmp_path):
    contents = set()
    for name, order in (("a", (4, 11)), ("b", (11, 4))):
        (tmp_path / name).mkdir()
        processes = [Quarantine(tmp_path / name, source, 0.2) for _ in range(3)]
        for process, sample in zip(processes, (*order, 4), strict=True):  # two found one photograph at the same time
            process.report(np.array([sample]))
        processes[0].record_unreadable()
        contents.add(processes[0].path.read_bytes())
    names = [json.loads(line)["id"] for line in processes[0].path.read_text().splitlines()]
    assert len(contents) == 1 and names == [str(source.ids[11]), "4.png", "9.png"]
    processes[0].path.write_text('{"id": 5}\n[]\n{"id": "4.png"')  # damaged
    processes[0].sort()
    assert Quarantine(tmp_path / "b", source, 0.2).samples == []


def test_more_than_the_limit_is_an_error_now_and_after_a_restart(source, tmp_path):
    quarantine = Quarantine(tmp_path, source, 0.1)  # 20 rows: 2 may be bad, and one file is empty
    quarantine.report(np.array([4]))
    with pytest.raises(ConfigError, match=r"data.max_bad_fraction: 3 of 20"):
        quarantine.report(np.array([5]))
    with pytest.raises(ConfigError, match=r"data.max_bad_fraction"):
        Quarantine(tmp_path, source, 0.1)
    Quarantine(tmp_path, source, 0.2)


def test_on_a_full_disk_training_continues_and_the_lines_are_written_later(source, tmp_path, monkeypatch):
    def full(path, flags):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    found = Quarantine(tmp_path, source, 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(quarantine, "no_follow", full)
        assert found.report(np.array([4])) == [f"quarantined 4.png: {REASON}"]
        assert found.report(np.array([4])) == [] and found.samples == [4] and not found.path.exists()
    assert len(found.report(np.array([11, 4]))) == 1
    assert Quarantine(tmp_path, source, 0.2).samples == found.samples == [4, 11]
    assert len(found.path.read_text().splitlines()) == 2


def test_photographs_that_cannot_be_read_again_are_named_too(source, tmp_path, monkeypatch):
    def gone(self, rows):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(type(source.images), "read", gone)
    (message,) = Quarantine(tmp_path, source, 0.2).report(np.array([4]))
    assert "4.png: undecodable in a worker, unreadable now (Input/output error)" in message


def test_the_message_of_a_name_with_control_characters_is_one_line(write_manifest, manifest_config, tmp_path):
    path = write_manifest(
        [{"path": f"{i}.png", "species": f"S{i % 2}"} for i in range(19)] + [{"path": "a\x1b[2J\x07.png", "species": "S0"}]
    )
    (path.parent / "a\x1b[2J\x07.png").write_text("no photograph")
    source = build_source(manifest_config(path, max_bad_fraction=0.2))
    (message,) = Quarantine(tmp_path, source, 0.2).report(np.array([19]))
    assert message == f"quarantined a\\x1b[2J\\x07.png: {REASON}"
    assert json.loads((tmp_path / "quarantine.jsonl").read_text())["id"] == "a\x1b[2J\x07.png"
