"""Launchers: start each run as one process, under torchrun, or as a SLURM job. The configuration group `launch` selects which."""

from linnaeus.config.schema import LaunchConfig, SlurmConfig, TorchrunConfig
from linnaeus.launch.launcher import Handle, Job, Launcher
from linnaeus.launch.process import ProcessLauncher

__all__ = ["Handle", "Job", "Launcher", "build_launcher"]


def build_launcher(config: LaunchConfig, max_parallel: int) -> Launcher:
    """Return the launcher that `config`, the group `launch`, selects. A launcher for this machine starts at most `max_parallel` runs at a
    time."""
    if isinstance(config, SlurmConfig):
        from linnaeus.launch.slurm import SlurmLauncher

        return SlurmLauncher(config)
    return ProcessLauncher(max_parallel, config.processes if isinstance(config, TorchrunConfig) else None)
