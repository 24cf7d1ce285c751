"""Make the data configuration for a manifest (a CSV or Parquet table of photographs) that a command got with --manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnaeus.workloads.taxonomy.trained.restrictions.checklist import check_file


def manifest_configuration(path: str, overrides: Sequence[str]) -> Any:
    """Return the configuration `data` of `data=manifest` with `data.path` set to `path`, a CSV or Parquet file.

    `overrides`: Hydra overrides, such as data.date_column=when. Raise `ConfigError` if the file does not exist, or for an impossible
    override."""
    from linnaeus.config.load import compose

    check_file(Path(path).expanduser(), "--manifest", "a CSV or Parquet file")
    return compose(["data=manifest", f"data.path={_quoted_value(path)}", *overrides]).data


def _quoted_value(text: str) -> str:
    """Return a text in double quotes, escaped, as the value of a Hydra override."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
