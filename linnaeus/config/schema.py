"""Define the configuration as typed, frozen dataclasses, which are filled after YAML files and settings are composed.

Fields have no defaults, because the values are in `conf/`. A workload defines the classes of its own groups (`data`, `model`, `head`,
`loss`, `augment`); every class of `data` extends `DataConfig`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from linnaeus.config.choices import AUTO
from linnaeus.config.schema_optimization import (
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    DWAConfig,
    FAMOConfig,
    GradNormConfig,
    GrowthConfig,
    LinearConfig,
    LinearGrowthConfig,
    MuonConfig,
    OptimizerConfig,
    PlateauConfig,
    SchedulerConfig,
    SGDConfig,
    StepConfig,
    SurgeryConfig,
    TimmOptimizerConfig,
    UncertaintyConfig,
    WeightingConfig,
    WSDConfig,
)
from linnaeus.config.schema_schedule import ScheduleConfig
from linnaeus.config.setting import setting

ANYWHERE = "anywhere"  # value of `trainer.deterministic`


@dataclass(frozen=True)
class RunConfig:
    name: str | None = setting(
        "run directory under <root>/<experiment>/; null: a short hash of the keys that alter the updates; in a sweep of W&B, the trial's id"
    )
    experiment: str | None = setting("name of the experiment, a folder under `root`; null: the name of the data")
    root: str = setting("folder of all run directories")
    resume: str = setting("auto: continue the run in its directory; never: refuse if there is one; or the path of a checkpoint to continue")
    allow: list[str] = setting("config keys that may change on resume although they alter the updates")
    init_from: str | None = setting("initial weights of a new run: a run directory, a checkpoint, safetensors or torch file; null: random")
    init_checkpoint: str | None = setting(
        "checkpoint of the run `init_from`: newest, best (by its `best_monitor`) or a step; null: newest", step=True
    )
    init_allow: list[str] = setting("prefixes of weight names ([head.]) that may be missing in `init_from` (then random) or left over")
    init_skip: list[str] = setting("prefixes of weight names ([head.]) that keep their random initialisation even if `init_from` has them")


@dataclass(frozen=True)
class TrainerConfig:
    global_batch_size: int = setting("samples per optimizer update, over all processes and accumulation steps", low=1)
    micro_batch_size: str | int | None = setting(
        "samples per forward of one process; accumulation steps = global_batch_size / (micro_batch_size x processes); null: 1 step; "
        "auto: the largest that fits into the GPU, found at the first start by trial updates and then kept; 5 % of its memory stays free; "
        "a compiled model, which as a rule needs no more memory, is tried uncompiled",
        choices=(AUTO,),
        low=1,
    )
    length: str = setting("length of the run: `20epochs` or `5000steps`", duration="length")
    device: str = setting("auto: CUDA if available, else the CPU; Apple's GPUs (mps) are not supported", choices=("auto", "cpu", "cuda"))
    precision: str = setting("float32, float64, or autocast; fp16 also scales the loss", choices=("float32", "float64", "bf16", "fp16"))
    freeze: list[str] = setting("prefixes of weight names ([trunk., norm.]) that are not trained; these parts run in eval mode")
    max_grad_norm: float | None = setting("gradient clipping: maximum norm of the unscaled gradient; null or 0: no clipping", low=0)
    ema_decay: float | None = setting("decay of the exponential moving average of the weights; null: no average", low=0, below=1)
    ema_validate: bool = setting("validate the averaged weights (rows named val_ema/...) instead of the raw weights")
    compile: str | bool = setting(
        "torch.compile: blocks (equal blocks of the network share one compiled graph), whole (large parts at once), or false",
        choices=("blocks", "whole"),
    )
    activation_checkpointing: str | int = setting(
        "recompute activations in backward, which saves memory: none, blocks (in all repeated blocks), or N (in every N-th block)",
        choices=("none", "blocks"),
        low=1,
    )
    channels_last: bool = setting("channels_last memory format for 4-d tensors")
    deterministic: str | bool = setting(
        "false: fastest; true: deterministic kernels, gradients added in rank order; anywhere: the same bits on any number of processes",
        choices=("true", ANYWHERE),
    )
    threads: int | None = setting("CPU threads per process; null: torch's default", low=1, high=1024)
    max_time: str | None = setting("save and stop with exit status 75 after this wall time, such as `23h`; null: never", duration="clock")
    startup_timeout: str = setting("how long processes wait for each other until the first update is done", duration="clock")
    timeout: str = setting("how long processes wait for each other later; then the run ends and names the stuck process", duration="clock")
    limit_train_samples: int | None = setting("train on the first samples only, at most this many; null: all", low=2)
    limit_validation_samples: int | None = setting("validate on this many samples only, the same ones in every pass; null: all", low=1)
    max_skipped_in_a_row: int = setting("stop after this many consecutive updates were skipped as non-finite", low=1)
    num_workers: int = setting("loader workers per process; 0: load in the training process, enough for small cached images", low=0)
    prefetch: int = setting("batches that each worker prepares in advance", low=1)
    pin_memory: bool = setting("copy batches through pinned memory to the GPU")


@dataclass(frozen=True)
class LoggerConfig:
    console: str = setting(
        "live: a panel on a terminal; plain: a line a report; full: everything in train.log; quiet: warnings and the result; "
        "auto: live on a terminal, otherwise plain",
        choices=("auto", "live", "plain", "full", "quiet"),
    )
    wandb: str = setting("Weights & Biases", choices=("disabled", "offline", "online"))
    wandb_project: str = setting("project at W&B and trackio")
    tensorboard: bool = setting("write TensorBoard event files")
    csv: bool = setting("write the rows as tables too: csv/metrics.csv and csv/timings.csv")
    mlflow: bool = setting("send the rows to MLflow while the run trains; needs the extra mlflow")
    mlflow_uri: str | None = setting("MLflow server or database; null: MLFLOW_TRACKING_URI, or MLflow's default")
    trackio: bool = setting("write the rows to a local trackio project while the run trains; needs the extra trackio")
    notify: list[str] = setting("addresses of apprise that get messages, such as ['${oc.env:NOTIFY}']; needs the extra notify")
    notify_on: list[str] = setting("occasions of messages", choices=("start", "milestones", "best", "warnings", "end"))
    alarms: bool = setting("warn of spikes, non-finite updates and other problems, in the log and in alarms.jsonl")
    report: bool = setting("write report.html at the end")
    report_sections: list[str] = setting(
        "sections of a progress report, in this order; schedule.report sets when it is printed",
        choices=(
            *("progress", "loss", "validation", "tasks", "update", "time", "rates", "memory"),
            *("samples", "model", "growth", "phase", "workload"),
        ),
    )
    peak_tflops: float | None = setting("a device's peak TFLOP/s at trainer.precision, for the MFU; null: the maker's, if known", above=0)


@dataclass(frozen=True)
class DebugConfig:
    dump_metrics: bool = setting("write MetricsTracker.dump_metrics_state() to debug/metrics-step-N.json at each validation")
    batch_hashes: bool = setting("write the hash and the sample ids of every micro-batch to batches-rank<r>.jsonl")


@dataclass(frozen=True)
class LaunchConfig:
    name: str = setting("launcher: one process, torchrun on this machine, or a SLURM job", choices=("process", "torchrun", "slurm"))

    @property
    def world_size(self) -> int:
        """Return the number of processes of a run."""
        return 1


@dataclass(frozen=True)
class TorchrunConfig(LaunchConfig):
    processes: int = setting("processes of a run; each gets its own GPU if there are enough", low=1)

    @property
    def world_size(self) -> int:
        return self.processes


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

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes

    extra: dict[str, Any] = setting("further sbatch options without dashes: {account: birds, qos: low, exclusive: true}")


@dataclass(frozen=True)
class SweepConfig:
    """Settings of a sweep, `python main.py -m`. They have no effect without `-m`."""

    method: str = setting("grid: every combination of the values; optuna: values proposed from earlier results", choices=("grid", "optuna"))
    name: str | None = setting("directory of the sweep under <run.root>/sweeps/; null: a short hash of the swept keys and values")
    params: dict[str, str] = setting("swept keys and values, as typed: {optimizer.lr: '1e-3,3e-4'}; the command line takes precedence")
    parallel: int = setting("trials that run at once; on this machine they divide its GPUs among them", low=1)
    metric: str | None = setting("name in `final` of summary.json that ranks the trials; null: the best of schedule.best_monitor")
    mode: str = setting("min: smaller is better; max: larger is better; auto: as the metric states", choices=("auto", "min", "max"))
    columns: list[str] = setting("further columns: names in `final` or `timings` of summary.json (val/species/top1, time/ms_per_step)")
    trials: int | None = setting("number of trials for optuna; null for a grid", low=1)
    seed: int | None = setting("seed of optuna's sampler; null for a grid", low=0)


@dataclass(frozen=True)
class DataConfig:
    """Keys of the group `data` that exist in every workload."""

    name: str = setting("name of the data source")
    last_batch: str = setting(
        "keep: the last update of an epoch uses the remaining samples; drop: they are left out", choices=("keep", "drop")
    )
    validation_batch: int | None = setting("samples per validation batch; null: the micro-batch size, or at most 64 if null too", low=1)
    max_bad_fraction: float = setting("maximum share of unreadable samples; above it the run stops", low=0, high=1)


@dataclass(frozen=True)
class WorkloadConfig:
    name: str = setting("workload: a package of linnaeus.workloads, or a dotted module of your own")


@dataclass(frozen=True)
class Config:
    """The whole configuration. `data`, `model`, `head`, `loss` and `augment` are dataclasses of the workload; None if the workload does not
    have this group.

    `from_environment`: {path of a key: text such as `${oc.env:TOKEN}`} for values read from the environment (`environment.py`). `choices`:
    the values that replaced `auto`. `prepared`: the data that were read to choose these values (`choices.py`)."""

    from_environment: ClassVar[Mapping[tuple[Any, ...], str]] = {}
    choices: ClassVar[tuple[Any, ...]] = ()
    prepared: ClassVar[Any] = None
    seed: int = setting("seed of everything random", low=0)
    plugins: list[str] = setting("packages of your own to import first; they register parts (docs/extending.md)")
    plan: bool = setting("build everything, print the schedule and stop before training")
    profile: str | None = setting("steps:50-60: write where the time of these updates goes, and a torch trace, to profile/; null: nothing")
    run: RunConfig = setting("run directory, resuming and warm start")
    workload: WorkloadConfig = setting("research program")
    data: Any = setting("training and validation data")
    model: Any = setting("network")
    head: Any = setting("output layers")
    loss: Any = setting("loss of one task")
    augment: Any = setting("augmentation of training samples")
    weighting: WeightingConfig = setting("weighting of the tasks against each other")
    optimizer: OptimizerConfig = setting("optimizer")
    lr_scheduler: SchedulerConfig = setting("learning-rate schedule")
    schedule: ScheduleConfig = setting("when to log, validate, save and stop, and how values change over the run")
    growth: GrowthConfig = setting("growth of connections during training")
    trainer: TrainerConfig = setting("how an update is computed, and resources")
    logger: LoggerConfig = setting("console, loggers and reports")
    debug: DebugConfig = setting("debugging aids")
    launch: LaunchConfig = setting("launcher of runs")
    sweep: SweepConfig = setting("several runs in one command")


# `run.from` is read by `rundir.repeat`: a dataclass field cannot be called `from`.
FROM = "run.from"
FROM_MEANING = "repeat a run from its saved config.yaml or its directory, with the same bits; further keys change single values"

# group -> value of its `name` -> class, for the groups that belong to the program itself.
VARIANTS: dict[str, dict[str, type]] = {
    "optimizer": {"adamw": AdamWConfig, "sgd": SGDConfig, "muon": MuonConfig, "timm": TimmOptimizerConfig},
    "lr_scheduler": {
        "cosine": CosineConfig,
        "linear": LinearConfig,
        "step": StepConfig,
        "wsd": WSDConfig,
        "constant": ConstantConfig,
        "plateau": PlateauConfig,
    },
    "weighting": {
        "fixed": WeightingConfig,
        "gradnorm": GradNormConfig,
        "uncertainty": UncertaintyConfig,
        "dwa": DWAConfig,
        "famo": FAMOConfig,
        "surgery": SurgeryConfig,
    },
    "growth": {"none": GrowthConfig, "linear": LinearGrowthConfig},
    "launch": {"process": LaunchConfig, "torchrun": TorchrunConfig, "slurm": SlurmConfig},
}
WORKLOAD_GROUPS = ("data", "model", "head", "loss", "augment")
