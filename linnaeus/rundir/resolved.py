"""A resolved configuration as a YAML file that gives the same values back, to PyYAML and to Hydra alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.rundir.identity import plain


def dump_yaml(config: Mapping[str, Any]) -> str:
    """YAML of plain values, keys in their order. Texts that some reader takes for a number (`1e-3`, `1_000`) are quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if _looks_numeric(value) else None)

    Dumper.add_representer(str, text)
    return yaml.dump(plain(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=140)


def load_yaml(text: str) -> Any:
    """The values of `dump_yaml`."""
    import yaml

    return yaml.safe_load(text)


def load_saved(file: Path) -> dict[str, Any]:
    """The configuration that a run directory holds as `file`. ConfigError, one line, when it is damaged."""
    import yaml

    try:
        content = load_yaml(file.read_bytes().decode())
    except (UnicodeDecodeError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("run"), dict):
        raise ConfigError(
            f"run.root: {file} is damaged; put its newest copy, {file.parent / 'launches'}/<number>/{file.name}, in its place, "
            "or choose another run.name"
        )
    return content


def _looks_numeric(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
