"""Build the workload of a run. A workload is the research program (data, model, losses and metrics) that is plugged into the training loop.
The loop uses a workload only through the abstract classes of `workloads.base`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from linnaeus.config.contracts import check_arguments, check_members
from linnaeus.config.registry import workload_module
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError

if TYPE_CHECKING:  # --help imports the schemas of a workload without torch
    from linnaeus.reporting.report.html_parts import Section
    from linnaeus.reporting.report.run_files import RunFiles
    from linnaeus.workloads.base import Workload


def build_workload(config: Config) -> Workload:
    """Return the workload of `config.workload.name`. Raise `ConfigError` if the object is not a `Workload`, or if a member is missing or
    misspelt."""
    from linnaeus.workloads.base import Workload

    module = importlib.import_module(workload_module(config.workload.name))
    if not hasattr(module, "build_workload"):
        raise ConfigError(f"workload.name: {module.__name__} does not define build_workload(config)")
    check_arguments(module.build_workload, ("config",), f"{module.__name__}.build_workload")
    workload = module.build_workload(config)
    return check_members(workload, Workload, f"{module.__name__}.build_workload returns", pending=("train_set", "validation_set"))


def report_sections(name: str, run: RunFiles) -> list[Section]:
    """Return the sections that the workload `name` adds to report.html, made from the files of `run`; [] if the workload defines no
    sections."""
    from linnaeus.reporting.report.html_parts import DAMAGED, Section, empty, left_out

    module = importlib.import_module(workload_module(name))
    try:
        return module.report_sections(run) if hasattr(module, "report_sections") else []
    except DAMAGED as error:
        return [Section("Results", empty(left_out(f"Results of {name}", error)))]
