"""Launchers start runs: one process each, one torchrun each, or one SLURM job each (group `launch`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linnaeus.launch.launcher import Handle, Job, Launcher

if TYPE_CHECKING:
    from linnaeus.config.schema_launch import LaunchConfig

__all__ = ["Handle", "Job", "Launcher", "build_launcher"]


def build_launcher(config: LaunchConfig, max_parallel: int) -> Launcher:
    """Build the launcher that a `launch` group selects, for at most `max_parallel` jobs at a time."""
    from linnaeus.config.schema_launch import SlurmConfig, TorchrunConfig
    from linnaeus.launch.process import ProcessLauncher
    from linnaeus.launch.torchrun import TorchrunLauncher

    if isinstance(config, TorchrunConfig):
        return TorchrunLauncher(config.processes, max_parallel)
    if isinstance(config, SlurmConfig):
        from linnaeus.launch.slurm import SlurmLauncher

        return SlurmLauncher(config)
    return ProcessLauncher(max_parallel)
