"""The taxonomy workload: hierarchical classification of species from photographs, places and times of observations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.reporting.report.html_parts import Section
    from linnaeus.reporting.report.run_files import RunFiles
    from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload


def build_workload(config: Config) -> TaxonomyWorkload:
    """Return the taxonomy workload for a configuration."""
    from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload

    return TaxonomyWorkload(config)


def report_sections(run: RunFiles) -> list[Section]:
    """Return the sections of the taxonomy workload for report.html."""
    from linnaeus.workloads.taxonomy.report.taxonomy_sections import taxonomy_sections

    return taxonomy_sections(run)
