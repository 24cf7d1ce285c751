"""Launchers start runs: one process each, one torchrun each, or one SLURM job each (group `launch`)."""

from linnaeus.config.schema import LaunchConfig, SlurmConfig, TorchrunConfig
from linnaeus.launch.launcher import Handle, Job, Launcher
from linnaeus.launch.process import ProcessLauncher

__all__ = ["Handle", "Job", "Launcher", "build_launcher"]


def build_launcher(config: LaunchConfig, max_parallel: int) -> Launcher:
    """Build the launcher that a `launch` group selects, for at most `max_parallel` jobs at a time."""
    if isinstance(config, SlurmConfig):
        from linnaeus.launch.slurm import SlurmLauncher

        return SlurmLauncher(config)
    return ProcessLauncher(max_parallel, config.processes if isinstance(config, TorchrunConfig) else None)
