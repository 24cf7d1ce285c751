"""Language models: the next token of a text, given those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.workloads.language.workload import LanguageWorkload


def build_workload(config: Config) -> LanguageWorkload:
    from linnaeus.workloads.language.workload import LanguageWorkload

    return LanguageWorkload(config)
