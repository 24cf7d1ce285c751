"""The configuration as typed, frozen dataclasses: what the program sees once YAML and overrides have been composed.

No field has a default here: the values are in `conf/`. A workload brings the classes of its own groups (`data`, `model`,
`head`, `loss`, `augment`, `validation`); every class of `data` extends `DataConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linnaeus.config.setting import setting

Durations = list[str]  # "500steps", "2epochs", "10%", "15min"; an empty list is never


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
    global_batch: int = setting("samples of one optimizer update, over all processes and accumulation steps", low=1)
    micro_batch: int = setting("samples one process runs forward at once; accumulation is global_batch / (micro_batch x processes)", low=1)
    length: str = setting("length of the training: `20epochs` or `5000steps`", duration="update")
    device: str = setting("auto takes CUDA when there is one", choices=("auto", "cpu", "cuda"))
    precision: str = setting(
        "float32, float64, or autocast to bf16 / fp16 (fp16 scales the loss)", choices=("float32", "float64", "bf16", "fp16")
    )
    freeze: list[str] = setting(
        "beginnings of weight names ([trunk., norm.]) that are not trained: no gradient, no decay; such parts compute as in validation"
    )
    clip_norm: float | None = setting("largest norm of the gradient, after unscaling; null: no clipping", above=0)
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
    workers: int = setting("loader workers per process; 0 loads in the training process, enough for small cached images", low=0)
    prefetch: int = setting("batches each worker prepares ahead", low=1)
    pin_memory: bool = setting("stage batches in pinned memory for the copy to the GPU")


@dataclass(frozen=True)
class OptimizerConfig:
    name: str = setting("which optimizer", choices=("adamw", "sgd", "muon"))
    lr: float = setting("learning rate, at `lr_reference_batch` samples an update", above=0)
    lr_scaling: str = setting("how `lr` grows with the global batch", choices=("none", "linear", "sqrt"))
    lr_reference_batch: int = setting("the global batch `lr` is meant for", low=1)
    weight_decay: float = setting("decoupled weight decay of the matrices (norms, biases and tokens have none)", low=0)
    fused: bool = setting("one fused kernel per update where torch has one")
    groups: list[dict[str, Any]] = setting(
        "parameter groups: [{filter: ..., lr_scale: ..., weight_decay: ...}], the first that matches takes the parameter"
    )


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig):
    beta1: float = setting("decay of the first moment", low=0, below=1)
    beta2: float = setting("decay of the second moment", low=0, below=1)
    eps: float = setting("added to the root of the second moment", above=0)


@dataclass(frozen=True)
class SGDConfig(OptimizerConfig):
    momentum: float = setting("momentum", low=0, below=1)
    nesterov: bool = setting("Nesterov's form of momentum")


@dataclass(frozen=True)
class MuonConfig(OptimizerConfig):
    momentum: float = setting("momentum of the orthogonalised update of 2-d hidden weights", low=0, below=1)
    adamw_lr_scale: float = setting("learning rate of the AdamW that takes every other parameter, relative to lr", above=0)
    beta1: float = setting("decay of AdamW's first moment", low=0, below=1)
    beta2: float = setting("decay of AdamW's second moment", low=0, below=1)
    eps: float = setting("AdamW's eps", above=0)


@dataclass(frozen=True)
class SchedulerConfig:
    name: str = setting("shape of the learning rate", choices=("cosine", "linear", "step", "wsd", "constant", "plateau"))
    warmup: str = setting("linear warm-up from 0; `0steps` for none", duration="update")


@dataclass(frozen=True)
class CosineConfig(SchedulerConfig):
    final_scale: float = setting("learning rate at the end, relative to the peak", low=0, high=1)


@dataclass(frozen=True)
class LinearConfig(SchedulerConfig):
    final_scale: float = setting("learning rate at the end, relative to the peak", low=0, high=1)


@dataclass(frozen=True)
class StepConfig(SchedulerConfig):
    at: Durations = setting("moments at which the learning rate is multiplied by `factor`", duration="update")
    factor: float = setting("what it is multiplied by", above=0, high=1)


@dataclass(frozen=True)
class WSDConfig(SchedulerConfig):
    decay: str = setting("length of the final decay (warm-up, stable, decay)", duration="update")
    decay_shape: str = setting("shape of the final decay", choices=("linear", "cosine", "sqrt"))
    final_scale: float = setting("learning rate at the end, relative to the peak", low=0, high=1)


@dataclass(frozen=True)
class ConstantConfig(SchedulerConfig):
    pass


@dataclass(frozen=True)
class PlateauConfig(SchedulerConfig):
    monitor: str = setting("validation metric to watch, such as val/loss")
    mode: str = setting("whether smaller or larger is better; auto: by the metric's name", choices=("auto", "min", "max"))
    factor: float = setting("what the learning rate is multiplied by on a plateau", above=0, high=1)
    patience: int = setting("validations without improvement before that", low=0)
    min_delta: float = setting("smallest change that counts as an improvement", low=0)


@dataclass(frozen=True)
class RampConfig:
    """A probability that moves linearly from `start` to `end` between two moments and is constant outside them."""

    start: float = setting("probability before the ramp", low=0, high=1)
    end: float = setting("probability after the ramp", low=0, high=1)
    begin: str = setting("when the ramp begins", duration="update")
    until: str = setting("when the ramp ends", duration="update")


@dataclass(frozen=True)
class PhaseConfig:
    """An entry of `schedule.phases`; what it leaves out has the default here."""

    start: str = setting("when the phase begins", duration="update")
    end: str = setting("when it is over; until then it fades into a phase that has begun before", duration="update")
    description: str = setting("what it is for, in reports", default="")
    lr: float = setting("what the learning rate is multiplied by", above=0, default=1.0)
    data: dict[str, float] = setting(
        "weight of each source of the data that samples are drawn from, {news: 2, prose: 1}; empty: all, by their size", low=0, default={}
    )
    dimensions: dict[str, float] = setting(
        "weight of dimensions of the model, scaled to sum to 1; one that is not named weighs 1", low=0, default={}
    )


@dataclass(frozen=True)
class EarlyStopConfig:
    monitor: str = setting("validation metric to watch, such as val/loss")
    mode: str = setting("whether smaller or larger is better; auto: by the metric's name", choices=("auto", "min", "max"))
    patience: int | None = setting("validations without improvement before training stops; null: never", low=1)
    min_delta: float = setting("smallest change that counts as an improvement", low=0)
    metric_bound: float | None = setting("stop once the monitored metric is at least this good; null: never")
    min_lr: float | None = setting("stop once the learning rate is below this, after warm-up; null: never", above=0)
    max_grad_norm: float | None = setting(
        "stop once the gradient norm (before clipping) exceeds this at a log boundary; null: never", above=0
    )
    max_steps: int | None = setting("stop at this global step whatever the length says; null: never", low=1)


@dataclass(frozen=True)
class ScheduleConfig:
    log: Durations = setting("when a row of training metrics is written", duration="update")
    report: Durations = setting("when a progress report is printed; besides at 0 % and at the last step, unless []", duration="any")
    validate: Durations = setting("when the normal validation pass runs", duration="update")
    validate_mask_meta: Durations = setting("when validation with all metadata masked runs", duration="update")
    validate_partial_mask_meta: Durations = setting("when validation with each listed combination masked runs", duration="update")
    partial_combinations: list[list[str]] = setting(
        "the combinations of metadata components to mask in partial passes: [[SPATIAL], [SPATIAL, TEMPORAL]]"
    )
    validate_at_end: bool = setting("run the passes that have a cadence once more at the last step if they are not due there")
    all_combinations_at_end: bool = setting("at the end validate every combination of masked components")
    checkpoint: Durations = setting("when a checkpoint is written", duration="any")
    checkpoint_at_end: bool = setting("write a checkpoint at the last step")
    keep_last: int = setting("how many of the newest checkpoints are kept", low=1)
    keep_best: int = setting("how many of the best checkpoints are kept besides", low=0)
    best_monitor: str = setting("validation metric that says which is best")
    best_mode: str = setting("whether smaller or larger is better; auto: by the metric's name", choices=("auto", "min", "max"))
    meta_mask: RampConfig = setting("probability that all metadata of a training sample are masked")
    partial_meta_mask: RampConfig = setting("probability that one listed combination of a sample's metadata is masked")
    partial_mask_whitelist: list[list[str]] = setting("combinations partial masking may draw; empty: every proper subset")
    partial_mask_weights: list[float] = setting("their weights; empty: equal")
    null_mask: RampConfig = setting("probability that a null label is left out of the loss; below 1 needs head.nulls=phase_in")
    mixing: RampConfig = setting("probability that a pair of samples is mixed")
    mixing_level: list[dict[str, str]] = setting(
        "taxonomic rank whose members are paired, from each moment on: [{from: 0%, level: genus}]; takes effect at epoch starts"
    )
    phases: dict[str, PhaseConfig] | None = setting(
        "a curriculum, in order of start: {first: {start: 0%, end: 40%, lr: 1.2}, second: {start: 30%, end: 100%}}; two that overlap are "
        "cross-faded; null or {}: none"
    )
    early_stop: EarlyStopConfig = setting("when training stops before its length")


@dataclass(frozen=True)
class WeightingConfig:
    name: str = setting("how the losses of the tasks are weighted", choices=("fixed", "gradnorm", "uncertainty", "dwa", "famo", "surgery"))
    weights: dict[str, float] = setting("weight per task to begin with; a task not named has 1; scaled to sum to the number of tasks")
    conflict: Durations = setting(
        "when the cosines between the tasks' gradients at the last shared layer are measured, for the rows of metrics", duration="update"
    )


@dataclass(frozen=True)
class MovingWeightsConfig(WeightingConfig):
    """What every weighting has that moves its weights now and then."""

    every: Durations = setting("when the weights are updated; for dwa the interval its mean losses are of", duration="update")
    warmup: str = setting("no update of the weights before this", duration="update")


@dataclass(frozen=True)
class GradNormConfig(MovingWeightsConfig):
    alpha: float = setting("strength of the restoring force towards equal training rates", low=0)
    lr: float = setting("step size of the task weights", above=0)
    place: str = setting(
        "where gradients are measured: at the last shared layer, the features the heads read, or exactly, over all shared parameters",
        choices=("shared", "features", "trunk"),
    )


@dataclass(frozen=True)
class UncertaintyConfig(MovingWeightsConfig):
    lr: float = setting("step size of the tasks' log variances, which settle within a few times 2 / lr updates of them", above=0)


@dataclass(frozen=True)
class DWAConfig(MovingWeightsConfig):
    temperature: float = setting("softness of the weights; a large one makes them equal", above=0)


@dataclass(frozen=True)
class FAMOConfig(MovingWeightsConfig):
    lr: float = setting("step size of Adam on the logits of the task weights", above=0)
    decay: float = setting("pull of the logits back to 0", low=0)


@dataclass(frozen=True)
class SurgeryConfig(WeightingConfig):
    method: str = setting("how conflicting gradients are combined", choices=("pcgrad", "upgrad"))
    place: str = setting(
        "where gradients are measured: at the last shared layer, or exactly, over all shared parameters", choices=("shared", "trunk")
    )


@dataclass(frozen=True)
class GrowthConfig:
    name: str = setting(
        "none: every weight is there from the start; linear: the share of connected weights grows linearly", choices=("none", "linear")
    )


@dataclass(frozen=True)
class LinearGrowthConfig(GrowthConfig):
    start: float = setting("share of the weights that are connected at the start, of every matrix alike", above=0, below=1)
    end: float = setting("share that is connected once the growth is over", above=0, high=1)
    begin: str = setting("when the growth begins", duration="update")
    until: str = setting("when it ends", duration="update")
    every: Durations = setting(
        "when weights are connected between these two, besides at the end; []: never, for a density that stays", duration="update"
    )
    by: str = setting(
        "which weights come next: those with the largest gradient in the update that connects them, or by a random order",
        choices=("gradient", "random"),
    )


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
