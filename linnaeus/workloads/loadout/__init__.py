"""Loadout workload: complete a legal Splatoon 3 build (the 12 abilities on three pieces of gear) from a weapon and some of the
abilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.reporting.report.html_parts import Section
    from linnaeus.reporting.report.run_files import RunFiles
    from linnaeus.workloads.loadout.workload import LoadoutWorkload


def build_workload(config: Config) -> LoadoutWorkload:
    """Read the data and return the workload of `config`. Raise `ConfigError` for data or settings that cannot be used."""
    from linnaeus.workloads.loadout.workload import LoadoutWorkload

    return LoadoutWorkload(config)


def report_sections(run: RunFiles) -> list[Section]:
    """Return the sections of the loadout workload for report.html."""
    from linnaeus.workloads.loadout.loadout_sections import loadout_sections

    return loadout_sections(run)
