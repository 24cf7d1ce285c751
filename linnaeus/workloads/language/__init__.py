"""Language models: predict the next token of a text from the tokens before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.workloads.language.workload import LanguageWorkload


def build_workload(config: Config) -> LanguageWorkload:
    """Return the language workload of `config`. The call reads the data. Raise `ConfigError` for data or settings that cannot be used."""
    from linnaeus.workloads.language.workload import LanguageWorkload

    return LanguageWorkload(config)
