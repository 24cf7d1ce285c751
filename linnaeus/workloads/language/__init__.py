"""Language models: predict the next token of a text from the tokens before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.reporting.report.html_parts import Section
    from linnaeus.reporting.report.run_files import RunFiles
    from linnaeus.workloads.language.workload import LanguageWorkload


def build_workload(config: Config) -> LanguageWorkload:
    """Return the language workload of `config`. The call reads the data. Raise `ConfigError` for data or settings that cannot be used."""
    from linnaeus.workloads.language.workload import LanguageWorkload

    return LanguageWorkload(config)


def report_sections(run: RunFiles) -> list[Section]:
    """Return the sections of the language workload for report.html."""
    from linnaeus.workloads.language.language_sections import language_sections

    return language_sections(run)
