"""A copy of a run's state in host memory, into buffers that stand ready: what a checkpoint costs training.

The first copy finds fresh memory, which the system hands out page by page at a fraction of the speed of a copy; every later one of
the same layout goes into the same pages. On CUDA they are pinned, so that the device copies by itself and one wait ends it. The
memory is kept out of forked children: a loader worker that shared its pages would make the next copy pay for each of them anew.

Moments change in updates alone, not in the forward and backward before: in host memory they may be left to a thread until then, two
thirds of what training on a CPU waits for with AdamW. From a GPU all is copied at once (1.2 GB in 0.03 s from an H100).
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.weight_files import identity

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

log = logging.getLogger("linnaeus")

ALIGNED = 64  # bytes; a cache line
THREADS = 4  # more do not copy faster than memory delivers
LARGE = 1 << 20  # bytes of a tensor that is worth a thread
PIECE = 16 << 20  # bytes a thread copies at a time, so that they end together


class HostSnapshot:
    """Copies nested dicts, lists and tuples with tensors in them. A snapshot is whole after `finish` and valid until the next `take`, which
    overwrites it."""

    def __init__(self) -> None:
        self._left: list[tuple[np.ndarray, np.ndarray]] = []
        self._finishing = threading.Lock()
        self._layout: list[tuple[Any, ...]] = []
        self._hosts: list[Tensor] = []
        self._memory: _HostMemory | None = None

    def take(self, value: Any, steady: Any = None) -> Any:
        """`value` with its containers copied and its tensors replaced by host copies of their own; two names of one tensor become two
        names of one copy, dense strides stay. Returns when the values are there, but for large tensors in host memory whose every name is
        within `steady`, which is a dict, list or tuple of `value` itself: `finish` copies them, and nothing may change their memory
        before. MemoryError or OSError: no room."""
        sources: list[Tensor] = []
        places: dict[int, int] = {}  # id of a tensor -> its place among the sources
        first: dict[tuple[object, ...], int] = {}
        for tensor in _tensors(value):
            place = first.setdefault(identity(tensor), len(sources)) if tensor.numel() else len(sources)
            if place == len(sources):
                sources.append(tensor.detach())
            places[id(tensor)] = place
        hosts = self._hosts_for(sources)
        at_once = {places[id(tensor)] for tensor in _tensors(value, without=steady)}
        pairs = list(zip(hosts, sources, strict=True))
        left = {place for place, pair in enumerate(pairs) if place not in at_once and _go_as_bytes(*pair)}
        copy_to_host([pair for place, pair in enumerate(pairs) if place not in left])
        self._left = _pieces([pairs[place] for place in sorted(left)])
        return _rebuilt(value, places, hosts)

    def finish(self) -> None:
        """Copy what `take` has left, or wait for the thread that does. One thread alone: no pool may be begun while the interpreter
        exits, and training has the other cores."""
        import numpy as np

        with self._finishing:
            while self._left:
                np.copyto(*self._left[-1])
                self._left.pop()  # only now: an exception on the way, as from a signal, must not pass for a copy

    @property
    def is_finished(self) -> bool:
        return not self._left

    def release(self) -> None:
        """Give the memory back once nobody holds a snapshot."""
        self._layout, self._hosts = [], []
        if self._memory is not None:
            self._memory.unpin()
            self._memory = None

    def _hosts_for(self, sources: list[Tensor]) -> list[Tensor]:
        layout = [(tensor.dtype, tensor.shape, _dense_strides(tensor)) for tensor in sources]
        if layout != self._layout:
            needed = sum(_padded(tensor.nbytes) for tensor in sources)
            pinned = any(tensor.is_cuda for tensor in sources)
            if self._memory is None or self._memory.size < needed or (pinned and not self._memory.pinned):
                self.release()
                self._memory = _HostMemory(needed, pinned)
            self._hosts = self._memory.tensors(layout)
            self._layout = layout
        return self._hosts


class _HostMemory:
    """Anonymous memory, page-locked if wanted, that children do not inherit."""

    def __init__(self, size: int, pinned: bool) -> None:
        import torch

        self.size, self.pinned = size, False
        self._map = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in ("MADV_DONTFORK", "MADV_HUGEPAGE"):  # where the system has them
            if hasattr(mmap, advice):
                with contextlib.suppress(OSError):  # a kernel without huge pages
                    self._map.madvise(getattr(mmap, advice))
        self._address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        if pinned:
            code = int(torch.cuda.cudart().cudaHostRegister(self._address, len(self._map), 0))
            self.pinned = code == 0
            if code:
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device="cuda")  # takes the error off, which would be found by whatever asks next
                log.warning("the host buffer of the checkpoints could not be pinned (CUDA error %d); copying into it takes longer", code)

    def tensors(self, layout: list[tuple[Any, ...]]) -> list[Tensor]:
        """One tensor per (dtype, shape, strides), each with a storage of exactly its size, as `torch.save` writes whole storages."""
        import torch

        tensors, offset = [], 0
        for dtype, shape, strides in layout:
            size = shape.numel() * dtype.itemsize
            if size:
                raw = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=offset)
                tensors.append(raw.view(dtype).as_strided(shape, strides))
            else:
                tensors.append(torch.empty(shape, dtype=dtype))
            offset += _padded(size)
        return tensors

    def unpin(self) -> None:
        if self.pinned:
            import torch

            code = int(torch.cuda.cudart().cudaHostUnregister(self._address))
            if code:
                log.warning("the host buffer of the checkpoints could not be unpinned (CUDA error %d)", code)
            self.pinned = False


def copy_to_host(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Fill the first of each pair from the second. Copies from CUDA are queued on the current streams, behind the update that made the
    values; one wait per device then ends them all."""
    import torch

    with torch.no_grad():
        for host, source in pairs:
            if not source.is_cpu:
                host.copy_(source, non_blocking=source.is_cuda)
        _copy_in_memory([pair for pair in pairs if pair[1].is_cpu])
    for device in {source.device for _, source in pairs if source.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def _copy_in_memory(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Large tensors as bytes on several cores, by numpy, which at that is a sixth faster than torch; small ones in one go."""
    import numpy as np
    import torch

    small: list[tuple[Tensor, Tensor]] = []
    large: list[tuple[Tensor, Tensor]] = []
    for pair in pairs:
        (large if _go_as_bytes(*pair) else small).append(pair)
    if small:
        torch._foreach_copy_([host for host, _ in small], [source for _, source in small])
    if large:
        with ThreadPoolExecutor(min(THREADS, _cores()), thread_name_prefix="snapshot") as pool:
            list(pool.map(np.copyto, *zip(*_pieces(large), strict=True)))


def _go_as_bytes(host: Tensor, source: Tensor) -> bool:
    """Whether to copy the memory instead of the values: large tensors on the CPU."""
    return source.is_cpu and host.nbytes >= LARGE and _lie_alike(host, source)


def _lie_alike(host: Tensor, source: Tensor) -> bool:
    """Whether the bytes of one are those of the other: a source without gaps, whose values are stored as they are."""
    return host.stride() == source.stride() and not source.is_conj() and not source.is_neg()


def _pieces(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The memory of pairs that go as bytes, cut alike."""
    return [piece for host, source in pairs for piece in zip(_bytes(host), _bytes(source), strict=True)]


def _bytes(tensor: Tensor) -> list[np.ndarray]:
    """The memory of a tensor without gaps."""
    import torch

    raw = torch.empty(0, dtype=torch.uint8)
    raw.set_(tensor.untyped_storage(), tensor.storage_offset() * tensor.element_size(), (tensor.nbytes,), (1,))
    return [piece.numpy() for piece in raw.split(PIECE)]


def _cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tensors(value: Any, without: Any = None) -> Iterator[Tensor]:
    """All of `value`, without what is met in the part `without` of it."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif value is without:
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, without)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, without)


def _rebuilt(value: Any, places: dict[int, int], hosts: list[Tensor]) -> Any:
    if id(value) in places:
        return hosts[places[id(value)]]
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, _rebuilt(item, places, hosts)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_rebuilt(item, places, hosts) for item in value)
    return value


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of the copy: those of the tensor where it fills its memory without gaps, in whatever order, else the plain ones."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                break
            expected *= size
    else:
        return tensor.stride()
    plain, step = [], 1
    for size in reversed(tensor.shape):
        plain.append(step)
        step *= size
    return tuple(reversed(plain))
