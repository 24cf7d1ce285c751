"""Pass batches between processes through shared memory that is reused instead of allocated for each batch.

New memory costs a page fault for every 4 kB: several milliseconds for a batch of photographs. A slot is a part of the shared memory that
keeps its pages. Each slot is used by one process at a time: the writer passes the number of the slot and the `Layout` of its contents
through a pipe, and the reader gets tensors that are views of the slot. All slots are parts of one file without a name, which disappears
with the processes that use it. A value is pickled; the bytes of its tensors and arrays are copied once, into the slot."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

STRIDE, MOST = 2**36, 2**14  # largest size of a slot in bytes, largest number of slots; only pages that are written use memory
ALIGNMENT = 64  # bytes


class Layout(NamedTuple):
    """Sizes in bytes of the parts of a slot: first the pickled value, then each tensor and array.

    Each part starts at a multiple of `ALIGNMENT`."""

    sizes: tuple[int, ...]

    def ends(self) -> list[int]:
        """Return the offset in bytes at which each part ends, including the padding after it."""
        return list(accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in self.sizes))


class SharedSlots:
    """Numbered slots (reusable parts) of shared memory. Create the object before the processes that share it are forked."""

    def __init__(self) -> None:
        self._file = _anonymous_file()
        os.ftruncate(self._file, STRIDE * MOST)
        self._memory: dict[int, mmap.mmap] = {}

    def close(self) -> None:
        """Close the shared file. Tensors that are views of a slot stay valid; `write` and `read` fail afterwards."""
        os.close(self._file)

    def write(self, slot: int, value: Any) -> Layout:
        """Write `value`, any object that can be pickled, to a slot. Return the layout of the slot, which `read` needs."""
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        _TensorPickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
        parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
        layout = Layout(tuple(len(part) for part in parts))
        ends = layout.ends()
        memory = memoryview(self._map(slot, ends[-1]))
        for part, start in zip(parts, [0, *ends], strict=False):
            memory[start : start + len(part)] = part
        return layout

    def read(self, slot: int, layout: Layout, mapped: Callable[[mmap.mmap], None] | None = None) -> tuple[Any, np.ndarray]:
        """Return the value in a slot, and the array of bytes that the tensors of the value are views of.

        The array is freed together with the last of these tensors, so a weak reference to the array shows when the slot can be reused.
        `mapped`: function that is called with the memory of the slot if this call maps the slot into the process."""
        ends = layout.ends()
        lease = np.frombuffer(self._map(slot, ends[-1], mapped), dtype=np.uint8, count=ends[-1])
        memory = memoryview(lease)  # type: ignore[arg-type]
        parts = [memory[start : start + size] for start, size in zip([0, *ends], layout.sizes, strict=False)]
        return pickle.loads(parts[0], buffers=parts[1:]), lease

    def _map(self, slot: int, size: int, mapped: Callable[[mmap.mmap], None] | None = None) -> mmap.mmap:
        """Return the memory of a slot, at least `size` bytes. The first call maps the slot into the process, and a later call with a larger
        `size` maps it again."""
        memory = self._memory.get(slot)
        if memory is None or len(memory) < size:
            assert size <= STRIDE and slot < MOST, (size, slot)
            whole = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            memory = self._memory[slot] = mmap.mmap(self._file, whole, offset=slot * STRIDE)
            if mapped is not None:
                mapped(memory)
        return memory


def _anonymous_file() -> int:
    """Return the descriptor of a file without a name, in memory; on systems other than Linux, of a deleted file on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("batches")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _TensorPickler(pickle.Pickler):
    """A pickler that passes the bytes of tensors out of band (`buffer_callback`), as pickle protocol 5 does for numpy arrays."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        value = value.detach()
        order = sorted(range(value.dim()), key=value.stride, reverse=True)
        dense = value.permute(order)  # keeps the memory format, such as channels last
        if not dense.is_contiguous():
            value = dense = value.contiguous()
        data = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(data), value.dtype, tuple(value.shape), value.stride())


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Return a tensor with the given dtype, shape and stride. Its memory is the buffer `data`."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).as_strided(shape, stride)
