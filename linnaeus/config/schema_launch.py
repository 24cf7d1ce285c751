"""The classes of `launch` and `sweep`: what starts runs. See `schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linnaeus.config.setting import setting


@dataclass(frozen=True)
class LaunchConfig:
    name: str = setting(
        "what starts a run, or each trial of a sweep: a process, a torchrun of several on this machine, or a SLURM job",
        choices=("process", "torchrun", "slurm"),
    )


@dataclass(frozen=True)
class TorchrunConfig(LaunchConfig):
    processes: int = setting("processes of a run, each with a GPU of its own where there are enough", low=1)


@dataclass(frozen=True)
class SlurmConfig(LaunchConfig):
    nodes: int = setting("machines of a run", low=1)
    processes: int = setting("processes of a run on each of them", low=1)
    time: str = setting("time limit of a job, after which it is requeued and the run continues: `4h`", duration="clock")
    partition: str | None = setting("partition; null: the cluster's default")
    cpus: int | None = setting("cores on each machine, loader workers included; null: what the cluster gives", low=1)
    gpus: int | None = setting("GPUs on each machine; null: none are asked for", low=1)
    memory: str | None = setting("memory on each machine, as in 32G; null: what the cluster gives")
    signal_before: int = setting("seconds before the time limit at which the run is told to save and end", low=10)
    max_requeues: int = setting("how often a job may be requeued at its time limit; preemptions do not count", low=0)
    poll: float = setting("seconds between two questions to SLURM, one for all jobs", above=0)
    extra: dict[str, Any] = setting("further options of sbatch without their dashes, {account: birds, qos: low, exclusive: true}")


@dataclass(frozen=True)
class SweepConfig:
    """Read by `python main.py -m`; without -m nothing of it has an effect."""

    method: str = setting("grid: every combination of the values; optuna: values proposed by what came out", choices=("grid", "optuna"))
    name: str | None = setting("directory of the sweep under <run.root>/sweeps/; null: a short hash of what is swept")
    params: dict[str, str] = setting(
        "keys and their values, {optimizer.lr: '1e-3,3e-4'}, in the grammar of the command line; a key given there goes before"
    )
    parallel: int = setting("how many trials run at once; those on this machine share its GPUs out among them", low=1)
    metric: str | None = setting("what the trials are compared by: a name in `final` of summary.json; null: the best schedule.best_monitor")
    mode: str = setting(
        "whether smaller or larger is better; auto: by the metric's name, schedule.best_mode for null", choices=("auto", "min", "max")
    )
    columns: list[str] = setting(
        "what else the table has of each trial: names in `final` or `timings` of summary.json (val/species/top1, time/ms_per_step)"
    )
    trials: int | None = setting("how many values optuna proposes; null for a grid, which says it itself", low=1)
    seed: int | None = setting("of optuna's proposals; null for a grid", low=0)
