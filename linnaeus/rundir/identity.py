"""Compare two configurations: find the keys that differ, and which of these keys change the optimizer updates of a run.

`NON_UPDATE_KEYS` do not change any update and may change from one start of a run to the next. All other keys make the run: the default of
`run.name` is a hash of them, and on resume a change of such a key is refused unless `run.allow` names it. `WARM_START_KEYS` are the
exception in the group `run`: if they are set, they are part of the hash."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linnaeus.config.choices import AUTO, FOUND_AT_START
from linnaeus.errors import ConfigError
from linnaeus.files import text_digest

# Keys or whole groups. `schedule.log` and `trainer.max_skipped_in_a_row` may change when a run stops, but not an update.
NON_UPDATE_KEYS = (
    "run",
    "logger",
    "debug",
    "plan",
    "profile",
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
    "head.sharded",
)
WARM_START_KEYS = ("run.init_from", "run.init_checkpoint", "run.init_allow", "run.init_skip")
_ABSENT = object()


class Difference(NamedTuple):
    """Lines `key: old -> new` for the keys that differ between two configurations.

    `harmless`: lines of keys that do not change any update. `altering`: key -> line, for keys that change updates."""

    harmless: list[str]
    altering: dict[str, str]

    @property
    def lines(self) -> list[str]:
        """Return all lines, first the harmless ones."""
        return self.harmless + list(self.altering.values())

    def refused(self, allowed: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return (lines, names for `run.allow`) of the altering keys that `allowed` does not cover.

        If another option of a group was chosen, which changes many keys of the group, only the group is named."""
        keys = [key for key in self.altering if not covers(allowed, key)]
        groups = [key.removesuffix(".name") for key in keys if key.count(".") == 1 and key.endswith(".name")]
        single = [key for key in keys if not covers(groups, key)]
        return [self.altering[key] for key in [*(f"{group}.name" for group in groups), *single]], [*groups, *single]


def covers(names: Iterable[str], key: str) -> bool:
    """Return True if `key` is in `names`, or is inside a group that is in `names`: `optimizer` covers `optimizer.lr`."""
    return any(key == name or key.startswith(name + ".") for name in names)


def alters_updates(key: str) -> bool:
    """Return True if a change of the key changes the optimizer updates, so that the result is another run."""
    return covers(WARM_START_KEYS, key) or not covers(NON_UPDATE_KEYS, key)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {dotted key: value} for a nested configuration. Lists and empty mappings are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, name + ".")
        else:
            flat[name] = plain(value)
    return flat


def plain(value: Any) -> Any:
    """Return `value` as it would be after writing it as YAML or JSON and reading it: tuples become lists, mappings become dicts."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def update_hash(config: Mapping[str, Any]) -> str:
    """Return ten hexadecimal digits of a hash of all keys that change updates. They are the default name of the run directory. For a value
    `auto` that is replaced at the first start, the value in `FOUND_AT_START` is hashed."""
    relevant = {key: value for key, value in flatten(config).items() if alters_updates(key) and not (key in WARM_START_KEYS and not value)}
    relevant |= {key: value for key, value in FOUND_AT_START.items() if relevant.get(key) == AUTO}
    return text_digest(json.dumps(relevant, sort_keys=True))[:10]


def config_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """Return the keys that differ between the configurations `old` and `new`, each with both values. They are in the order of `new`; keys
    that only `old` has come last."""
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
    return "(absent)" if value is _ABSENT else json.dumps(value, default=str)  # str: a date, from a file that was edited


def is_name(text: str) -> bool:
    """Return True if a run or a sweep may have the name `text`: it is not blank, and has no slash, no control character and no leading
    dot."""
    return bool(text.strip()) and not text.startswith(".") and "/" not in text and min(text) >= " "


def run_path(config: Mapping[str, Any], saved: Mapping[str, Any] | None = None) -> Path:
    """Return the run directory that a configuration selects. If `run.name` is null, the name is `update_hash(saved)`.

    `saved`: the configuration without values of environment variables; None: `config`. Raise `ConfigError` if a name is not a valid
    directory name."""
    run = config["run"]
    for key in ("experiment", "name"):
        text = run[key]
        if text is not None and not is_name(text):
            raise ConfigError(f"run.{key}: {text!r} is not a valid directory name; use letters, digits, - and _")
    return Path(run["root"]) / run["experiment"] / (run["name"] or update_hash(saved or config))
