"""`HostSnapshot`: the copy has the values at the time of the call, in memory that is reused."""

import os
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

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
        "signed": (torch.full((2, 2), 1 + seed * 1j).conj(), torch.full((3,), 2j * seed).conj().imag),  # stored with the opposite sign
        "plain": OrderedDict(step=seed, name="x", nothing=None, deep=[{"a": (1, 2.5)}]),
    }


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_the_copy_is_equal_and_does_not_change(as_bytes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if as_bytes:
        copy_all_as_bytes(monkeypatch)
    live, host = state(1), HostSnapshot()
    copied = host.copy(live)
    assert_same(copied, state(1))
    assert type(copied["plain"]) is OrderedDict
    for tensor in tensors(live):
        tensor.zero_() if tensor.numel() and 0 not in tensor.stride() else None
    live["plain"]["deep"][0]["a"] = "changed"
    assert_same(copied, state(1))


def copy_all_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy small tensors like large ones, in several pieces."""
    monkeypatch.setattr(snapshot, "LARGE", 0)
    monkeypatch.setattr(snapshot, "PIECE", 24)
    monkeypatch.setattr(snapshot, "_cores", lambda: 3)


def test_deferred_tensors_are_copied_by_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors, and those with another name outside the deferred part, are copied at once."""
    monkeypatch.setattr(snapshot, "LARGE", 100)
    monkeypatch.setattr(snapshot, "PIECE", 24)
    shared, moments, count = torch.ones(64), torch.ones(2, 32), torch.ones(1)
    live = {"model": {"w": torch.ones(64), "tied": shared}, "optimizer": {"m": moments, "also": moments, "tied": shared, "step": count}}
    host, ones = HostSnapshot(), torch.ones(64)
    copied = host.copy(live, live["optimizer"])
    for tensor in (live["model"]["w"], shared, count):
        tensor.zero_()
    moments.fill_(2)
    assert host._pending
    host.finish()
    assert not host._pending
    assert torch.equal(copied["model"]["w"], ones) and torch.equal(copied["model"]["tied"], ones) and copied["optimizer"]["step"] == 1
    assert copied["optimizer"]["m"] is copied["optimizer"]["also"] and torch.equal(copied["optimizer"]["m"], torch.full((2, 32), 2.0))
    moments.zero_()
    host.finish()
    assert torch.equal(copied["optimizer"]["m"], torch.full((2, 32), 2.0)), "a second call copies nothing"


def test_finish_waits_for_the_thread_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    copyto, inside, go = np.copyto, threading.Event(), threading.Event()

    def waiting(*pair: Any) -> None:
        inside.set()
        assert go.wait(30)
        copyto(*pair)

    monkeypatch.setattr(snapshot, "LARGE", 0)
    monkeypatch.setattr(np, "copyto", waiting)
    live, host = {"m": torch.ones(64)}, HostSnapshot()
    copied = host.copy(live, live)
    other = threading.Thread(target=host.finish)
    other.start()
    assert inside.wait(30)
    threading.Timer(0.2, go.set).start()
    host.finish()
    live["m"].zero_()
    other.join()
    assert torch.equal(copied["m"], torch.ones(64))


@pytest.mark.parametrize("after", [False, True])
def test_an_exception_in_finish_loses_no_piece(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises an exception in the main thread at any instruction when a loader worker dies."""
    copyto = np.copyto

    def interrupted(*pair: Any) -> None:
        if after:
            copyto(*pair)
        monkeypatch.setattr(np, "copyto", copyto)
        raise RuntimeError("DataLoader worker was killed")

    monkeypatch.setattr(snapshot, "LARGE", 0)
    monkeypatch.setattr(snapshot, "PIECE", 64)
    monkeypatch.setattr(np, "copyto", interrupted)
    live, host = {"m": torch.ones(64)}, HostSnapshot()
    copied = host.copy(live, live)
    with pytest.raises(RuntimeError):
        host.finish()
    host.finish()
    assert not host._pending and torch.equal(copied["m"], torch.ones(64))


@pytest.mark.parametrize("ignored", ["stride", "sign"])
def test_negative_control_a_copy_of_bytes_needs_equal_layouts(ignored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_all_as_bytes(monkeypatch)
    checks = {
        "stride": lambda host, source: not (source.is_conj() or source.is_neg()),
        "sign": lambda host, source: host.stride() == source.stride(),
    }
    monkeypatch.setattr(snapshot, "_same_memory_layout", checks[ignored])
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        assert_same(HostSnapshot().copy(state(1)), state(1))


def test_tied_tensors_stay_tied_and_storages_have_their_exact_size() -> None:
    copied = HostSnapshot().copy(state(1))
    assert copied["tied"] is copied["again"] and copied["view"].data_ptr() != copied["tied"].data_ptr()
    for tensor in tensors(copied):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, "torch.save writes whole storages"
    assert copied["images"].is_contiguous(memory_format=torch.channels_last), "with the strides of the source"


def test_memory_is_reused_until_the_layout_needs_more() -> None:
    host = HostSnapshot()
    first = [tensor.data_ptr() for tensor in tensors(host.copy(state(1))) if tensor.numel()]
    again = host.copy(state(2))
    assert [tensor.data_ptr() for tensor in tensors(again) if tensor.numel()] == first
    assert_same(again, state(2))
    smaller = state(3) | {"images": torch.ones(2), "more": torch.ones(3)}
    assert min(tensor.data_ptr() for tensor in tensors(host.copy(smaller)) if tensor.numel()) == min(first)
    larger = state(4) | {"large": torch.ones(100_000)}
    copied = host.copy(larger)
    assert_same(copied, larger)
    host.release()
    assert_same(host.copy(larger), larger)


def test_a_copy_is_valid_after_the_release() -> None:
    host = HostSnapshot()
    copied = host.copy(state(1))
    host.release()
    del host
    assert_same(copied, state(1))


def test_copies_of_parameters_require_no_gradient() -> None:
    model = nn.Linear(3, 3)
    copied = HostSnapshot().copy({"w": model.weight, "other": nn.Parameter(torch.ones(2))})
    assert not copied["w"].requires_grad and torch.equal(copied["w"], model.weight)


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs /proc/self/smaps of Linux")
def test_child_processes_do_not_inherit_the_memory() -> None:
    """If forked loader workers shared its pages, the next copy would have a page fault on each of them."""
    host = HostSnapshot()
    copied = host.copy({"a": torch.ones(2_000_000)})
    address = copied["a"].data_ptr()
    assert "dc" in flags_of(address)
    assert "dc" not in flags_of(torch.ones(2_000_000).data_ptr()), "negative control"


def flags_of(address: int) -> list[str]:
    """Return the flags of the memory mapping that contains `address`. `dc`: not copied on fork."""
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
