"""Compose the text of `python main.py --help` (every key with its type, value and meaning), of `--help WORD` (the keys and groups that
contain a word), and of `--cfg job` (the configuration as YAML).
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from linnaeus.config.foreign_names import foreign_hint
from linnaeus.config.load import group_files
from linnaeus.config.monitors import directions
from linnaeus.config.schema import FROM, FROM_MEANING, Config
from linnaeus.config.setting import allowed_values, entry_type
from linnaeus.errors import ConfigError


def describe(config: Config) -> Iterator[tuple[str, str, str, str]]:
    """Yield (key, type, value, meaning) for every key of a typed configuration, nested keys after their parents.

    `run.from`, which is not a field of the configuration, comes first among the keys of `run`. For a mapping whose names the user chooses,
    the keys of each entry follow. If the mapping has no entries, the keys of an example entry NAME follow."""
    for row in _walk(type(config), config, ""):
        if row[0] == "run.name":
            yield FROM, "str or null", "null", FROM_MEANING
        yield row


def _walk(cls: Any, node: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of `describe` for the dataclass `cls` with the values of `node`. If `node` is None, the values are the defaults."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        key, meta = f"{prefix}{field.name}", field.metadata
        default: Any = "?" if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = default if node is None else getattr(node, field.name)
        entry = entry_type(hints[field.name])
        if dataclasses.is_dataclass(value):
            yield from _walk(type(value), value, key + ".")
        elif dataclasses.is_dataclass(entry):
            yield key, "mapping from names to such keys, or null", ", ".join(value or ()) or "{}", meta["meaning"]
            for name, one in (value or {"NAME": None}).items():
                yield from _walk(entry, one, f"{key}.{name}.")
        else:
            allowed = "|".join(allowed_values(meta["choices"], hints[field.name]))
            kind = allowed or ("duration" if meta["duration"] else _type_name(hints[field.name]))
            yield key, kind, json.dumps(value) if value is None or isinstance(value, bool) else str(value), meta["meaning"]


def _type_name(annotation: Any) -> str:
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return name.replace("typing.", "").replace(" | ", " or ").replace("None", "null")


def config_text(tree: dict[str, Any], package: str | None) -> str:
    """Return the composed configuration `tree` as YAML. `package`: dotted name of the only group or mapping to return; None: everything.

    Raise `ConfigError` if `package` does not exist."""
    from omegaconf import OmegaConf

    node: Any = tree
    for name in package.split(".") if package else ():
        node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        raise ConfigError(f"--package {package} is not a group or a mapping of the configuration; leave it out to print every key")
    return OmegaConf.to_yaml(OmegaConf.create(node)).rstrip("\n")


def search_text(config: Config, words: Sequence[str], config_dir: str | None = None) -> str:
    """Return the help of the keys and groups whose name or meaning contains all of `words`. Raise `ConfigError` if there is no such key or
    group."""
    wanted = [word.lower() for word in words]
    lines = []
    for key, kind, value, meaning in describe(config):
        if all(word in f"{key} {kind} {meaning}".lower() for word in wanted):
            lines += [f"  {key} = {value}", f"      {kind}: {meaning}"]
    variants = [line for line in _variants(config_dir) if all(word in line.lower() for word in wanted)]
    if not lines and not variants:
        hint = foreign_hint(words[0]) or "try a part of the word, or `linnaeus --help-keys` for every key"
        raise ConfigError(f"--help {' '.join(words)}: no key, meaning or group has it; {hint}")
    return "\n".join([*lines, *(["", "Groups and their variants:", *variants] if variants else [])])


def _variants(config_dir: str | None) -> list[str]:
    """Return a line for each group with the names of its files, such as "optimizer: adamw, sgd"."""
    return [f"  {group}: {', '.join(sorted({file.stem for file in files}))}" for group, files in group_files(config_dir).items()]


def help_text(config: Config, config_dir: str | None = None) -> str:
    """Return the complete help page: usage, every key with its value in `config`, the files of every group, and the metrics.

    The page also lists the files of groups in the folder `config_dir`, and the metrics of the workload and of plugins."""
    lines = [
        "linnaeus: train classifiers of species, and other research programs",
        "",
        "  linnaeus [key=value ...]                     train; the same command again continues",
        "  linnaeus launch=torchrun launch.processes=2  on several processes",
        "  linnaeus plan=true                           print the schedule, train nothing",
        "  linnaeus -m seed=1,2,3                       a sweep",
        "  linnaeus --help model=timm                   this page, for another choice",
        "  linnaeus --help optimizer                    the keys, meanings and groups that contain a word",
        "  linnaeus --cfg job [--package GROUP]         the configuration, or one group of it, as YAML",
        "",
        "In the repository `python main.py` is the same.",
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
    lines += ["", "Groups and their variants:", *_variants(config_dir)]
    metrics = directions(config.workload.name).items()
    lines += ["", f"Metrics to monitor, by the end of their name: {', '.join(f'{name} ({mode})' for name, mode in metrics)}"]
    return "\n".join(lines)
