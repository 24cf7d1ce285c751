"""Weights as a safetensors file anybody can read: clean names, tied tensors once, an alias map in the metadata.

`module.` (DDP) and `_orig_mod.` (torch.compile) are names of wrappers, not of the model, and never reach a file. Two names of
one tensor (tied embeddings) are stored once; `aliases` in the file's metadata maps the other names to the one kept, and
`read_weights` gives every name back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

WRAPPERS = ("module.", "_orig_mod.")
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


def _identity(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def split_tied(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(each tensor once, alias -> name kept). Only exact twins are tied; other views of shared memory stay tensors of their own."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name in sorted(state):
        tensor = state[name]
        owner = first.setdefault(_identity(tensor), name) if tensor.numel() else name
        if owner == name:
            kept[name] = tensor
        else:
            aliases[name] = owner
    return kept, aliases


def _own_memory(tensor: Tensor) -> Tensor:
    """On the host, contiguous, and sharing its storage with nothing (safetensors refuses shared memory)."""
    host = tensor.detach().cpu().contiguous()
    whole = host.untyped_storage().nbytes() == host.numel() * host.element_size()
    return host if whole else host.clone()


def write_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a state dict; the file is not flushed to the disk (committing its directory does that)."""
    from safetensors.torch import save_file

    kept, aliases = split_tied(convert_ddp_state(state))
    metadata = {"format": "pt", "aliases": json.dumps(aliases, sort_keys=True)}
    save_file({name: _own_memory(tensor) for name, tensor in kept.items()}, path, metadata=metadata)


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
