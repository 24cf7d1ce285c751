"""Write and read weights as safetensors files: names without wrapper prefixes, tied tensors stored once.

The prefixes `module.` (DDP) and `_orig_mod.` (torch.compile) are removed. A tensor with several names (tied embeddings) is stored under one
name; `aliases` in the metadata of the file maps each other name to the stored name, and `read_weights` returns all names.

Published weights of several GB are in several files. `model.safetensors.index.json` in the same directory maps each name to its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from linnaeus.checkpoint.hashing_writer import FileEntry, HashingWriter
from linnaeus.files import file_digest, text_digest

if TYPE_CHECKING:
    from torch import Tensor

WRAPPERS = ("module.", "_orig_mod.")
# torch's name of a dtype -> its name in a safetensors header
TYPES = {
    **{"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32"},
    **{"uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64"},
}
INDEX = "model.safetensors.index.json"
Value = TypeVar("Value")


def convert_ddp_state(state: Mapping[str, Value]) -> dict[str, Value]:
    """Return the state dict of a model wrapped by DDP or `torch.compile` under the names of the model itself.

    Remove all wrapper prefixes at the beginning of a name (`module._orig_mod.head` -> `head`), but none in the middle. A model must
    therefore not have a top-level submodule called `module`. Raise `ValueError` if two names become equal."""
    converted: dict[str, Value] = {}
    for name, value in state.items():
        plain = name
        while plain.startswith(WRAPPERS):
            plain = plain.partition(".")[2]
        if plain in converted:
            raise ValueError(f"two entries of the state dict are both {plain!r} without wrapper prefixes (one of them is {name!r})")
        converted[plain] = value
    return converted


def tensor_identity(tensor: Tensor) -> tuple[object, ...]:
    """Return a hashable key that is equal for two tensors with the same memory, shape, strides and dtype.

    The key of an empty tensor is unique."""
    if not tensor.numel():
        return (id(tensor),)
    return (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def split_tied(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return (name -> tensor with each tensor once, further name -> stored name).

    A tensor is stored under its alphabetically first name. Views that only overlap in memory are different tensors."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name in sorted(state):
        tensor = state[name]
        owner = first.setdefault(tensor_identity(tensor), name)
        if owner == name:
            kept[name] = tensor
        else:
            aliases[name] = owner
    return kept, aliases


def write_weights(path: Path, state: Mapping[str, Tensor]) -> FileEntry:
    """Write a state dict to a new safetensors file and return its size and hash. The caller flushes the file to the disk
    (`commit_directory`).

    The safetensors format: 8 bytes with the length of the header, a JSON header padded to a multiple of 8 bytes, then the values. Dtypes of
    8 bytes are first, so that every value is aligned. The library `safetensors` is not used because it makes a second copy of the model in
    memory and does not raise `OSError`. Raise `TypeError` for a dtype that the format does not support."""
    kept, aliases = split_tied(convert_ddp_state(state))
    order = sorted(kept, key=lambda name: (-kept[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "aliases": json.dumps(aliases, sort_keys=True)}}
    end = 0
    for name in order:
        tensor = kept[name]
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _type_name(name, tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with HashingWriter(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensor_bytes(kept[name]))
    return file.entry


def _type_name(name: str, tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in TYPES:
        raise TypeError(f"{name} is of type {kind}, which a safetensors file cannot contain")
    return TYPES[kind]


def tensor_bytes(tensor: Tensor) -> Any:
    """Return the values of a tensor in row-major order as an array of bytes, little-endian like every machine that torch runs on."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a safetensors file, with tied names, on the CPU. If `path` is an `INDEX`, read all files that it lists.

    Raise `safetensors.SafetensorError` or `ValueError` if a file is not valid."""
    if path.name == INDEX:
        return _read_shards(path)
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as file:
        aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    missing = set(aliases.values()) - set(state)
    if missing:
        raise ValueError(f"its alias map names tensors that are not in it: {', '.join(sorted(missing))}")
    return state | {alias: state[name] for alias, name in aliases.items()}


def _read_shards(index: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    files = _shards(index)
    for file in files:
        state |= read_weights(index.parent / file)
    missing = sorted(name for names in files.values() for name in names if name not in state)
    if missing:
        raise ValueError(f"its files do not have {missing[0]}{f' and {len(missing) - 1} more' * (len(missing) > 1)}")
    return state


def _shards(index: Path) -> dict[str, list[str]]:
    """Return {file: names of the tensors in this file} from an `INDEX`. Raise `ValueError` if the content of `index` is not an index, or if
    a file that it lists is absent."""
    content = json.loads(index.read_text(encoding="utf-8"))
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not all(isinstance(file, str) and Path(file).name == file for file in names.values()):
        raise ValueError("it has no weight_map of names of tensors and files")
    files: dict[str, list[str]] = {file: [] for file in sorted(names.values())}
    for name, file in names.items():
        files[file].append(name)
    absent = next((file for file in files if not (index.parent / file).is_file()), None)
    if absent is not None:
        raise ValueError(f"its file {absent} is absent; download it")
    return files


def weights_digest(path: Path) -> str:
    """Return the SHA-256 of a file of weights. For an `INDEX`, return the SHA-256 of the joined SHA-256 texts of the files that it lists.

    Raise `ValueError` for an invalid index."""
    if path.name != INDEX:
        return file_digest(path)
    return text_digest("".join(file_digest(path.parent / file) for file in _shards(path)))
