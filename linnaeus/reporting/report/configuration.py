"""Make the section with the configuration of a run: the keys that differ from the defaults, and, folded, the whole configuration."""

from collections.abc import Mapping
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.reporting.report.html_parts import Cell, Column, empty, folded, preformatted, table, text_cell
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.rundir.saved_config import defaults_for

UNINTERESTING = ("run.name", "run.root", "run.experiment")
CHOSEN = (("auto", "min"), ("auto", "max"))  # directions of metrics, which the program fills in


def configuration(run: RunFiles) -> str:
    """Return the HTML of the section."""
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
    """Return dotted key -> (default, value), as texts, for the keys of a saved configuration that differ from the defaults of its choices
    of groups. The default is an en dash if there is none. Return {} if the defaults cannot be composed here."""
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
    """Return dotted key -> value of a nested mapping. An empty mapping is a value. prefix: put before each key."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
    return found


def shown(value: Any) -> str:
    """Return a value in the notation of YAML; an en dash for `???`, which marks a required setting without a value."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {shown(item)}' for key, item in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else "–" if value == "???" else str(value)
