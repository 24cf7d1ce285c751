"""Store activations on disk once, and read them by number from memory-mapped files.

    FOLDER/shard-00000.npy   float32 [n, d], the activations of some consecutive blocks
    FOLDER/shard-00000.json  fingerprint of the activations, and the rows of the shard that are left out (samples that cannot be decoded);
                             written after the shard, which is complete if this file exists
    FOLDER/offsets.npy       int64 [S + 1], number of the first activation of each sample; the last entry is the number of activations
    FOLDER/store.json        description, such as width and fingerprint; written last

With several processes, each writes a part of the shards. After an interruption, the next start writes the missing shards.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError, counted
from linnaeus.files import atomic_file, read_json, remove_abandoned, to_json, write_atomic
from linnaeus.workloads.dictionary.activation_source import ActivationSource, Block

log = logging.getLogger("linnaeus")

SHARD_BYTES = 64 << 20
STORE = "store.json"
OTHERS = "activations of another model, module or data"


class StoredActivations:
    """Reader of the activations in a folder that `store_activations` has written.

    width: number of dimensions d. block_offsets: int64 [blocks + 1], number of the first activation of each block."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raise `ConfigError` if store.json or a shard is missing, or if a shard is cut off."""
        content = read_json(folder / STORE)
        sizes = [] if content is None else [(rows, int(content["width"])) for rows in content["shards"]]
        if content is None or not all(_is_shard(folder, number, size) for number, size in enumerate(sizes)):
            raise ConfigError(f"data.folder: {folder} lacks files of its activations, or they are cut off; delete it, to make them again")
        self.folder, self.width = folder, int(content["width"])
        self.block_offsets = np.array(content["block_offsets"], dtype=np.int64)
        self.shard_offsets = np.concatenate([[0], np.cumsum(content["shards"])]).astype(np.int64)
        self.left_out = np.array(content["left_out"], dtype=np.int64)  # numbers of activations that do not count, ascending
        self._shards: dict[int, np.ndarray] = {}  # opened by each process when it reads them first

    def block(self, number: int) -> Block:
        """Return the activations of block `number`, on the host."""
        return Block(*self.rows(np.arange(*self.block_offsets[number : number + 2])))

    def rows(self, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the activations `numbers`, int64 [N], on the host: (float32 [N, d], bool [N]).

        The bool is False for an activation without weight in the loss, because its sample cannot be decoded."""
        found = np.empty((len(numbers), self.width), dtype=np.float32)
        shards = np.searchsorted(self.shard_offsets, numbers, side="right") - 1
        for shard in np.unique(shards):
            at = np.flatnonzero(shards == shard)
            found[at] = self._shard(int(shard))[numbers[at] - self.shard_offsets[shard]]
        return torch.from_numpy(found), torch.from_numpy(~np.isin(numbers, self.left_out))

    def _shard(self, number: int) -> np.ndarray:
        if number not in self._shards:
            self._shards[number] = np.load(self.folder / f"{_name(number)}.npy", mmap_mode="r")
        return self._shards[number]


def store_activations(source: ActivationSource, folder: Path) -> StoredActivations:
    """Write the activations of `source` to `folder`, except shards that are complete, and return a reader of them. Call this on every
    process.

    Raise `ConfigError` if the folder contains other files or activations of another source, if it cannot be written, or if the disk has too
    little space."""
    context, content = DistributedContext(), _content(source)
    shards = _shards(source)
    try:
        _check_folder(folder, content)
        if context.broadcast_object(read_json(folder / STORE) is None):  # another run may write the file between two of our reads
            folder.mkdir(parents=True, exist_ok=True)
            missing = [number for number in range(len(shards)) if not _complete(folder, number, content["fingerprint"])]
            _check_space(folder, 4 * source.width * sum(content["shards"][number] for number in missing))
            if context.is_master:
                remove_abandoned(folder)
                activations = counted(content["rows"], "activation")
                log.info("%s of %s, %d numbers each, are written to %s", activations, source.name, source.width, folder)
            for number in (number for number in missing if number % context.world_size == context.rank):
                _write_shard(folder, number, [source.read(block) for block in shards[number]], content["fingerprint"])
            context.barrier()
            if context.is_master:
                _write_content(folder, source, content, len(shards))
            context.barrier()
    except OSError as error:
        raise ConfigError(f"data.folder: {folder} cannot be written ({error.strerror}); choose another folder") from None
    return StoredActivations(folder)


def _shards(source: ActivationSource) -> list[range]:
    """Return the block numbers of each shard file. A shard has about `SHARD_BYTES` bytes or fewer, but at least one block."""
    rows = int(np.diff(source.block_offsets).max())
    each = max(1, SHARD_BYTES // (4 * source.width * rows))
    return [range(first, min(first + each, source.blocks)) for first in range(0, source.blocks, each)]


def _content(source: ActivationSource) -> dict[str, Any]:
    """Return the part of store.json that does not depend on the values of the activations."""
    facts = {"format": "linnaeus-activations", "fingerprint": source.fingerprint, "run": str(source.run.path), "module": source.name}
    sizes = {"weights": source.run.weights.source, "width": source.width, "rows": int(source.offsets[-1]), "samples": source.count}
    shards = [int(source.block_offsets[blocks.stop] - source.block_offsets[blocks.start]) for blocks in _shards(source)]
    return {**facts, **sizes, "source_batch": source.source_batch, "block_offsets": source.block_offsets.tolist(), "shards": shards}


def _check_folder(folder: Path, content: dict[str, Any]) -> None:
    found = read_json(folder / STORE)
    if found is not None and found.get("fingerprint") != content["fingerprint"]:
        raise ConfigError(f"data.folder: {folder} has {OTHERS}; choose another folder")
    others = [] if found is not None or not folder.is_dir() else [path.name for path in folder.iterdir() if not _own(path.name)]
    if others:
        raise ConfigError(f"data.folder: {folder} contains {others[0]}, which does not belong to activations; choose an empty folder")


def _own(name: str) -> bool:
    return name.startswith((".", "shard-")) or name in (STORE, "offsets.npy")


def _check_space(folder: Path, needed: int) -> None:
    """Raise `ConfigError` if the disk of `folder` has less than `needed` bytes free. needed: bytes of the shards that are missing."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        sizes = f"the activations need {needed / 1e9:.1f} GB more, and {folder} has {free / 1e9:.1f} GB free"
        raise ConfigError(f"data.stored: {sizes}; set data.samples, another data.folder, or data.stored=false")


def _write_shard(folder: Path, number: int, blocks: list[Block], fingerprint: str) -> None:
    rows = torch.cat([block.rows.cpu() for block in blocks]).numpy()
    with atomic_file(folder / f"{_name(number)}.npy") as file:
        np.save(file, rows)
    left_out = (~torch.cat([block.counts for block in blocks])).nonzero().flatten().tolist()
    write_atomic(folder / f"{_name(number)}.json", to_json({"fingerprint": fingerprint, "left_out": left_out}, None))


def _write_content(folder: Path, source: ActivationSource, content: dict[str, Any], shards: int) -> None:
    with atomic_file(folder / "offsets.npy") as file:
        np.save(file, source.offsets)
    starts = np.concatenate([[0], np.cumsum(content["shards"])])
    each = [(read_json(folder / f"{_name(number)}.json") or {})["left_out"] for number in range(shards)]
    left_out = [int(starts[number]) + row for number, rows in enumerate(each) for row in rows]
    write_atomic(folder / STORE, to_json(content | {"left_out": left_out}, None))


def _complete(folder: Path, number: int, fingerprint: str) -> bool:
    """Return True if shard `number` and its JSON file exist.

    Raise `ConfigError` if the JSON file has another fingerprint: then a run that stopped before it wrote store.json has stored other
    activations."""
    facts = read_json(folder / f"{_name(number)}.json")
    if facts is None or not (folder / f"{_name(number)}.npy").is_file():
        return False
    if facts.get("fingerprint") != fingerprint:
        raise ConfigError(f"data.folder: {folder} has {OTHERS}; choose another folder")
    return True


def _is_shard(folder: Path, number: int, shape: tuple[int, int]) -> bool:
    """Return True if the .npy file of shard `number` can be opened, is not cut off and has an array of this shape."""
    try:
        found: np.ndarray = np.load(folder / f"{_name(number)}.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return False
    return found.shape == shape


def _name(number: int) -> str:
    return f"shard-{number:05d}"
