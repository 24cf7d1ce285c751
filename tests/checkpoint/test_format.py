"""A checkpoint gives back what was saved, and anything else is refused: by its hashes, and by the loaders themselves."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from linnaeus.checkpoint import CheckpointDamaged, convert_ddp_state, load_checkpoint, save_checkpoint, verify
from linnaeus.checkpoint.format import EMA, FORMAT, MANIFEST, MODEL, STATE, TRAINING, _manifest_digest, write_manifest
from linnaeus.config.errors import ConfigError
from tests.checkpoint.conftest import payload

FILES = (MODEL, EMA, TRAINING, STATE, MANIFEST)


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same(x, y)
    else:
        assert a == b


def test_round_trip(saved: Path) -> None:
    loaded, given = load_checkpoint(saved / "step-00000200"), payload(200)
    assert loaded.step == 200
    for part in ("model_state", "ema_state", "training_state", "state"):
        assert_same(given[part], getattr(loaded, part))
    assert sorted(p.name for p in (saved / "step-00000200").iterdir()) == sorted(FILES)


def test_without_ema(tmp_path: Path) -> None:
    given = payload(3) | {"ema_state": None}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, **given))
    assert loaded.ema_state is None and not (loaded.path / EMA).exists()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "missing", "grow"])
def test_damage_to_any_file_is_noticed_and_named(saved: Path, name: str, damage: str) -> None:
    file = saved / "step-00000200" / name
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
    with pytest.raises(CheckpointDamaged) as caught:
        load_checkpoint(file.parent)
    assert name in caught.value.reason and "\n" not in str(caught.value)
    load_checkpoint(saved / "step-00000100")  # its neighbour is well


@pytest.mark.parametrize("name", [MODEL, EMA, TRAINING, STATE])
def test_loaders_refuse_nonsense_with_a_valid_signature(saved: Path, name: str) -> None:
    """The hashes match here: the refusal comes from reading the file."""
    path = saved / "step-00000200"
    (path / name).write_bytes(b"not what it should be")
    write_manifest(path, 200, None)
    verify(path)
    with pytest.raises(CheckpointDamaged, match=name):
        load_checkpoint(path)


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


def test_hostile_pickle_is_refused_by_the_loader(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, marker = saved / "step-00000200", tmp_path / "executed"
    torch.save({"optimizer": Hostile(marker)}, path / TRAINING)
    write_manifest(path, 200, None)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(CheckpointDamaged, match="not plain data"):
        load_checkpoint(path)
    assert not marker.exists()
    torch.load(path / TRAINING, weights_only=False)  # negative control: this pickle does run code
    assert marker.exists()


def test_newer_format_is_refused_and_not_taken_for_damage(saved: Path) -> None:
    path = saved / "step-00000200"
    manifest = json.loads((path / MANIFEST).read_text()) | {"format": FORMAT + 1}
    manifest["sha256"] = _manifest_digest(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="update linnaeus"):
        load_checkpoint(path)


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


def test_tied_weights_are_stored_once_and_come_back_under_every_name(tmp_path: Path) -> None:
    state = Tied().state_dict()
    path = save_checkpoint(tmp_path, 1, **(payload(1) | {"model_state": state}))
    on_disk = load_file(path / MODEL)  # as anybody would read it
    assert "embed.weight" in on_disk and "out.weight" not in on_disk
    loaded = load_checkpoint(path).model_state
    assert set(loaded) == set(state)
    assert all(torch.equal(loaded[name], state[name]) and loaded[name].dtype == state[name].dtype for name in state)
    other = Tied()
    other.load_state_dict(loaded)
    assert other.out.weight is other.embed.weight and torch.equal(other.out.weight, state["out.weight"])


def test_changing_what_was_loaded_leaves_the_file_alone(saved: Path) -> None:
    loaded = load_checkpoint(saved / "step-00000200")
    loaded.model_state["head.weight"].add_(1)
    verify(loaded.path)


def test_wrapper_names_never_reach_the_file(tmp_path: Path) -> None:
    state = {f"module._orig_mod.{k}": v for k, v in Tied().state_dict().items()}
    path = save_checkpoint(tmp_path, 1, **(payload(1) | {"model_state": state, "ema_state": state}))
    assert set(load_checkpoint(path).model_state) == set(Tied().state_dict())
    assert not [name for name in load_file(path / EMA) if name.startswith(("module", "_orig_mod"))]


def test_convert_ddp_state_strips_only_what_leads() -> None:
    state = {"module._orig_mod.module.a.module.w": 1, "_orig_mod.b": 2, "encoder.module.c": 3, "modular.d": 4, "x._orig_mod.e": 5}
    assert convert_ddp_state(state) == {"a.module.w": 1, "b": 2, "encoder.module.c": 3, "modular.d": 4, "x._orig_mod.e": 5}
    with pytest.raises(ValueError, match="both 'a'"):
        convert_ddp_state({"a": 1, "module.a": 2})


def test_a_moved_checkpoint_still_loads(saved: Path, tmp_path: Path) -> None:
    shutil.move(saved / "step-00000200", tmp_path / "to-share")
    assert load_checkpoint(tmp_path / "to-share").step == 200
