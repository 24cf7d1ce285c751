"""Hierarchical species classification from photographs and the where/when of each observation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload


def build_workload(config: Config) -> TaxonomyWorkload:
    from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload

    return TaxonomyWorkload(config)
