"""Research programs plugged into the loop; the engine knows them only through `workloads.base`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from linnaeus.config.load import workload_module
from linnaeus.config.schema import Config

if TYPE_CHECKING:  # the schemas of a workload are read by --help, which does without torch
    from linnaeus.workloads.base import Workload


def build_workload(config: Config) -> Workload:
    """The workload `config.workload.name` asks for."""
    return importlib.import_module(workload_module(config.workload.name)).build_workload(config)
