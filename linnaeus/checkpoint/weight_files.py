"""Weights as a safetensors file anybody can read: clean names, tied tensors once, an alias map in the metadata.

`module.` (DDP) and `_orig_mod.` (torch.compile) are names of wrappers, not of the model, and never reach a file. Two names of
one tensor (tied embeddings) are stored once; `aliases` in the file's metadata maps the other names to the one kept, and
`read_weights` gives every name back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from linnaeus.checkpoint.hashed import FileEntry, HashedFile

if TYPE_CHECKING:
    from torch import Tensor

WRAPPERS = ("module.", "_orig_mod.")
# Names of types in a safetensors header, by what torch calls them.
TYPES = {
    **{"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32"},
    **{"uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64"},
}
Value = TypeVar("Value")


def convert_ddp_state(state: Mapping[str, Value]) -> dict[str, Value]:
    """The state dict of a wrapped model under the names of the model itself.

    Only leading wrapper names go, as often as they repeat (`module._orig_mod.head` -> `head`); one in the middle of a name is the
    model's own. (A model must therefore not call a top-level submodule `module`.) ValueError: two names become one.
    """
    converted: dict[str, Value] = {}
    for name, value in state.items():
        plain = _strip(name)
        if plain in converted:
            raise ValueError(f"two entries of the state dict are both {plain!r} once wrapper names are removed (one of them is {name!r})")
        converted[plain] = value
    return converted


def _strip(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor, and for nothing else that holds a value."""
    return (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def split_tied(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(each tensor once, alias -> name kept). Only exact twins are tied; other views of shared memory stay tensors of their own."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name in sorted(state):
        tensor = state[name]
        owner = first.setdefault(identity(tensor), name) if tensor.numel() else name
        if owner == name:
            kept[name] = tensor
        else:
            aliases[name] = owner
    return kept, aliases


def write_weights(path: Path, state: Mapping[str, Tensor]) -> FileEntry:
    """Write a state dict as a new file and return its size and hash; it is not flushed to the disk (committing its directory does
    that). Values go from where they are to the file: no second copy of the model, and an OSError where the disk refuses one.

    The format, as safetensors defines it: the header's length as 8 bytes, a header of JSON padded to 8, then the values one after
    the other; types of 8 bytes first, so that every value is aligned. TypeError: a type the format has no name for.
    """
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
    with HashedFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(_bytes(kept[name]))
    return file.entry


def _type_name(name: str, tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in TYPES:
        raise TypeError(f"{name} is of type {kind}, which a safetensors file cannot hold")
    return TYPES[kind]


def _bytes(tensor: Tensor) -> Any:
    """The values in row-major order; little-endian, as every machine torch runs on has them."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict of `write_weights`, on the host, aliases included. Raises safetensors.SafetensorError or ValueError when
    the file is not one of ours."""
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as file:
        aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    missing = set(aliases.values()) - set(state)
    if missing:
        raise ValueError(f"its alias map names tensors it does not hold: {', '.join(sorted(missing))}")
    return state | {alias: state[name] for alias, name in aliases.items()}
