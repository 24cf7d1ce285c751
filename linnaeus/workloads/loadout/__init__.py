"""Sets of gear: complete a legal Splatoon 3 build from a weapon and part of its gear."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.reporting.report.html_parts import Section
    from linnaeus.reporting.report.run_files import RunFiles
    from linnaeus.workloads.loadout.workload import LoadoutWorkload


def build_workload(config: Config) -> LoadoutWorkload:
    """Return the workload of `config`; reads the data. Raise `ConfigError` for data or settings that cannot be used."""
    from linnaeus.workloads.loadout.workload import LoadoutWorkload

    return LoadoutWorkload(config)


def report_sections(run: RunFiles) -> list[Section]:
    """Return the sections of the loadout workload for report.html."""
    from linnaeus.workloads.loadout.loadout_sections import loadout_sections

    return loadout_sections(run)
