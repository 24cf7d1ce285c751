"""A checkpoint loads the values that were saved. Anything else is refused by the hashes or by the loaders."""

import builtins
import errno
import functools
import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils._pytree import tree_flatten

from linnaeus.checkpoint import CheckpointDamaged, auto_resume_helper, convert_ddp_state, load_checkpoint, save_checkpoint, verify
from linnaeus.checkpoint.format import EMA, MANIFEST, MODEL, STATE, TRAINING, write_manifest
from linnaeus.checkpoint.loading import check_sizes
from linnaeus.files import content_digest
from tests.checkpoint.conftest import fail_for, payload

FILES = (MODEL, EMA, TRAINING, STATE, MANIFEST)


def assert_same(a: Any, b: Any) -> None:
    (own, containers), (other, others) = tree_flatten(a), tree_flatten(b)
    assert containers == others
    for x, y in zip(own, other, strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def test_round_trip(saved: Path) -> None:
    loaded, given = load_checkpoint(saved / "step-00000200"), payload(200)
    assert loaded.step == 200
    for part in ("model_state", "ema_state", "training_state", "state"):
        assert_same(given[part], getattr(loaded, part))
    assert sorted(p.name for p in (saved / "step-00000200").iterdir()) == sorted(FILES)


def test_equal_states_have_the_same_bytes(tmp_path: Path) -> None:
    """One state has strings and a list that a checkpoint was loaded with, and new ones beside them, as after a resume."""
    best, counts = {"val/loss": {"value": 0.5, "global_step": 3}}, [1, 2]
    new = {"best": best, "again": {"global_step": 4, "monitor": "val/loss"}, "counts": counts, "shared": counts}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, **(payload(1) | {"training_state": {"best": best}})))
    resumed = {**new, "best": loaded.training_state["best"], "shared": [1, 2]}
    a = save_checkpoint(tmp_path / "a", 1, **(payload(1) | {"training_state": new}))
    b = save_checkpoint(tmp_path / "b", 1, **(payload(1) | {"training_state": resumed}))
    assert new == resumed and (a / TRAINING).read_bytes() == (b / TRAINING).read_bytes()


def test_without_ema(tmp_path: Path) -> None:
    given = payload(3) | {"ema_state": None}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, **given))
    assert loaded.ema_state is None and not (loaded.path / EMA).exists()


def do_damage(file: Path, damage: str) -> None:
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 0x04
    elif damage == "truncate":
        del content[-7:]
    elif damage == "grow":
        content += b"\0"
    else:
        content.clear()
    file.write_bytes(bytes(content))
    if damage == "missing":
        file.unlink()


DAMAGE = ("flip", "truncate", "empty", "missing", "grow")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_any_file_is_detected_and_named(saved: Path, name: str, damage: str) -> None:
    file = saved / "step-00000200" / name
    do_damage(file, damage)
    with pytest.raises(CheckpointDamaged) as caught:
        load_checkpoint(file.parent)
    assert name in caught.value.reason and "\n" not in str(caught.value)
    point = auto_resume_helper(saved)  # the older one is intact
    assert point.step == 100 and point.skipped == [(str(file.parent), caught.value.reason)]


@pytest.mark.parametrize("name", [MODEL, EMA, TRAINING, STATE])
def test_loaders_refuse_other_content_with_a_valid_manifest(saved: Path, name: str) -> None:
    """The hashes match, so the error comes from reading the file."""
    path = saved / "step-00000200"
    (path / name).write_bytes(b"not what it should be")
    write_manifest(path, 200, None)
    verify(path)
    with pytest.raises(CheckpointDamaged, match=name):
        load_checkpoint(path)


class Hostile:
    """An object that creates a directory when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


def test_a_hostile_pickle_is_refused_by_the_loader(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, marker = saved / "step-00000200", tmp_path / "executed"
    torch.save({"optimizer": Hostile(marker)}, path / TRAINING)
    write_manifest(path, 200, None)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    verify(path)  # the manifest matches
    for verified in (False, True):
        with pytest.raises(CheckpointDamaged, match="not plain data"):
            load_checkpoint(path, verified=verified)
    point = auto_resume_helper(saved)
    assert point.step == 100 and "not plain data" in point.skipped[0][1]
    assert not marker.exists()
    torch.load(path / TRAINING, weights_only=False)  # negative control: this pickle runs code
    assert marker.exists()


def sign(path: Path, **change: Any) -> None:
    """Write the manifest of `path` with some entries changed and its own hash correct."""
    manifest = json.loads((path / MANIFEST).read_text()) | change
    manifest = {key: value for key, value in manifest.items() if value != "absent"}
    manifest["sha256"] = content_digest(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


def hostile_files(marker: Path) -> dict[str, bytes]:
    """Return files with hostile pickles: those that `torch.save` does not write, and one in its old format."""
    call = b"cos\nmkdir\n(V" + str(marker).encode() + b"\ntR."
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for name, content in (("a/data.pkl", call), ("a/version", b"3\n"), ("a/byteorder", b"little"), ("a/.format_version", b"1")):
            file.writestr(name, content)
    partial = io.BytesIO()
    torch.save({"fine": torch.ones(2), "x": [functools.partial(os.mkdir, str(marker))]}, partial)
    old = io.BytesIO()
    torch.save({"x": Hostile(marker)}, old, _use_new_zipfile_serialization=False)
    return {"bare pickle": call, "its own zip": archive.getvalue(), "a partial": partial.getvalue(), "old": old.getvalue()}


@pytest.mark.parametrize("form", ["bare pickle", "its own zip", "a partial", "old"])
def test_other_hostile_files(saved: Path, tmp_path: Path, form: str) -> None:
    path, marker = saved / "step-00000200", tmp_path / "executed"
    (path / TRAINING).write_bytes(hostile_files(marker)[form])
    write_manifest(path, 200, None)
    point = auto_resume_helper(saved)
    assert point.step == 100 and TRAINING in point.skipped[0][1] and not marker.exists()


ENTRY = {"size": 1, "sha256": "0"}
SHAPES = [
    *[{key: value} for key in ("format", "step") for value in ("absent", None, "1", 1.5, True, -1, [1])],
    *[{"score": value} for value in ("absent", "0.5", True, [0.5], {})],
    *[{key: value} for key in ("monitor", "mode") for value in (5, True, ["val/loss"], {})],
    *[{"files": value} for value in ("absent", None, [], "x", {}, {MODEL: ENTRY}, {MODEL: None}, {MODEL: {"size": 1}})],
    *[{"files": {name: ENTRY}} for name in ("../other/model.safetensors", "a/b", "..", "")],
    *[{"files": {MODEL: entry}} for entry in (ENTRY | {"size": "1"}, ENTRY | {"size": None}, ENTRY | {"sha256": 5}, [], 7)],
]


@pytest.mark.parametrize("change", SHAPES, ids=str)
def test_a_manifest_with_a_correct_hash_and_wrong_entries(saved: Path, change: dict[str, Any]) -> None:
    sign(saved / "step-00000200", **change)
    with pytest.raises(CheckpointDamaged, match=MANIFEST):
        load_checkpoint(saved / "step-00000200")
    with pytest.raises(CheckpointDamaged, match=MANIFEST):
        check_sizes(saved / "step-00000200")


@pytest.mark.parametrize("text", ["null", "[]", "3", '"x"', "{}", "[" * 100_000, '{"sha256": 1}', "\ufeff{}", "9" * 5000, "{" * 9])
def test_other_json_instead_of_a_manifest(saved: Path, text: str) -> None:
    (saved / "step-00000200" / MANIFEST).write_text(text)
    with pytest.raises(CheckpointDamaged, match=MANIFEST) as caught:
        load_checkpoint(saved / "step-00000200")
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_negative_control_a_manifest_signed_again_without_changes_is_accepted(saved: Path) -> None:
    sign(saved / "step-00000200")
    assert load_checkpoint(saved / "step-00000200").step == 200


def test_a_checkpoint_under_the_name_of_another_step(saved: Path) -> None:
    os.rename(saved / "step-00000100", saved / "step-00000300")
    with pytest.raises(CheckpointDamaged, match="it is of step 100"):
        load_checkpoint(saved / "step-00000300")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["directory", "pipe", "link to nothing", "link to itself"])
def test_something_else_instead_of_a_file(saved: Path, name: str, kind: str) -> None:
    file = saved / "step-00000200" / name
    file.unlink()
    if kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(file if kind == "link to itself" else "nowhere")
    with pytest.raises(CheckpointDamaged, match=name):
        load_checkpoint(file.parent)


@pytest.mark.parametrize("name", FILES)
def test_a_read_error_is_not_damage(saved: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input/output error at the first or a later read of a file raises `OSError`, not `CheckpointDamaged`."""
    for module in (builtins, io):
        fail_for(monkeypatch, module, "open", f"/{name}", errno.EIO)
    with pytest.raises(OSError, match=f"Input/output error.*{name}"):
        load_checkpoint(saved / "step-00000200")
    if name in (TRAINING, STATE):  # with `verified=True` they are read for the first time
        with pytest.raises(OSError, match=f"Input/output error.*{name}"):
            load_checkpoint(saved / "step-00000200", verified=True)


NOT_PLAIN = [(np.float64(1.0), "float64"), ({1, 2}, "set"), (Path("x"), "Path"), (np.zeros(2), "ndarray"), (torch.float32, "dtype")]


@pytest.mark.parametrize(("value", "where"), NOT_PLAIN)
def test_only_plain_values_are_saved(tmp_path: Path, value: Any, where: str) -> None:
    given = payload(1)
    given["training_state"]["optimizer"] = {"deep": [value]}
    with pytest.raises(TypeError, match=rf"training_state\['optimizer'\]\['deep'\]\[0\].*{where}"):
        save_checkpoint(tmp_path, 1, **given)
    with pytest.raises(TypeError, match="state"):
        save_checkpoint(tmp_path, 1, **payload(1, oops={"a": value}))
    with pytest.raises(TypeError, match="not a string"):
        save_checkpoint(tmp_path, 1, **payload(1, oops={7: 1.0}))
    assert not list(tmp_path.iterdir())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("view", torch.arange(12.0).reshape(3, 4).t()[1:])  # not contiguous, part of a storage
        self.register_buffer("counter", torch.tensor(7))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("nothing_else", torch.zeros(0, 3))
        self.register_buffer("low_precision", torch.ones(2, dtype=torch.bfloat16))


def test_tied_weights_are_stored_once_and_loaded_under_every_name(tmp_path: Path) -> None:
    state = Tied().state_dict()
    path = save_checkpoint(tmp_path, 1, **(payload(1) | {"model_state": state}))
    on_disk = load_file(path / MODEL)  # read by the safetensors library
    assert "embed.weight" in on_disk and "out.weight" not in on_disk
    loaded = load_checkpoint(path).model_state
    assert set(loaded) == set(state)
    assert all(torch.equal(loaded[name], state[name]) and loaded[name].dtype == state[name].dtype for name in state)
    other = Tied()
    other.load_state_dict(loaded)
    assert other.out.weight is other.embed.weight and torch.equal(other.out.weight, state["out.weight"])


def test_changing_a_loaded_tensor_does_not_change_the_file(saved: Path) -> None:
    loaded = load_checkpoint(saved / "step-00000200")
    loaded.model_state["head.weight"].add_(1)
    verify(loaded.path)


def test_wrapper_prefixes_are_not_saved(tmp_path: Path) -> None:
    state = {f"module._orig_mod.{k}": v for k, v in Tied().state_dict().items()}
    path = save_checkpoint(tmp_path, 1, **(payload(1) | {"model_state": state, "ema_state": state}))
    assert set(load_checkpoint(path).model_state) == set(Tied().state_dict())
    assert not [name for name in load_file(path / EMA) if name.startswith(("module", "_orig_mod"))]


def test_convert_ddp_state_removes_only_leading_prefixes() -> None:
    state = {"module._orig_mod.module.a.module.w": 1, "_orig_mod.b": 2, "encoder.module.c": 3, "modular.d": 4, "x._orig_mod.e": 5}
    assert convert_ddp_state(state) == {"a.module.w": 1, "b": 2, "encoder.module.c": 3, "modular.d": 4, "x._orig_mod.e": 5}
    with pytest.raises(ValueError, match="both 'a'"):
        convert_ddp_state({"a": 1, "module.a": 2})


def test_a_moved_checkpoint_still_loads(saved: Path, tmp_path: Path) -> None:
    shutil.move(saved / "step-00000200", tmp_path / "to-share")
    assert load_checkpoint(tmp_path / "to-share").step == 200
