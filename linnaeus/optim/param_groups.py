"""Parameter groups: the learning-rate scale and weight decay of each parameter, selected by filters. The first matching group applies.

A group in the configuration is `{filter: {...}, lr_scale: 0.1, weight_decay: 0.0}`. A parameter matches a filter if it matches all entries
of the filter: `name` (a glob over the whole name, or after `re:` a regular expression searched in the name), `dim` (number of dimensions,
one or a list), `layer` (class of the module that owns the parameter, or a base class of it, one or a list), `not` (a filter), `any` and
`all` (lists of filters).

`optimizer.layer_decay` multiplies the learning rates of all groups, layer by layer.

Parameters that match no group have the settings of the optimizer. The default weight decay does not apply to norms, biases and tokens,
which are parameters with fewer than two dimensions or named in `model.no_decay`: their weight decay is 0, also inside a group that does not
set a weight decay."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from linnaeus.errors import ConfigError, counted

FILTER_KEYS = ("name", "dim", "layer", "not", "any", "all")
GROUP_KEYS = ("filter", "lr_scale", "weight_decay")


@dataclass(frozen=True)
class Parameter:
    """A trainable parameter: its dotted name, its tensor and the module whose attribute it is."""

    name: str
    tensor: Tensor
    owner: nn.Module


@dataclass(frozen=True)
class ParamGroup:
    """Parameters of one dtype with the same learning-rate scale and weight decay. `label` names the group in logs."""

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
    """Return the parameters that require a gradient, in the order of the model.

    A tied parameter occurs once, under its first name. The prefix `_orig_mod.` of compiled modules is removed from the names."""
    found: list[Parameter] = []
    seen: set[int] = set()
    for path, module in model.named_modules():
        for leaf, tensor in module.named_parameters(recurse=False):
            if tensor.requires_grad and id(tensor) not in seen:
                seen.add(id(tensor))
                found.append(Parameter(f"{path}.{leaf}".lstrip(".").replace("_orig_mod.", ""), tensor, module))
    return found


def parse_filter(spec: Any, key: str) -> Filter:
    """Return a function that returns True if a parameter matches `spec`, a filter of the configuration.

    Raise `ConfigError`, naming `key`, if `spec` is malformed."""
    if not isinstance(spec, Mapping) or not spec:
        raise ConfigError(f"{key}={spec!r}: a filter must be a dict with at least one of {', '.join(FILTER_KEYS)}")
    conditions: list[Filter] = []
    for name, value in spec.items():
        if name not in FILTER_KEYS:
            raise ConfigError(f"{key}.{name}: unknown key; choose from {', '.join(FILTER_KEYS)}")
        conditions.append(_PARSERS[name](value, f"{key}.{name}"))
    return lambda parameter: all(condition(parameter) for condition in conditions)


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
        return lambda parameter: combine(condition(parameter) for condition in inner)

    return parse


_PARSERS: dict[str, Callable[[Any, str], Filter]] = {
    "name": _name_filter,
    "dim": _dim_filter,
    "layer": _layer_filter,
    "not": _not_filter,
    "any": _list_filter(any),
    "all": _list_filter(all),
}


def parameter_groups(
    model: nn.Module, specs: Sequence[Mapping[str, Any]], weight_decay: float, layer_decay: float | None = None
) -> list[ParamGroup]:
    """Divide the trainable parameters of `model` into groups. `specs` is `optimizer.param_groups`, `weight_decay` the default weight decay.

    `layer_decay`: the learning-rate scale of each parameter is multiplied by this number to the power of `model.layer_distances()`, the
    number of layers between the parameter and the output (Clark et al. 2020, "ELECTRA"). Raise `ConfigError` for a malformed group, a group
    that sets nothing or matches no parameter, a model without trainable parameters, and `layer_decay` for a model without layers."""
    remaining = trainable_parameters(model)
    if not remaining:
        raise ConfigError("model: no parameter requires a gradient, so there is nothing to train; check trainer.freeze")
    no_decay_names = _no_decay_names(model, remaining)
    groups: list[ParamGroup] = []
    for i, spec in enumerate(specs):
        key = f"optimizer.param_groups[{i}]"
        matches, lr_scale, decay = _parse_group(spec, key)
        matched = [parameter for parameter in remaining if matches(parameter)]
        if not matched:
            raise ConfigError(f"{key}: its filter matches no parameter outside the earlier groups; correct the filter or remove the group")
        remaining = [parameter for parameter in remaining if not matches(parameter)]
        groups += _split(f"group {i}", matched, lr_scale, decay, weight_decay, no_decay_names)
    groups += _split("default", remaining, 1.0, None, weight_decay, no_decay_names)
    return groups if layer_decay is None else [part for group in groups for part in _by_layer(group, _distances(model), layer_decay)]


def _distances(model: nn.Module) -> dict[str, int]:
    """Return `model.layer_distances()`. Raise `ConfigError` if it is empty or the model does not have this method."""
    found: dict[str, int] = getattr(model, "layer_distances", dict)()
    if not found:
        raise ConfigError("optimizer.layer_decay: this model does not have repeated blocks or other layers in an order; use null")
    return found


def _by_layer(group: ParamGroup, distances: Mapping[str, int], layer_decay: float) -> list[ParamGroup]:
    """Split a group into one for each distance from the output, the farthest first. Multiply each learning-rate scale by `layer_decay` to
    the power of the distance."""
    found: dict[int, list[Parameter]] = {}
    for parameter in group.parameters:
        found.setdefault(distances.get(parameter.name, 0), []).append(parameter)
    return [
        replace(group, parameters=tuple(found[distance]), lr_scale=group.lr_scale * layer_decay**distance)
        for distance in sorted(found, reverse=True)
    ]


def _no_decay_names(model: nn.Module, parameters: list[Parameter]) -> set[str]:
    """Return the names of the parameters without weight decay: names in `model.no_decay`, and parameters with fewer than two dimensions.

    `model.no_decay` may contain names that the model does not have: timm lists its tokens even if the model is built without them."""
    named = {name.replace("_orig_mod.", "") for name in getattr(model, "no_decay", ())}
    return named | {parameter.name for parameter in parameters if parameter.tensor.ndim < 2}


def _parse_group(spec: Any, key: str) -> tuple[Filter, float, float | None]:
    if not isinstance(spec, Mapping) or "filter" not in spec:
        raise ConfigError(f"{key}={spec!r}: a group must be a dict with `filter` and at least one of lr_scale, weight_decay")
    unknown = [name for name in spec if name not in GROUP_KEYS]
    if unknown:
        raise ConfigError(f"{key}.{unknown[0]}: unknown key; choose from {', '.join(GROUP_KEYS)}")
    if len(spec) < 2:
        raise ConfigError(f"{key} sets nothing; set lr_scale or weight_decay, or remove the group")
    lr_scale, decay = spec.get("lr_scale", 1.0), spec.get("weight_decay")
    for name, value in (("lr_scale", lr_scale), ("weight_decay", decay)):
        if name in spec and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf")):
            raise ConfigError(f"{key}.{name}={value!r}; it must be a number that is at least 0")
    return parse_filter(spec["filter"], f"{key}.filter"), float(lr_scale), None if decay is None else float(decay)


def _split(
    label: str, parameters: list[Parameter], lr_scale: float, decay: float | None, default_decay: float, no_decay_names: set[str]
) -> list[ParamGroup]:
    """Split the parameters of a group by weight decay and dtype, since a fused kernel takes a list with one dtype and one weight decay.

    decay: weight decay that the group sets; None: 0 for parameters in `no_decay_names`, `default_decay` for all other parameters."""
    parts: dict[tuple[float, Any], list[Parameter]] = {}
    for parameter in parameters:
        own_decay = decay if decay is not None else 0.0 if parameter.name in no_decay_names else default_decay
        parts.setdefault((own_decay, parameter.tensor.dtype), []).append(parameter)
    return [ParamGroup(label, tuple(part), lr_scale, own_decay) for (own_decay, _), part in parts.items()]


def describe_groups(groups: Sequence[ParamGroup], optimizers: Sequence[str]) -> list[str]:
    """Return a log line for each group: its optimizer, its settings, its size and its parameter names, in which block numbers are replaced
    by `*`. Groups that differ only in the learning rate (`layer_decay`) are on one line, which gives the scale of each.

    `optimizers`: name of the optimizer of each group."""
    alike: dict[Any, list[ParamGroup]] = {}
    for group, optimizer in zip(groups, optimizers, strict=True):
        head = f"{optimizer}, {group.label}"
        alike.setdefault((head, group.weight_decay, group.parameters[0].tensor.dtype), []).append(group)
    lines = []
    for (head, weight_decay, _), parts in alike.items():
        names = [name for group in parts for name in group.names]
        size = sum(tensor.numel() for group in parts for tensor in group.tensors)
        patterns = list(dict.fromkeys(re.sub(r"(^|\.)\d+(?=\.[^.]+\.)", r"\1*", name) for name in names))
        shown = ", ".join(patterns[:8]) + (f" and {len(patterns) - 8} more" if len(patterns) > 8 else "")
        scales = ", ".join(f"x{group.lr_scale:.3g}" for group in parts) if len(parts) > 1 else f"x{parts[0].lr_scale:g}"
        lines.append(
            f"{head}: weight decay {weight_decay:g}, lr {scales}, {counted(len(names), 'tensor')}, {counted(size, 'value')}: {shown}"
        )
    return lines
