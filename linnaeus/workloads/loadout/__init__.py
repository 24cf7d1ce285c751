"""Loadout workload: complete a legal Splatoon 3 build (the 12 abilities on three pieces of gear) from a weapon and some of the
abilities.

Each package imports only packages above it in this list, and `config`:

game           abilities, gear, weapons and the tokens of a build
builds         builds from files or from a generator, and datasets of partial builds
model          the network
completion     fill the free slots of a build; requests for completions
evaluation     scores of completions, baselines, metrics of a run
report         report.html, tables and pages about samples
trained        use a trained model

`workload` is what the training loop uses, `complete_cli` the command `linnaeus complete`."""

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
    from linnaeus.workloads.loadout.report.loadout_sections import loadout_sections

    return loadout_sections(run)
