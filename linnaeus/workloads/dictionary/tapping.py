"""Read and replace the output of one module of a network, as rows of activations.

An output [N, d] is used as it is. An output [B, T, d], such as tokens, becomes B T rows. An output [B, C, H, W], such as a feature map,
becomes B H W rows of C numbers, ordered by image, then by y, then by x. With `channels="last"`, an output [B, H, W, C] becomes rows in this
order, too.

    with Tap(find_module(model, "blocks.1")) as tap:
        model(batch)
    tap.rows                                            # float [N, d]
    with Tap(find_module(model, "blocks.1"), edit):     # the output is replaced by edit(rows)
        model(batch)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.config.contracts import class_name
from linnaeus.errors import ConfigError

Edit = Callable[[Tensor], Tensor]
CHANNELS_LAST, CHANNELS_FIRST = (nn.Linear, nn.LayerNorm), (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)


def find_module(model: nn.Module, name: str) -> nn.Module:
    """Return the module of `model` with the dotted `name`, as in `named_modules()`.

    Raise `ConfigError` for an unknown name; the message has the most similar names."""
    modules = {path: module for path, module in model.named_modules() if path}
    if name not in modules:
        last = name.rpartition(".")[2]
        close = difflib.get_close_matches(name, modules, 5) or [path for path in modules if last and last in path][:5] or list(modules)[:5]
        raise ConfigError(f"the model has no module {name!r}; the nearest ones are {', '.join(close)}")
    return modules[name]


def to_rows(output: Tensor, channels: str = "first") -> Tensor:
    """Return the output of a module as rows [N, d]. Raise `ConfigError` if `output` does not have 2, 3 or 4 dimensions.

    channels: dimension of the channels in an output of four dimensions, "first" ([B, C, H, W]) or "last" ([B, H, W, C])."""
    if output.dim() == 4 and channels == "first":
        return output.movedim(1, 3).flatten(0, 2)
    if output.dim() in (2, 3, 4):
        return output.flatten(0, -2)
    raise ConfigError(f"the module returns {list(output.shape)}; activations are [N, d], [B, T, d] or [B, C, H, W]")


def from_rows(rows: Tensor, like: Tensor, channels: str = "first") -> Tensor:
    """Return `rows` [N, d] in the shape, dtype and memory format of the output `like`; the inverse of `to_rows`."""
    if like.dim() != 4 or channels == "last":
        return rows.reshape(like.shape).to(like.dtype)
    batch, maps, height, width = like.shape
    last = like.is_contiguous(memory_format=torch.channels_last)
    found = rows.reshape(batch, height, width, maps).movedim(3, 1).to(like.dtype)
    return found.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


class Tap:
    """Context manager that records the output of `module` as rows [N, d]. If `edit` is given, the output is replaced by `edit(rows)`.

    If the module runs several times, as in test-time augmentation, each output is edited, and the last output before the edit is recorded.
    channels: dimension of the channels in an output of four dimensions, "first" or "last". shape: shape of the last output; [B, C, H, W]
    for feature maps, also with `channels="last"`."""

    def __init__(self, module: nn.Module, edit: Edit | None = None, channels: str = "first") -> None:
        self.module, self.edit, self.channels = module, edit, channels
        self.shape: tuple[int, ...] = ()
        self._rows: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        """Return the last output of the module within the context, [N, d], before the edit. Raise `ConfigError` if the module did not
        run."""
        if self._rows is None:
            raise ConfigError(f"the module ({class_name(type(self.module))}) is not used when the model runs; choose another one")
        return self._rows

    def __enter__(self) -> Tap:
        self.shape, self._rows = (), None
        self._handle = self.module.register_forward_hook(self._record)
        return self

    def __exit__(self, *error: Any) -> None:
        self._handle.remove()

    def _record(self, module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            found = f"the module ({class_name(type(module))}) returns {type(output).__name__}"
            raise ConfigError(f"{found}, not one tensor of floating-point numbers; choose a part of it, or the module around it")
        self._check_channels(module, output)
        self._rows = rows = to_rows(output, self.channels)
        last = output.dim() == 4 and self.channels == "last"
        self.shape = tuple((output.movedim(3, 1) if last else output).shape)
        return None if self.edit is None else from_rows(self.edit(rows), output, self.channels)

    def _check_channels(self, module: nn.Module, output: Tensor) -> None:
        """Raise `ConfigError` if `self.channels` contradicts the type of `module`, such as "last" for a Conv2d. Outputs without four
        dimensions pass."""
        known = "last" if isinstance(module, CHANNELS_LAST) else "first" if isinstance(module, CHANNELS_FIRST) else self.channels
        if output.dim() == 4 and known != self.channels:
            found = f"the module ({class_name(type(module))}) returns {list(output.shape)}, with its channels {known}"
            raise ConfigError(f"{found}; set dictionary.channels={known}")
