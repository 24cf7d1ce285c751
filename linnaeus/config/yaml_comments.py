"""Write the meaning of every key as a comment into the YAML files of `conf/`, from the schema, which is the only source.

    python -m linnaeus.config.yaml_comments           rewrite the files whose comments differ; print their names
    python -m linnaeus.config.yaml_comments --check   only print them; status 1 if there are any

The comment block at the top of a file, up to its blank line, is written by hand. Experiments, presets and files that choose other
groups (`defaults:`) hold only what differs and are left alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from linnaeus.config.load import CONF, variants_of
from linnaeus.config.schema import VARIANTS, Config

WIDTH = 140
_KEY = re.compile(r"(\s*)(\w+):(\s.*)?$")


def commented(text: str, schema: type) -> str:
    """Return a YAML file with the meanings of `schema` behind its keys, or above them where the line would be too long."""
    header, keys = _split_header(text)
    lines: list[str] = []
    stack: list[tuple[int, Any]] = [(0, schema)]
    for line in keys:
        match = _KEY.match(line)
        if match is None:
            if not line.lstrip().startswith("#"):  # an entry of a list, or a blank line
                lines.append(line)
            continue
        indent, name, value = len(match[1]), match[2], _without_comment(match[3] or "")
        while len(stack) > 1 and stack[-1][0] > indent:
            stack.pop()
        field, annotation = _field(stack[-1][1], name)
        if dataclasses.is_dataclass(annotation) and not value.strip():
            stack.append((indent + 1, annotation))
        lines += _lines(f"{match[1]}{name}:{value}", match[1], _meaning(field))
    return "\n".join([*header, *lines]) + "\n"


def _split_header(text: str) -> tuple[list[str], list[str]]:
    """Return the leading comment block with the blank line that ends it, and the other lines. A block without one belongs to a key."""
    lines = text.rstrip("\n").split("\n")
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    end = first + 1 if first and not lines[first].strip() else 0
    return lines[:end], lines[end:]


def _without_comment(value: str) -> str:
    """Return a value without the comment behind it; a # inside quotes is not one."""
    found = re.match(r"((?:[^'\"#]|'[^']*'|\"[^\"]*\"|(?<=\S)#)*?)\s*(?:(?<=\s)#.*)?$", value)
    return (found[1] if found else value).rstrip()


def _field(schema: Any, name: str) -> tuple[dataclasses.Field[Any] | None, Any]:
    if not dataclasses.is_dataclass(schema):
        return None, None
    field = next((field for field in dataclasses.fields(schema) if field.name == name), None)
    return field, typing.get_type_hints(schema)[name] if field is not None else None


def _meaning(field: dataclasses.Field[Any] | None) -> str:
    if field is None:
        return ""
    text, choices = field.metadata["meaning"], field.metadata["choices"]
    return f"{text} ({', '.join(choices)})" if choices and not all(choice in text for choice in choices) else text


def _lines(line: str, indent: str, meaning: str) -> list[str]:
    if not meaning:
        return [line]
    if len(line) + len(meaning) + 3 <= WIDTH:
        return [f"{line} # {meaning}"]
    wrapped = textwrap.wrap(meaning, WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False)
    return [*(f"{indent}# {part}" for part in wrapped), line]


def files() -> Iterator[tuple[Path, type]]:
    """Yield every YAML file that gives values to all keys of a class, with the class."""
    yield CONF / "config.yaml", Config
    hints = typing.get_type_hints(Config)
    variants = {**VARIANTS, **{group: {} for group in ("data", "model", "head", "loss", "augment")}}
    for workload in sorted(path.stem for path in (CONF / "workload").glob("*.yaml")):
        for group, classes in variants_of(workload).items():
            variants[group] = {**variants.get(group, {}), **classes}
    for path in sorted(CONF.glob("*/*.yaml")):
        group, text = path.parent.name, path.read_text()
        if group == "experiment" or "@package _global_" in text or re.search(r"^defaults:", text, re.MULTILINE):
            continue
        name = re.search(r"^name: (\w+)", text, re.MULTILINE)
        schema = variants[group].get(name[1]) if group in variants and name else hints.get(group)
        if isinstance(schema, type) and dataclasses.is_dataclass(schema):
            yield path, schema


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the files, or with --check print those that differ. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    stale = [(path, new) for path, schema in files() if (new := commented(path.read_text(), schema)) != path.read_text()]
    for path, text in stale:
        print(path.relative_to(CONF.parent))
        if not options.check:
            path.write_text(text)
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
