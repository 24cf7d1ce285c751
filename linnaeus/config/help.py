"""`python main.py --help`: every key of the configuration with its type, default and meaning."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

from linnaeus.config.load import CONF, entry_schema
from linnaeus.config.schema import FROM, FROM_MEANING, Config


def describe(config: Config) -> Iterator[tuple[str, str, str, str]]:
    """Yield (key, type, value, meaning) of every key of a composed config, depth first. `run.from` comes first in its group; the keys of a
    mapping's entries follow the mapping, those of NAME if it has no entry."""
    for row in _walk(config, ""):
        if row[0] == "run.name":
            yield FROM, "str or null", "null", FROM_MEANING
        yield row


def _walk(node: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    hints = typing.get_type_hints(type(node))
    for field in dataclasses.fields(node):
        value, key = getattr(node, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _walk(value, key + ".")
            continue
        entry = entry_schema(hints[field.name])
        if entry is None:
            yield _row(key, field, hints[field.name], _shown(value))
        else:
            yield key, "mapping from names to such keys, or null", ", ".join(value or ()) or "{}", field.metadata["meaning"]
            for name, one in (value or {}).items():
                yield from _walk(one, f"{key}.{name}.")
            if not value:
                yield from _of_an_entry(entry, f"{key}.NAME.")


def _of_an_entry(cls: type, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the keys that an entry of a mapping may have, with their defaults."""
    for field in dataclasses.fields(cls):
        needed = field.default_factory is dataclasses.MISSING
        value = "?" if needed else _shown(typing.cast(Any, field.default_factory)())
        yield _row(f"{prefix}{field.name}", field, typing.get_type_hints(cls)[field.name], value)


def _row(key: str, field: dataclasses.Field, annotation: Any, value: str) -> tuple[str, str, str, str]:
    meta = field.metadata
    kind = "|".join(meta["choices"]) if meta["choices"] else "duration" if meta["duration"] else _type_name(annotation)
    return key, kind, value, meta["meaning"]


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return " or ".join("null" if a is type(None) else _type_name(a) for a in typing.get_args(annotation))
    return (
        annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation).replace("typing.", "")
    )


def _shown(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if isinstance(value, (bool, type(None))) else str(value)


def print_help(config: Config) -> None:
    """Print the help page; its reader may close the pipe early (`| head`)."""
    try:
        print(help_text(config), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit


def help_text(config: Config) -> str:
    """Return the help page of a configuration, with the variants of every group at the end."""
    lines = [
        "linnaeus: train hierarchical species classifiers, exactly resumable.",
        "",
        "  python main.py [key=value ...]                        train; the same command again continues",
        "  torchrun --nproc-per-node=2 main.py experiment=NAME   on several processes",
        "  python main.py plan=true                              print the schedule, train nothing",
        "  python main.py -m seed=1,2,3                          a sweep",
        "  python main.py --help model=timm                      this page, for another choice",
        "",
        "Every key, its type, value here, and meaning:",
    ]
    group = ""
    for key, kind, value, meaning in describe(config):
        head = key.split(".")[0] if "." in key else ""
        if head != group:
            lines.append("")
            group = head
        lines += [f"  {key} = {value}", f"      {kind}: {meaning}"]
    lines += ["", "Groups and their variants:"]
    lines += [
        f"  {folder.name}: {', '.join(sorted(f.stem for f in folder.glob('*.yaml')))}"
        for folder in sorted(CONF.iterdir())
        if folder.is_dir()
    ]
    return "\n".join(lines)
