"""Research programs on the training loop. The loop uses them only through `workloads.base`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from linnaeus.config.registry import workload_module
from linnaeus.config.schema import Config

if TYPE_CHECKING:  # --help imports the schemas of a workload without torch
    from linnaeus.workloads.base import Workload


def build_workload(config: Config) -> Workload:
    """Return the workload of `config.workload.name`. Raise `TypeError` if it is not a `Workload` or misspells an optional member."""
    from linnaeus.workloads.base import Workload, check_members

    return check_members(importlib.import_module(workload_module(config.workload.name)).build_workload(config), Workload)
