"""The configuration classes of the groups `launch` and `sweep`. See `schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linnaeus.config.setting import setting


@dataclass(frozen=True)
class LaunchConfig:
    name: str = setting(
        "launcher of a run or of each trial: one process, torchrun with several processes on this machine, or a SLURM job",
        choices=("process", "torchrun", "slurm"),
    )


@dataclass(frozen=True)
class TorchrunConfig(LaunchConfig):
    processes: int = setting("processes of a run; each gets its own GPU if there are enough", low=1)


@dataclass(frozen=True)
class SlurmConfig(LaunchConfig):
    nodes: int = setting("nodes of a run", low=1)
    processes: int = setting("processes of a run on each node", low=1)
    time: str = setting("time limit of a job, such as `4h`; the job is then requeued and the run continues", duration="clock")
    partition: str | None = setting("SLURM partition; null: the cluster's default")
    cpus: int | None = setting("CPU cores per node, loader workers included; null: the cluster's default", low=1)
    gpus: int | None = setting("GPUs per node; null: none are requested", low=1)
    memory: str | None = setting("memory per node, such as 32G; null: the cluster's default")
    signal_before: int = setting("seconds before the time limit at which SLURM signals the run to save and stop", low=10)
    max_requeues: int = setting("maximum number of requeues at the time limit; preemptions do not count", low=0)
    poll: float = setting("seconds between two queries of the job states", above=0)
    extra: dict[str, Any] = setting("further sbatch options without dashes: {account: birds, qos: low, exclusive: true}")


@dataclass(frozen=True)
class SweepConfig:
    """Read by `python main.py -m`; without -m it has no effect."""

    method: str = setting("grid: every combination of the values; optuna: values proposed from earlier results", choices=("grid", "optuna"))
    name: str | None = setting("directory of the sweep under <run.root>/sweeps/; null: a short hash of the swept keys and values")
    params: dict[str, str] = setting(
        "swept keys and their values in the grammar of the command line: {optimizer.lr: '1e-3,3e-4'}; the command line takes precedence"
    )
    parallel: int = setting("trials that run at once; on this machine they divide its GPUs among them", low=1)
    metric: str | None = setting(
        "metric that ranks the trials, a name in `final` of summary.json; null: the best value of schedule.best_monitor"
    )
    mode: str = setting(
        "min: smaller is better; max: larger is better; auto: the direction that the metric states", choices=("auto", "min", "max")
    )
    columns: list[str] = setting(
        "further columns of the table: names in `final` or `timings` of summary.json (val/species/top1, time/ms_per_step)"
    )
    trials: int | None = setting("number of trials for optuna; null for a grid", low=1)
    seed: int | None = setting("seed of optuna's sampler; null for a grid", low=0)
