"""Make the section about the configuration of a run: its command and the keys that differ from the defaults. Below, folded, are the whole
configuration, the run record and the schedule.
"""

from collections.abc import Mapping
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.reporting.report.html_parts import Cell, Column, empty, folded, preformatted, table, text_cell
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.rundir.saved_config import defaults_for

UNINTERESTING = ("run.name", "run.root", "run.experiment")
CHOSEN = (("auto", "min"), ("auto", "max"))  # directions of metrics, which the program fills in


def configuration(run: RunFiles) -> str:
    """Return the HTML of the section of report.html about the configuration: command, keys that differ from their defaults, and, folded,
    config.yaml, run.json and schedule.txt. Parts whose file is missing are left out."""
    changed = changed_keys(run.config)
    rows = [
        [Cell(f"<code>{text_cell(key).html}</code>", key), text_cell(default), text_cell(value)]
        for key, (default, value) in changed.items()
    ]
    columns = [Column("key", words=True), Column("default", words=True), Column("this run", words=True)]
    differences = table("Keys that differ from the defaults", columns, rows) or empty("All keys have their defaults.")
    command = " ".join(map(str, run.record.get("command") or ()))
    return (
        (preformatted(command, "Command") if command else "")
        + differences
        + folded("Whole configuration", preformatted(run.text("config.yaml"), "config.yaml"))
        + folded("Run record: versions, host, devices", preformatted(run.text("run.json"), "run.json"))
        + folded("Schedule as text", preformatted(run.text("schedule.txt"), "schedule.txt"))
    )


def changed_keys(config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return {dotted key: (default, value)}, both as text, for the keys of the saved configuration `config` that differ from their
    defaults.

    The defaults are those of the options that `config` has chosen, such as its model. For a key without a default, the first text is an en
    dash. Keys in `UNINTERESTING` are left out, and `min` or `max` where the default is `auto`. Return {} if `config` is empty, or if its
    defaults cannot be composed, for example because a plugin is missing."""
    if not config:
        return {}
    try:
        defaults = flatten(defaults_for(config, None))
    except ConfigError:  # a plugin or an option that no longer exists
        return {}
    own = flatten(config)
    return {
        key: (shown(defaults.get(key)) if key in defaults else "–", shown(value))
        for key, value in own.items()
        if key not in UNINTERESTING and (key not in defaults or defaults[key] != value) and (defaults.get(key), value) not in CHOSEN
    }


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {dotted key: value} of a nested mapping. An empty mapping inside is kept as a value. prefix: text put before each key."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
    return found


def shown(value: Any) -> str:
    """Return a value as text, similar to YAML: `null`, `true`, `[1, 2]`, strings without quotes. Return an en dash for `???`, which marks a
    required key without a value."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {shown(item)}' for key, item in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else "–" if value == "???" else str(value)
