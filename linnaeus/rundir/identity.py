"""Which run a configuration belongs to, and what changed between two configurations.

`NOT_UPDATES` lists the keys that alter no update: they may change from one start of a run to the next. All others name the run:
their hash is the default of `run.name`, and a change of one is refused on resume unless `run.allow` names it. Within the groups of
`NOT_UPDATES`, `BEGINNING` says what weights a run begins with: these keys name the run where they are set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linnaeus.errors import ConfigError

# Names or whole groups. `schedule.log` and `trainer.max_skipped_in_a_row` may decide when a run stops, not what an update is.
NOT_UPDATES = (
    "run",
    "logger",
    "debug",
    "plan",
    "launch",
    "sweep",
    "schedule.log",
    "schedule.report",
    "schedule.checkpoint",
    "schedule.checkpoint_at_end",
    "schedule.keep_last",
    "schedule.keep_best",
    "trainer.num_workers",
    "trainer.prefetch",
    "trainer.pin_memory",
    "trainer.threads",
    "trainer.max_time",
    "trainer.startup_timeout",
    "trainer.timeout",
    "trainer.max_skipped_in_a_row",
    "data.max_bad_fraction",
)
BEGINNING = ("run.init_from", "run.init_allow", "run.init_skip")
_ABSENT = object()


class Difference(NamedTuple):
    """`key: old -> new` lines; `altering` by key, so that each can be allowed by name."""

    harmless: list[str]
    altering: dict[str, str]

    @property
    def lines(self) -> list[str]:
        return self.harmless + list(self.altering.values())

    def refused(self, allowed: Iterable[str]) -> tuple[list[str], list[str]]:
        """(lines, names for `run.allow`) of what alters updates and is not `allowed`; where another choice of a group brings other
        keys, the group stands for them."""
        keys = [key for key in self.altering if not covers(allowed, key)]
        groups = [key.removesuffix(".name") for key in keys if key.count(".") == 1 and key.endswith(".name")]
        single = [key for key in keys if not covers(groups, key)]
        return [self.altering[key] for key in [*(f"{group}.name" for group in groups), *single]], [*groups, *single]


def covers(names: Iterable[str], key: str) -> bool:
    """Whether `key` or a group above it is among `names`."""
    return any(key == name or key.startswith(name + ".") for name in names)


def alters_updates(key: str) -> bool:
    """Whether another value of the key makes another run."""
    return covers(BEGINNING, key) or not covers(NOT_UPDATES, key)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value; an empty mapping is a value, and so is a list."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, name + ".")
        else:
            flat[name] = plain(value)
    return flat


def plain(value: Any) -> Any:
    """The value with tuples as lists and mappings as dicts, as YAML and JSON give it back."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def update_hash(config: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits of a hash of every key that alters the updates."""
    relevant = {key: value for key, value in flatten(config).items() if alters_updates(key) and not (key in BEGINNING and not value)}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:10]


def config_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """What changed, harmless or altering the updates, in the order of the new configuration."""
    before, after = flatten(old), flatten(new)
    difference = Difference([], {})
    for key in [*after, *(k for k in before if k not in after)]:
        was, now = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if was != now:
            line = f"{key}: {_text(was)} -> {_text(now)}"
            if alters_updates(key):
                difference.altering[key] = line
            else:
                difference.harmless.append(line)
    return difference


def _text(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value)


def run_path(config: Mapping[str, Any]) -> Path:
    """Where the run of a configuration lives; `run.name: null` is the hash of the keys that alter the updates."""
    run = config["run"]
    for key in ("experiment", "name"):
        text = run[key]
        if text is not None and (not text or text.startswith(".") or "/" in text or "\0" in text):
            raise ConfigError(f"run.{key}: {text!r} is no name for a directory; use letters, digits, - and _")
    return Path(run["root"]) / run["experiment"] / (run["name"] or update_hash(config))
