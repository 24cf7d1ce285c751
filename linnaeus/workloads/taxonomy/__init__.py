"""The taxonomy workload: hierarchical classification of species from photographs, places and times of observations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload


def build_workload(config: Config) -> TaxonomyWorkload:
    """Return the taxonomy workload for a configuration."""
    from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload

    return TaxonomyWorkload(config)
