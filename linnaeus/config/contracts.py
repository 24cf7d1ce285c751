"""Check the classes and functions of plugins: packages of users that add models, losses and other parts.

Each mistake raises a `ConfigError` of one line that names the class and the member.
"""

import dataclasses
import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from linnaeus.errors import ConfigError

T = TypeVar("T")


def check_members(instance: T, base: type, origin: str = "", pending: Sequence[str] = ()) -> T:
    """Return `instance`, after checking that it implements `base`, an abstract class or a `Protocol`. Raise `ConfigError` if it does not.

    `instance` is refused if it is a class, None or a plain value; if its class does not extend `base` (not required for a `Protocol`); if a
    required member is missing; if a method has other arguments than in `base`; or if the name of a public member is similar to an optional
    member of `base`, which is probably misspelt. Required members are the annotated attributes of `base` without a value, and the methods
    of a protocol. `pending`: required members that are set later. `origin`: the beginning of the message, such as "loss.name=focal: the
    builder returns"."""
    cls, is_protocol = type(instance), getattr(base, "_is_protocol", False)
    if origin and (cls.__module__ == "builtins" or isinstance(instance, type)):
        raise ConfigError(f"{origin} {described(instance)}, not a {class_name(base)}")
    if not is_protocol and not isinstance(instance, base):
        raise ConfigError(f"{class_name(cls)} must extend {class_name(base)}")
    public = [name for name in vars(base) if not name.startswith("_")]
    required = [name for name in inspect.get_annotations(base) if name not in vars(base) and name not in pending]
    own = set(vars(instance)).union(*(vars(c) for c in cls.__mro__ if not issubclass(base, c)))
    for name in required + (public if is_protocol else []):
        if not hasattr(instance, name):
            similar = difflib.get_close_matches(name, own, 1, 0.7)
            hint = f"; is {similar[0]} a misspelling of it?" if similar else ""
            raise ConfigError(f"{class_name(cls)} does not define {name}, which {class_name(base)} requires{hint}")
    for name in public if base.__module__.startswith("linnaeus.") else []:
        if inspect.isfunction(vars(base)[name]) and inspect.isroutine(getattr(instance, name)):
            method = getattr(instance, name)
            if getattr(method, "__func__", None) is not vars(base)[name]:
                expected = list(inspect.signature(vars(base)[name]).parameters)[1:]
                check_arguments(method, expected, f"{class_name(cls)}.{name}")
    if is_protocol or not base.__module__.startswith("linnaeus."):  # attributes of a network may have names similar to those of nn.Module
        return instance
    members = {name for c in base.__mro__ for name in (*vars(c), *inspect.get_annotations(c))}
    optional = tuple(name for name in public if not hasattr(vars(base)[name], "__isabstractmethod__"))
    for name in sorted(own - members):
        meant = "" if name.startswith("_") else _most_similar(name, optional)
        if meant:
            raise ConfigError(f"{class_name(cls)}.{name} is not a member of {base.__name__}; did you mean {meant}?")
    return instance


@functools.lru_cache(maxsize=4096)
def _most_similar(name: str, members: tuple[str, ...]) -> str:
    """Return the name in `members` of which `name` is probably a misspelling; "" if none is similar enough.

    Results are cached: a search takes 0.2 ms, and each start makes 100 searches."""
    return next(iter(difflib.get_close_matches(name, members, 1, 0.85)), "")


def described(value: Any) -> str:
    """Return a phrase for a value of a wrong type, for a message: "None", "the class A", "a tuple"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"a {type(value).__name__}"


def check_arguments(function: Callable[..., Any], expected: Sequence[str], what: str) -> None:
    """Raise `ConfigError` if `function` cannot be called with the positional arguments `expected`.

    `what` names the function in the message."""
    signature = inspect.signature(function)
    try:
        signature.bind(*expected)
    except TypeError:
        found = ", ".join(signature.parameters)
        raise ConfigError(f"{what} takes the arguments ({found}); it must take ({', '.join(expected)})") from None


@functools.cache
def check_config_class(cls: type) -> None:
    """Raise `ConfigError` if `cls` is not a frozen dataclass whose fields are defined with `setting` and have types that YAML can
    express."""
    if "__dataclass_fields__" not in vars(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ConfigError(f"{class_name(cls)} must be a frozen dataclass; write @dataclass(frozen=True) above it")
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if "meaning" not in field.metadata:
            raise ConfigError(f"{class_name(cls)}.{field.name} must be defined with setting(...) of linnaeus.config.setting")
        if not _has_yaml_type(hints[field.name]):
            allowed = "str, int, float, bool, list[...], dict[str, ...], or one of them | None"
            raise ConfigError(f"{class_name(cls)}.{field.name} has the type {field.type}; use {allowed}")


def _has_yaml_type(annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union, list, dict):
        return all(_has_yaml_type(one) for one in arguments)
    return annotation in (str, int, float, bool, type(None), Any) or dataclasses.is_dataclass(annotation)


def class_name(cls: type) -> str:
    """Return the dotted name of a class, with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"
