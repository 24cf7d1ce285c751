"""A copy in host memory is what was there at that instant, in memory that is used again."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from linnaeus.checkpoint import snapshot
from linnaeus.checkpoint.snapshot import HostSnapshot
from tests.checkpoint.test_format import assert_same


def state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, 7, generator=generator)
    return {
        "tied": weight,
        "again": weight,
        "view": weight.t()[1:],
        "images": torch.randn(2, 3, 4, 4, generator=generator).contiguous(memory_format=torch.channels_last),
        "spread": weight[:, :1].expand(5, 3),
        "types": [torch.full((3,), seed, dtype=kind) for kind in (torch.bfloat16, torch.bool, torch.int64, torch.uint8, torch.float64)],
        "empty": (torch.zeros(0, 3), torch.zeros(0, 3)),
        "scalar": torch.tensor(seed),
        "signed": (torch.full((2, 2), 1 + seed * 1j).conj(), torch.full((3,), 2j * seed).conj().imag),  # stored with the other sign
        "plain": OrderedDict(step=seed, name="x", nothing=None, deep=[{"a": (1, 2.5)}]),
    }


def tensors(value: Any) -> list[torch.Tensor]:
    return list(snapshot._tensors(value))


@pytest.mark.parametrize("as_bytes", [False, True])
def test_it_is_the_same_and_stays_so(as_bytes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if as_bytes:
        copy_all_as_bytes(monkeypatch)
    live, keeper = state(1), HostSnapshot()
    taken = keeper.copy(live)
    assert_same(taken, state(1))
    assert type(taken["plain"]) is OrderedDict
    for tensor in tensors(live):
        tensor.zero_() if tensor.numel() and 0 not in tensor.stride() else None
    live["plain"]["deep"][0]["a"] = "changed"
    assert_same(taken, state(1))


def copy_all_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large tensors are copied, in pieces of which most tensors here have several, the last a shorter one."""
    monkeypatch.setattr(snapshot, "LARGE", 0)
    monkeypatch.setattr(snapshot, "PIECE", 24)
    monkeypatch.setattr(snapshot, "_cores", lambda: 3)


def test_what_stays_as_it_is_is_copied_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only that: what has another name outside is copied at once, and so are small tensors."""
    monkeypatch.setattr(snapshot, "LARGE", 100)
    monkeypatch.setattr(snapshot, "PIECE", 24)
    shared, moments, count = torch.ones(64), torch.ones(2, 32), torch.ones(1)
    live = {"model": {"w": torch.ones(64), "tied": shared}, "optimizer": {"m": moments, "also": moments, "tied": shared, "step": count}}
    keeper, ones = HostSnapshot(), torch.ones(64)
    taken = keeper.copy(live, live["optimizer"])
    for tensor in (live["model"]["w"], shared, count):
        tensor.zero_()
    moments.fill_(2)
    assert not keeper.is_finished
    keeper.finish()
    assert keeper.is_finished
    assert torch.equal(taken["model"]["w"], ones) and torch.equal(taken["model"]["tied"], ones) and taken["optimizer"]["step"] == 1
    assert taken["optimizer"]["m"] is taken["optimizer"]["also"] and torch.equal(taken["optimizer"]["m"], torch.full((2, 32), 2.0))
    moments.zero_()
    keeper.finish()
    assert torch.equal(taken["optimizer"]["m"], torch.full((2, 32), 2.0)), "nothing was left"


def test_finish_waits_for_the_thread_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    copyto, inside, go = np.copyto, threading.Event(), threading.Event()

    def held(*pair: Any) -> None:
        inside.set()
        assert go.wait(30)
        copyto(*pair)

    monkeypatch.setattr(snapshot, "LARGE", 0)
    monkeypatch.setattr(np, "copyto", held)
    live, keeper = {"m": torch.ones(64)}, HostSnapshot()
    taken = keeper.copy(live, live)
    other = threading.Thread(target=keeper.finish)
    other.start()
    assert inside.wait(30)
    threading.Timer(0.2, go.set).start()
    keeper.finish()
    live["m"].zero_()
    other.join()
    assert torch.equal(taken["m"], torch.ones(64))


@pytest.mark.parametrize("after", [False, True])
def test_an_exception_does_not_pass_for_a_copy(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch raises one in the main thread, whatever that does, when a loader worker has died: before or after any of its calls."""
    copyto = np.copyto

    def interrupted(*pair: Any) -> None:
        if after:
            copyto(*pair)
        monkeypatch.setattr(np, "copyto", copyto)
        raise RuntimeError("DataLoader worker was killed")

    monkeypatch.setattr(snapshot, "LARGE", 0)
    monkeypatch.setattr(snapshot, "PIECE", 64)
    monkeypatch.setattr(np, "copyto", interrupted)
    live, keeper = {"m": torch.ones(64)}, HostSnapshot()
    taken = keeper.copy(live, live)
    with pytest.raises(RuntimeError):
        keeper.finish()
    keeper.finish()
    assert keeper.is_finished and torch.equal(taken["m"], torch.ones(64))


@pytest.mark.parametrize("forgotten", ["stride", "sign"])
def test_negative_control_bytes_are_not_values_where_they_lie_otherwise(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_all_as_bytes(monkeypatch)
    alike = {
        "stride": lambda host, source: not (source.is_conj() or source.is_neg()),
        "sign": lambda host, source: host.stride() == source.stride(),
    }
    monkeypatch.setattr(snapshot, "_lie_alike", alike[forgotten])
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        assert_same(HostSnapshot().copy(state(1)), state(1))


def test_names_of_one_tensor_stay_names_of_one_and_storages_are_of_exact_size() -> None:
    taken = HostSnapshot().copy(state(1))
    assert taken["tied"] is taken["again"] and taken["view"].data_ptr() != taken["tied"].data_ptr()
    for tensor in tensors(taken):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, "torch.save writes whole storages"
    assert taken["images"].is_contiguous(memory_format=torch.channels_last), "copied as it lies, not turned"


def test_memory_is_used_again_until_the_layout_outgrows_it() -> None:
    keeper = HostSnapshot()
    first = [tensor.data_ptr() for tensor in tensors(keeper.copy(state(1))) if tensor.numel()]
    again = keeper.copy(state(2))
    assert [tensor.data_ptr() for tensor in tensors(again) if tensor.numel()] == first
    assert_same(again, state(2))
    smaller = state(3) | {"images": torch.ones(2), "more": torch.ones(3)}
    assert min(tensor.data_ptr() for tensor in tensors(keeper.copy(smaller)) if tensor.numel()) == min(first)
    larger = state(4) | {"large": torch.ones(100_000)}
    taken = keeper.copy(larger)
    assert_same(taken, larger)
    keeper.release()
    assert_same(keeper.copy(larger), larger)


def test_what_was_taken_outlives_the_release() -> None:
    keeper = HostSnapshot()
    taken = keeper.copy(state(1))
    keeper.release()
    del keeper
    assert_same(taken, state(1))


def test_parameters_need_no_gradient_in_the_copy() -> None:
    model = nn.Linear(3, 3)
    taken = HostSnapshot().copy({"w": model.weight, "other": nn.Parameter(torch.ones(2))})
    assert not taken["w"].requires_grad and torch.equal(taken["w"], model.weight)


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="Linux tells what children inherit")
def test_children_do_not_inherit_the_memory() -> None:
    """Forked loader workers that shared its pages would make the next copy fault on every one of them."""
    keeper = HostSnapshot()
    taken = keeper.copy({"a": torch.ones(2_000_000)})
    address = taken["a"].data_ptr()
    assert "dc" in flags_of(address)
    assert "dc" not in flags_of(torch.ones(2_000_000).data_ptr()), "negative control"


def flags_of(address: int) -> list[str]:
    """The flags of the mapping that holds `address`; `dc`: not copied on fork."""
    inside = False
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                low, high = (int(part, 16) for part in first.split("-"))
                inside = low <= address < high
            elif inside and first == "VmFlags:":
                return line.split()[1:]
    return []
