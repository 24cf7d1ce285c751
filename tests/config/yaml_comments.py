"""Write the meaning of every key as a comment into the YAML files of `conf/`, from the schema, which is the only source.

    python -m tests.config.yaml_comments    rewrite the files whose comments differ; print their names

The comment block at the top of a file, up to its blank line, is written by hand. Experiments, presets and files that choose other
groups (`defaults:`) contain only what differs and are not changed.
"""

import dataclasses
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from linnaeus.config.load import CONF
from linnaeus.config.schema import VARIANTS, WORKLOAD_GROUPS, Config
from linnaeus.config.typed_config import variants_of

WIDTH = 140
_KEY = re.compile(r"( *)(\w+):(\s.*)?$")
_VALUE = re.compile(r"((?:[^'\"#]|'[^']*'|\"[^\"]*\"|(?<=\S)#)*?)\s*(?:(?<=\s)#.*)?$")  # a # inside quotes does not start a comment


def commented(text: str, schema: type) -> str:
    """Return a YAML file with the meanings of `schema` behind its keys, or above them where the line would be too long."""
    lines = text.rstrip("\n").split("\n")
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    start = first + 1 if first and not lines[first].strip() else 0  # without a blank line the block belongs to a key
    found = lines[:start]
    stack: list[tuple[int, Any]] = [(0, schema)]
    for line in lines[start:]:
        match = _KEY.match(line)
        if match is None:
            found += [] if line.lstrip().startswith("#") else [line]  # an entry of a list, or a blank line
            continue
        value = match[3] or ""
        value = (stripped[1] if (stripped := _VALUE.match(value)) else value).rstrip()
        while len(stack) > 1 and stack[-1][0] > len(match[1]):
            stack.pop()
        fields = {field.name: field for field in dataclasses.fields(stack[-1][1])}
        annotation = typing.get_type_hints(stack[-1][1]).get(match[2])
        found += _lines(f"{match[1]}{match[2]}:{value}", match[1], fields[match[2]].metadata if match[2] in fields else {})
        if dataclasses.is_dataclass(annotation) and not value:
            stack.append((len(match[1]) + 1, annotation))
    return "\n".join(found) + "\n"


def _lines(line: str, indent: str, metadata: typing.Mapping[str, Any]) -> list[str]:
    meaning, choices = metadata.get("meaning", ""), metadata.get("choices", ())
    if not all(choice in meaning for choice in choices):
        meaning += f" ({', '.join(choices)})"
    if len(line) + len(meaning) + 3 <= WIDTH:
        return [f"{line} # {meaning}" if meaning else line]
    wrapped = textwrap.wrap(meaning, WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False)
    return [*(f"{indent}# {part}" for part in wrapped), line]


def files() -> Iterator[tuple[Path, type]]:
    """Yield every YAML file that gives values to all keys of a class, with the class."""
    yield CONF / "config.yaml", Config
    hints = typing.get_type_hints(Config)
    variants: dict[str, dict[str, type]] = {**VARIANTS, **{group: {} for group in WORKLOAD_GROUPS}}
    for workload in (CONF / "workload").glob("*.yaml"):
        for group, classes in variants_of(workload.stem).items():
            variants[group] = {**variants[group], **classes}
    for path in sorted(CONF.glob("*/*.yaml")):
        group, text = path.parent.name, path.read_text()
        if group == "experiment" or "@package _global_" in text or re.search(r"^defaults:", text, re.MULTILINE):
            continue
        name = re.search(r"^name: (\w+)", text, re.MULTILINE)
        schema = variants[group].get(name[1]) if group in variants and name else hints.get(group)
        if isinstance(schema, type) and dataclasses.is_dataclass(schema):
            yield path, schema


if __name__ == "__main__":
    for file, file_schema in files():
        if (new := commented(file.read_text(), file_schema)) != file.read_text():
            print(file.relative_to(CONF.parent))
            file.write_text(new)
