"""Dictionary workload: express the activations of a trained model, of any workload, as sparse sums of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.reporting.report.html_parts import Section
    from linnaeus.reporting.report.run_files import RunFiles
    from linnaeus.workloads.dictionary.workload import DictionaryWorkload


def build_workload(config: Config) -> DictionaryWorkload:
    """Return the workload of `config`. Open the run `dictionary.run`, if one is given. Raise `ConfigError` for a run or settings that
    cannot be used."""
    from linnaeus.workloads.dictionary.workload import DictionaryWorkload

    return DictionaryWorkload(config)


def report_sections(run: RunFiles) -> list[Section]:
    """Return the sections of the dictionary workload for report.html."""
    from linnaeus.workloads.dictionary import results_section

    return results_section.report_sections(run)
