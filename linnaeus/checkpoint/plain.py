"""What a checkpoint may hold: values that `weights_only=True` or JSON gives back as they were."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

PLAIN = (bool, int, float, str, type(None))


def assert_plain(value: Any, where: str, *, tensors: bool) -> None:
    """TypeError naming the place of the first value that `weights_only=True` or JSON would not give back as it was."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            if type(key) is not str and not (tensors and type(key) is int):
                raise TypeError(f"{where}: key {key!r} is a {type(key).__name__}, not a string")
            assert_plain(item, f"{where}[{key!r}]", tensors=tensors)
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):
            assert_plain(item, f"{where}[{i}]", tensors=tensors)
    elif type(value) not in PLAIN and not (tensors and _is_tensor(value)):
        raise TypeError(f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds plain values only")


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
