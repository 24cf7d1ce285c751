"""How runs are started where it is not by hand: a process each, a torchrun each, or SLURM (group `launch`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linnaeus.launch.base import Handle, Job, Launcher

if TYPE_CHECKING:
    from linnaeus.config.schema_launch import LaunchConfig

__all__ = ["Handle", "Job", "Launcher", "build_launcher"]


def build_launcher(config: LaunchConfig, at_once: int) -> Launcher:
    """The launcher of a `launch` group, for up to `at_once` jobs at a time."""
    from linnaeus.config.schema_launch import SlurmConfig, TorchrunConfig
    from linnaeus.launch.process import ProcessLauncher
    from linnaeus.launch.torchrun import TorchrunLauncher

    if isinstance(config, TorchrunConfig):
        return TorchrunLauncher(config.processes, at_once)
    if isinstance(config, SlurmConfig):
        from linnaeus.launch.slurm import SlurmLauncher

        return SlurmLauncher(config)
    return ProcessLauncher(at_once)
