"""Which optimizer settings each parameter gets: groups chosen by filters, the first match wins.

A group of the configuration is `{filter: {...}, lr_scale: 0.1, weight_decay: 0.0}`. A filter is a dict whose entries must all
hold: `name` (a glob over the whole name, or a regular expression searched in it when it begins with `re:`), `dim` (number of
dimensions, one or a list), `layer` (class of the module that owns the parameter, base classes included, one or a list), `not` (a
filter), `any` and `all` (lists of filters). What no group takes gets the settings of the optimizer, except that norms, biases and
tokens are not decayed: parameters with fewer than two dimensions or named in `model.no_decay`. That exception also holds inside
a group that sets no weight decay of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from linnaeus.errors import ConfigError

FILTER_KEYS = ("name", "dim", "layer", "not", "any", "all")
GROUP_KEYS = ("filter", "lr_scale", "weight_decay")


@dataclass(frozen=True)
class Parameter:
    """A trainable parameter with what filters may ask about it."""

    name: str
    tensor: Tensor
    owner: nn.Module


@dataclass(frozen=True)
class ParamGroup:
    """Parameters of one dtype that share their settings. `lr_scale` multiplies the optimizer's learning rate."""

    label: str
    parameters: tuple[Parameter, ...]
    lr_scale: float
    weight_decay: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def tensors(self) -> list[Tensor]:
        return [parameter.tensor for parameter in self.parameters]


Filter = Callable[[Parameter], bool]


def trainable_parameters(model: nn.Module) -> list[Parameter]:
    """The parameters that require a gradient, in the model's order, tied ones once; compile prefixes are taken off the names."""
    found: list[Parameter] = []
    seen: set[int] = set()
    for path, module in model.named_modules():
        for leaf, tensor in module.named_parameters(recurse=False):
            if tensor.requires_grad and id(tensor) not in seen:
                seen.add(id(tensor))
                found.append(Parameter(f"{path}.{leaf}".lstrip(".").replace("_orig_mod.", ""), tensor, module))
    return found


def parse_filter(spec: Any, key: str) -> Filter:
    """A filter as a predicate. Raises ConfigError naming `key` for anything that is not a filter."""
    if not isinstance(spec, Mapping) or not spec:
        raise ConfigError(f"{key}={spec!r}: a filter is a dict with at least one of {', '.join(FILTER_KEYS)}")
    tests: list[Filter] = []
    for word, value in spec.items():
        if word not in FILTER_KEYS:
            raise ConfigError(f"{key}.{word}: no such test; a filter may hold {', '.join(FILTER_KEYS)}")
        tests.append(_PARSERS[word](value, f"{key}.{word}"))
    return lambda parameter: all(test(parameter) for test in tests)


def _name_filter(value: Any, key: str) -> Filter:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key}={value!r}: give a glob such as `blocks.*.weight`, or `re:` and a regular expression")
    if not value.startswith("re:"):
        return lambda parameter: fnmatchcase(parameter.name, value)
    try:
        pattern = re.compile(value.removeprefix("re:"))
    except re.error as error:
        raise ConfigError(f"{key}={value!r}: not a regular expression: {error}") from error
    return lambda parameter: pattern.search(parameter.name) is not None


def _dim_filter(value: Any, key: str) -> Filter:
    dims = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not dims or any(isinstance(dim, bool) or not isinstance(dim, int) for dim in dims):
        raise ConfigError(f"{key}={value!r}: give a number of dimensions or a list of them, such as 1 or [1, 2]")
    return lambda parameter: parameter.tensor.ndim in dims


def _layer_filter(value: Any, key: str) -> Filter:
    layers = [value] if isinstance(value, str) else value
    if not isinstance(layers, Sequence) or not layers or not all(isinstance(layer, str) for layer in layers):
        raise ConfigError(f"{key}={value!r}: give the class name of a layer or a list of them, such as LayerNorm")
    return lambda parameter: any(base.__name__ in layers for base in type(parameter.owner).__mro__)


def _not_filter(value: Any, key: str) -> Filter:
    inner = parse_filter(value, key)
    return lambda parameter: not inner(parameter)


def _list_filter(combine: Callable[..., bool]) -> Callable[[Any, str], Filter]:
    def parse(value: Any, key: str) -> Filter:
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise ConfigError(f"{key}={value!r}: give a list of filters")
        inner = [parse_filter(spec, f"{key}[{i}]") for i, spec in enumerate(value)]
        return lambda parameter: combine(test(parameter) for test in inner)

    return parse


_PARSERS: dict[str, Callable[[Any, str], Filter]] = {
    "name": _name_filter,
    "dim": _dim_filter,
    "layer": _layer_filter,
    "not": _not_filter,
    "any": _list_filter(any),
    "all": _list_filter(all),
}


def parameter_groups(model: nn.Module, specs: Sequence[Mapping[str, Any]], weight_decay: float) -> list[ParamGroup]:
    """Cut the trainable parameters of `model` into groups.

    Raises ConfigError for a malformed group, one that sets nothing, one that takes no parameter, and a model with none."""
    remaining = trainable_parameters(model)
    if not remaining:
        raise ConfigError("model: none of its parameters requires a gradient, so there is nothing to train")
    spared = _spared_names(model, remaining)
    groups: list[ParamGroup] = []
    for i, spec in enumerate(specs):
        key = f"optimizer.param_groups[{i}]"
        accepts, lr_scale, decay = _parse_group(spec, key)
        taken = [parameter for parameter in remaining if accepts(parameter)]
        if not taken:
            raise ConfigError(f"{key}: its filter takes no parameter that an earlier group left; correct the filter or remove the group")
        remaining = [parameter for parameter in remaining if not accepts(parameter)]
        groups += _split(f"group {i}", taken, lr_scale, decay, weight_decay, spared)
    return groups + _split("default", remaining, 1.0, None, weight_decay, spared)


def _spared_names(model: nn.Module, parameters: list[Parameter]) -> set[str]:
    """`model.no_decay` may name what this variant of the model lacks: timm lists its tokens whether it built them or not."""
    named = {name.replace("_orig_mod.", "") for name in getattr(model, "no_decay", ())}
    return named | {parameter.name for parameter in parameters if parameter.tensor.ndim < 2}


def _parse_group(spec: Any, key: str) -> tuple[Filter, float, float | None]:
    if not isinstance(spec, Mapping) or "filter" not in spec:
        raise ConfigError(f"{key}={spec!r}: a group is a dict with `filter` and at least one of lr_scale, weight_decay")
    unknown = [word for word in spec if word not in GROUP_KEYS]
    if unknown:
        raise ConfigError(f"{key}.{unknown[0]}: no such setting; a group may hold {', '.join(GROUP_KEYS)}")
    if len(spec) < 2:
        raise ConfigError(f"{key}: it sets nothing; give it lr_scale or weight_decay, or remove it")
    lr_scale, decay = spec.get("lr_scale", 1.0), spec.get("weight_decay")
    for word, value in (("lr_scale", lr_scale), ("weight_decay", decay)):
        if word in spec and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf")):
            raise ConfigError(f"{key}.{word}={value!r}: give a number that is at least 0")
    return parse_filter(spec["filter"], f"{key}.filter"), float(lr_scale), None if decay is None else float(decay)


def _split(
    label: str, parameters: list[Parameter], lr_scale: float, decay: float | None, default_decay: float, spared: set[str]
) -> list[ParamGroup]:
    """By weight decay and dtype: the fused kernels want lists of one dtype and one set of numbers."""
    parts: dict[tuple[float, Any], list[Parameter]] = {}
    for parameter in parameters:
        own = decay if decay is not None else 0.0 if parameter.name in spared else default_decay
        parts.setdefault((own, parameter.tensor.dtype), []).append(parameter)
    return [ParamGroup(label, tuple(members), lr_scale, own) for (own, _), members in parts.items()]


def describe_groups(groups: Sequence[ParamGroup], optimizers: Sequence[str] | None = None) -> list[str]:
    """One line per group: settings, sizes, and the names it holds with block numbers folded into `*`."""
    lines = []
    for i, group in enumerate(groups):
        size = sum(tensor.numel() for tensor in group.tensors)
        patterns = list(dict.fromkeys(re.sub(r"(^|\.)\d+(?=\.[^.]+\.)", r"\1*", name) for name in group.names))
        shown = ", ".join(patterns[:8]) + (f" and {len(patterns) - 8} more" if len(patterns) > 8 else "")
        head = f"{optimizers[i]}, {group.label}" if optimizers else group.label
        lines.append(
            f"{head}: weight decay {group.weight_decay:g}, lr x{group.lr_scale:g}, {len(group.names)} tensors, {size:,} values: {shown}"
        )
    return lines
