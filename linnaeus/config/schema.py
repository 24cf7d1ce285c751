"""The configuration as typed, frozen dataclasses: what the program sees once YAML and overrides have been composed.

No field has a default here: the values are in `conf/`. A workload brings the classes of its own groups (`data`, `model`,
`head`, `loss`, `augment`, `validation`); every class of `data` extends `DataConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linnaeus.config.schema_launch import LaunchConfig, SlurmConfig, SweepConfig, TorchrunConfig
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
    UncertaintyConfig,
    WeightingConfig,
    WSDConfig,
)
from linnaeus.config.schema_schedule import ScheduleConfig
from linnaeus.config.setting import setting


@dataclass(frozen=True)
class RunConfig:
    name: str | None = setting("directory of the run under outputs/<experiment>/; null: a short hash of the keys that alter the updates")
    experiment: str | None = setting("name of the experiment, the folder under `root`; null: the name of the data")
    root: str = setting("where run directories are made")
    resume: str = setting("auto: continue what is in the run directory; never: refuse if there is a run; or the path of a checkpoint")
    allow: list[str] = setting("config keys that may differ from the run being resumed although they alter its updates")
    init_from: str | None = setting(
        "weights a new run begins with: a run directory, a checkpoint, a safetensors or torch file; null: freshly initialised"
    )
    init_allow: list[str] = setting(
        "beginnings of weight names ([head.]) that may stay freshly initialised or unused where `init_from` does not fit"
    )
    init_skip: list[str] = setting("beginnings of weight names ([head.]) that stay freshly initialised though `init_from` has them")


@dataclass(frozen=True)
class TrainerConfig:
    global_batch_size: int = setting("samples of one optimizer update, over all processes and accumulation steps", low=1)
    micro_batch_size: int = setting(
        "samples one process runs forward at once; accumulation is global_batch_size / (micro_batch_size x processes)", low=1
    )
    length: str = setting("length of the training: `20epochs` or `5000steps`", duration="update")
    device: str = setting("auto takes CUDA when there is one", choices=("auto", "cpu", "cuda"))
    precision: str = setting(
        "float32, float64, or autocast to bf16 / fp16 (fp16 scales the loss)", choices=("float32", "float64", "bf16", "fp16")
    )
    freeze: list[str] = setting(
        "beginnings of weight names ([trunk., norm.]) that are not trained: no gradient, no decay; such parts compute as in validation"
    )
    max_grad_norm: float | None = setting("largest norm of the gradient, after unscaling; null: no clipping", above=0)
    ema_decay: float | None = setting("decay of an exponential moving average of the weights; null: none", low=0, below=1)
    ema_validate: bool = setting("validate the averaged weights (rows named val_ema/...) instead of the raw ones")
    compile: bool = setting("torch.compile the model")
    channels_last: bool = setting("channels_last memory format for 4-d tensors")
    deterministic: bool = setting("deterministic kernels, and gradients reduced in rank order")
    threads: int | None = setting("CPU threads per process; null: leave torch's choice", low=1)
    max_time: str | None = setting(
        "save and stop (status 75) after this much time of the clock, counted from each start: `23h`; null: never", duration="clock"
    )
    startup_timeout: str = setting("how long processes wait for each other until the first update is done", duration="clock")
    timeout: str = setting("how long they do from then on, until the run ends with the process that hangs named", duration="clock")
    max_skipped_in_a_row: int = setting("stop after this many updates in a row were skipped as non-finite", low=1)
    num_workers: int = setting("loader workers per process; 0 loads in the training process, enough for small cached images", low=0)
    prefetch: int = setting("batches each worker prepares ahead", low=1)
    pin_memory: bool = setting("stage batches in pinned memory for the copy to the GPU")


@dataclass(frozen=True)
class LoggerConfig:
    console: str = setting("auto: live display on a terminal, plain lines otherwise", choices=("auto", "plain", "rich", "quiet"))
    wandb: str = setting("Weights & Biases", choices=("disabled", "offline", "online"))
    wandb_project: str = setting("W&B project")
    tensorboard: bool = setting("write TensorBoard event files")
    report: bool = setting("write report.html at the end")
    report_sections: list[str] = setting(
        "what a progress report tells, in this order; schedule.report says when",
        choices=(
            *("progress", "loss", "validation", "tasks", "update", "time", "rates", "memory"),
            *("samples", "model", "growth", "phase", "workload"),
        ),
    )
    peak_tflops: float | None = setting(
        "what one device can do at trainer.precision, TFLOP/s, for the MFU in reports; null: the maker's figure where it is known", above=0
    )


@dataclass(frozen=True)
class DebugConfig:
    dump_metrics: bool = setting("print and save MetricsTracker.dump_metrics_state() at each validation")
    batch_hashes: bool = setting("write the hash and the sample ids of every micro-batch to batches-rank<r>.jsonl")


@dataclass(frozen=True)
class DataConfig:
    """What every workload's `data` has."""

    name: str = setting("which source of data")
    last_batch: str = setting("keep: the last update of an epoch takes what is left; drop: it is left out", choices=("keep", "drop"))
    validation_batch: int = setting("samples of a validation batch", low=1)
    max_bad_fraction: float = setting("share of samples that may be unreadable before the run stops", low=0, high=1)


@dataclass(frozen=True)
class WorkloadConfig:
    name: str = setting("the research program: a package of linnaeus.workloads, or a dotted module")


@dataclass(frozen=True)
class Config:
    """The whole. `data`, `model`, `head`, `loss` and `augment` hold classes of the workload; null where it has no such group."""

    seed: int = setting("everything random is a function of this and a position", low=0)
    plugins: list[str] = setting("packages of your own to import first; they register parts (docs/extending.md)")
    plan: bool = setting("build all that a run needs, print the schedule and stop before training")
    run: RunConfig = setting("the run directory and how it is continued")
    workload: WorkloadConfig = setting("the research program")
    data: Any = setting("what is learnt from")
    model: Any = setting("the network")
    head: Any = setting("what turns features into predictions")
    loss: Any = setting("the loss of one task")
    augment: Any = setting("what is done to training samples")
    weighting: WeightingConfig = setting("how the tasks are weighted against each other")
    optimizer: OptimizerConfig = setting("the optimizer")
    lr_scheduler: SchedulerConfig = setting("the learning rate over time")
    schedule: ScheduleConfig = setting("what happens when")
    growth: GrowthConfig = setting("weights that are missing at first and connected while the model trains")
    trainer: TrainerConfig = setting("how an update is computed")
    logger: LoggerConfig = setting("where the numbers go")
    debug: DebugConfig = setting("what else is written down")
    launch: LaunchConfig = setting("what starts a run, or each trial of a sweep")
    sweep: SweepConfig = setting("several runs in one command")


# `run.from` is read by `rundir.repeat`: a dataclass field cannot be called `from`.
FROM = "run.from"
FROM_MEANING = "repeat a run from its saved config.yaml or its directory, with the same bits; further keys change single values"

# group -> value of its `name` -> class, for the groups that belong to the program itself.
VARIANTS: dict[str, dict[str, type]] = {
    "optimizer": {"adamw": AdamWConfig, "sgd": SGDConfig, "muon": MuonConfig},
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
