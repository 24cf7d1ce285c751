"""Every key of the configuration changes something that can be observed, and no key is left out of the table."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from linnaeus import workloads
from linnaeus.config.registry import registered
from linnaeus.config.setting import entry_type
from linnaeus.config.typed_config import config_class, variants_of
from linnaeus.reporting.loggers import build_loggers
from linnaeus.sweep.request import check_settings, split_parameters
from linnaeus.sweep.trial_results import metric_of
from linnaeus.train.validation import measure_pass
from linnaeus.workloads import build_workload
from tests.config import launched
from tests.config import observers as see
from tests.config.observers import Case


def ran(*what: str, **row: bool) -> Callable[[Any], Any]:
    return lambda config: [getattr(see.ran(config), name) for name in what]


def built(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda config: get(see.built(config))


def end(config: Any) -> Any:
    return see.ran(config).summary["global_step"]


def three_updates(config: Any) -> str:
    return see.updates(config, steps=3)


def row_names(config: Any) -> set[str]:
    return {name for row in see.ran(config).rows for name in row}


def device(config: Any) -> str:
    return see.DistributedContext().initialize(device=config.trainer.device).device.type


def plateau(config: Any) -> list[float]:
    """Return the rate's scale for losses that fall, stay equal, and fall a little, while another metric rises."""
    lr, scales = see.plan(config).lr, []
    for step, loss in enumerate((5.0, 4.0, 4.0, 4.0, 3.99, 3.98, 3.97, 3.96)):
        lr.observe({"val/loss": loss, "val/order/loss": float(step)})
        scales.append(lr.scale(2))
    return scales


def pretrained(config: Any) -> Any:
    import timm

    asked, real = [], timm.create_model

    def create(name: str, pretrained: bool = False, **more: Any) -> Any:
        asked.append(pretrained)
        return real(name, pretrained=False, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timm, "create_model", create)
        see.built(config)
    return asked


def wandb(config: Any) -> Any:
    def logger(*_: Any, mode: str, project: str, **more: Any) -> None:
        raise FloatingPointError(f"{mode} {project}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linnaeus.reporting.sinks.wandb_logger.WandbLogger", logger)
        return see.ran(config).status


def followers(config: Any) -> list[Any]:
    """Return the arguments of the processes that send rows beside a run."""
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linnaeus.reporting.targets.missing_package", lambda target: "")
        patch.setattr("linnaeus.reporting.sinks.follower.Follower", lambda path, *words, **named: found.append((words, named)) or ())
        build_loggers(config, SimpleNamespace(path=Path("run")))
    return found


def messages(config: Any) -> Any:
    """Return the addresses and the occasions with which a run makes its notifier."""

    def notifier(*arguments: Any) -> None:
        raise FloatingPointError(str(arguments[2:]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linnaeus.train.outputs.Notifier", notifier)
        return see.ran(config).status


def operated(config: Any) -> str:
    """Return the weights after updates with a replacement of the library, which may be missing."""
    with pytest.MonkeyPatch.context() as patch:
        replacement = lambda method: lambda gramian: 1 + (method == "pcgrad") * gramian.diagonal()
        patch.setattr("linnaeus.weighting.surgery.library_weighting", replacement)
        return see.updates(config)


VECTORS = "experiment=vectors"  # trains in a fifth of the time of the taxonomy
GRADNORM = f"{VECTORS} weighting=gradnorm weighting.every=[1steps]"
SURGERY = f"{VECTORS} weighting=surgery trainer.micro_batch_size=8"
MIXED = "schedule.mixup_prob.start=1 schedule.mixup_prob.end=1 schedule.mixup_group_level=[{from:0%,level:order}]"
MANIFEST = "data=manifest data.path=FOLDER/manifest.csv data.image_size=32 data.components=[] data.validation_batch=20"
NESTED = MANIFEST.replace("manifest.csv", "nested").replace("data=manifest", "data=image_folder")
LABELS_H5 = MANIFEST.replace("manifest.csv", "labels.h5").replace("data=manifest", "data=labels_h5")
CAMTRAP = MANIFEST.replace("manifest.csv", "trap.json data.root=FOLDER/sub").replace("data=manifest", "data=camtrap_dp")
ARCHIVE = MANIFEST.replace("manifest.csv", "occurrence.txt").replace("data=manifest", "data=darwin_core")
OPEN = "data=inat_open_data data.path=FOLDER/open data.image_size=32 data.components=[] data.validation_batch=20"
TAXA = "data.taxonomy=FOLDER/taxa.csv data.taxon_column=taxon"
TIMM = "model=timm model.backbone=test_resnet"
LONG = "trainer.length=20steps"
FALLING = f"{VECTORS} schedule.validate=[1steps] optimizer.lr=0.003"
CKPT = f"{FALLING} schedule.checkpoint=[1steps] schedule.keep_last=1"
PHASE = "schedule.phases={one:{start:0%,end"
GROWTH = f"{VECTORS} growth=linear growth.every=[1steps] growth.until=100% optimizer.lr=0.01"
NONE = "schedule.meta_mask_prob.start=0 schedule.meta_mask_prob.end=0"
NULLS = "head.nulls=phase_in data.train_samples=72 trainer.global_batch_size=24 trainer.micro_batch_size=24"


def cases(observe: Callable[[Any], Any], changes: str, base: str = "") -> dict[str, Case]:
    """Return a case for each `key=value` or `key@variant=value`."""
    pairs = (word.split("=", 1) for word in changes.split())
    return {key: Case(f"{key.partition('@')[0]}={value}", observe, base) for key, value in pairs}


def ramp(name: str, observe: Callable[[Any], Any], base: str = "") -> dict[str, Case]:
    key = f"schedule.{name}"
    return cases(
        observe,
        f"{key}.start=0.95 {key}.end=0 {key}.begin=67% {key}.until=0%",
        f"{base} {key}.start=0 {key}.end=1 {key}.begin=0% {key}.until=67%",
    )


TABLE = {
    "plugins": Case("plugins=[tests.config.plugin]", lambda c: registered("optimizer", "registered_by_the_tests") is not None),
    "workload.name": Case("experiment=vectors", lambda c: type(build_workload(c)).__name__),
    "data.name": Case(MANIFEST, built(lambda t: t.workload.fingerprint)),
    "data.ranks": Case("data.ranks=[order,genus]", built(lambda t: [t.workload.tasks, t.model.head.tree.sizes])),
    "data.components": Case("data.components=[SPATIAL]", built(lambda t: t.workload.train_set.meta.shape)),
    "model.name": Case(TIMM, built(lambda t: type(t.model.trunk).__name__)),
    "loss.name": Case("loss=marginal", see.updates),
    "augment.name": Case("augment=none", see.batches),
    "augment.center_crop": Case(
        "augment.center_crop=0.5", built(lambda t: measure_pass(t, t.passes[0]).results(False)), f"{MANIFEST} augment=none"
    ),
    "augment.tta": Case("augment.tta=flip", built(lambda t: measure_pass(t, t.passes[0]).results(False))),
    "augment.mix_nulls": Case(
        "augment.mix_nulls=true", built(lambda t: t.workload.train_set.groups("order").tolist()), f"{MIXED} data.train_samples=400"
    ),
    "weighting.name@fixed": Case("weighting=gradnorm weighting.every=[1steps]", see.updates, VECTORS),
    "optimizer.name": Case("optimizer=sgd", see.updates, VECTORS),
    "optimizer.fused": Case("optimizer.fused=false", built(lambda t: [type(m).__name__ for m in t.optimizers.optimizers])),
    "lr_scheduler.name": Case("lr_scheduler=constant", see.learning_rates),
    "schedule.report": Case("schedule.report=[1steps]", lambda c: see.ran(c).console.count("step "), VECTORS),
    "schedule.best_monitor": Case("schedule.best_monitor=val/first/mse", lambda c: see.ran(c).summary["best"], VECTORS),
    "schedule.best_mode": Case("schedule.best_mode=max", lambda c: see.ran(c).summary["best"], FALLING),
    **ramp("meta_mask_prob", see.batches),
    **ramp("partial_meta_mask_prob", see.batches, NONE),
    **ramp("null_mask_prob", three_updates, NULLS),
    **ramp("mixup_prob", see.batches, "schedule.mixup_group_level=[{from:0%,level:order}]"),
    "schedule.phases": Case(f"{PHASE}:100%,lr:2}}}}", see.learning_rates),
    **{
        f"schedule.phases.NAME.{name}": Case(f"{PHASE}:100%,{change}}}}}", observe, f"{PHASE}:100%}}}}")
        for name, change, observe in (
            ("description", "description:x", see.plan_text),
            ("lr", "lr:0.5", see.learning_rates),
            ("data", "data:{x:1}", see.refusal(see.plan_text)),  # its effect: tests/laws/test_curriculum.py
            ("dimensions", "dimensions:{x:1}", see.refusal(see.plan_text)),
        )
    },
    "schedule.phases.NAME.start": Case(PHASE.replace("0%", "50%") + ":100%}}", see.refusal(see.plan_text), f"{PHASE}:100%}}}}"),
    "schedule.phases.NAME.end": Case(f"{PHASE}:50%}}}}", see.refusal(see.plan_text), f"{PHASE}:100%}}}}"),
    "growth.name@none": Case("growth=linear", see.updates, "experiment=vectors"),
    "trainer.micro_batch_size": Case("trainer.micro_batch_size=8", built(lambda t: t.sampler.accumulation)),
    "trainer.ema_validate": Case(
        "trainer.ema_validate=true schedule.best_monitor=val_ema/loss",
        row_names,
        f"{VECTORS} trainer.ema_decay=0.9 trainer.ema_validate=false",
    ),
    "trainer.compile": Case("trainer.compile=blocks", built(lambda t: [m._compiled_call_impl is None for m in t.model.modules()])),
    "trainer.activation_checkpointing": Case(
        "trainer.activation_checkpointing=2", built(lambda t: [len(type(m).__mro__) for m in t.model.modules()])
    ),
    "trainer.channels_last": Case("trainer.channels_last=true", built(lambda t: [p.stride() for p in t.model.parameters()])),
    "trainer.startup_timeout": Case("trainer.startup_timeout=5min", built(lambda t: t.watchdog.startup_timeout)),
    "trainer.timeout": Case("trainer.timeout=1min", built(lambda t: t.watchdog.timeout)),
    "logger.console": Case("logger.console=quiet", lambda c: "%  step " in see.ran(c).console, f"{VECTORS} schedule.report=[100%]"),
    "logger.tensorboard": Case("logger.tensorboard=true", lambda c: any("tfevents" in name for name in see.ran(c).files), VECTORS),
    "logger.csv": Case("logger.csv=true", lambda c: "csv/metrics.csv" in see.ran(c).files, VECTORS),
    "logger.mlflow": Case("logger.mlflow=true", followers),
    "logger.mlflow_uri": Case("logger.mlflow_uri=http://server", followers, "logger.mlflow=true"),
    "logger.trackio": Case("logger.trackio=true", followers),
    "logger.notify": Case("logger.notify=[x://y]", messages),
    "logger.notify_on": Case("logger.notify_on=[best]", messages, "logger.notify=[x://y]"),
    "logger.alarms": Case("logger.alarms=false", lambda c: "train/alarms" in see.ran(c).rows[0], VECTORS),
    "logger.report_sections": Case(
        "logger.report_sections=[progress]",
        lambda c: "smoothed" in see.ran(c).console,
        f"{VECTORS} schedule.report=[100%] logger.console=full",
    ),
    "logger.peak_tflops": Case("logger.peak_tflops=1", lambda c: "MFU" in see.ran(c).console, "logger.console=full schedule.report=[100%]"),
    "launch.name@process": Case("launch=torchrun", launched.command),
    **cases(
        launched.submitted,
        "launch.nodes@slurm=2 launch.processes@slurm=2 launch.time@slurm=4h launch.partition@slurm=x launch.cpus@slurm=3 "
        "launch.gpus@slurm=1 launch.memory@slurm=4G launch.signal_before@slurm=60 launch.max_requeues@slurm=1 "
        "launch.extra@slurm={account:birds}",
        "launch=slurm",
    ),
    **cases(
        see.updates,
        "seed=1 model.dropout=0.5 model.drop_path=0.5 loss.class_weights=inverse loss.logit_adjustment=1 "
        "loss.label_smoothing@cross_entropy=0.1 optimizer.layer_decay=0.5 trainer.freeze=[trunk]",
    ),
    **cases(
        see.updates,
        "weighting.weights@fixed={first:3} optimizer.lr=0.02 optimizer.lr_scaling=sqrt optimizer.weight_decay=0.5 "
        "optimizer.param_groups=[{filter:{dim:1},lr_scale:0}] optimizer.beta1@adamw=0.5 optimizer.beta2@adamw=0.5 "
        "optimizer.eps@adamw=0.01 optimizer.state_precision@adamw=bf16 trainer.global_batch_size=16 trainer.precision=bf16",
        VECTORS,
    ),
    **cases(ran("checkpoints"), "plan=true schedule.checkpoint=[1steps]", VECTORS),
    **cases(see.directory, "run.name=x run.experiment=x run.root=x"),
    **cases(see.second_start, "run.resume=never", "run.allow=[seed]"),
    **cases(see.second_start, "run.allow=[seed]"),
    **cases(
        ran("rows"),
        "schedule.log=[2steps] schedule.validate=[1steps] trainer.limit_validation_samples=10",
        VECTORS,
    ),
    **cases(ran("rows"), "run.init_from=FOLDER/weights.pt schedule.validate_mask_meta=[3steps]"),
    **cases(see.refusal(ran("rows")), "run.init_allow=[head]", "run.init_from=FOLDER/headless.pt"),
    **cases(see.refusal(ran("rows")), "run.init_checkpoint=best", "run.init_from=FOLDER/weights.pt"),
    **cases(ran("rows"), "run.init_skip=[head]", "run.init_from=FOLDER/weights.pt"),
    **cases(see.plan_text, "data.last_batch=drop", "data.train_samples=41"),
    **cases(see.validation_batches, "data.validation_batch=7 data.validation_samples@biota=21"),
    **cases(see.refusal(see.source), "data.max_bad_fraction=0.5", f"{MANIFEST} data.path=FOLDER/gaps.csv"),
    **cases(
        see.batches,
        "data.image_size=40 data.sampling=class_balanced data.world@biota=1 augment.crop_scale=[0.2,0.3] augment.crop_ratio=[0.3,0.4] "
        "augment.horizontal_flip=1 augment.vertical_flip=1 augment.brightness=0.8 augment.contrast=0.8 augment.saturation=0.8 "
        "augment.hue=0.3 augment.policy=randaugment augment.erasing=1 trainer.limit_train_samples=16",
    ),
    **cases(see.batches, "augment.crop_side=0.5"),
    **cases(see.batches, "data.sampling_rank=order", "data.sampling=square_root data.train_samples=400"),
    **cases(see.plan_text, "data.train_samples@biota=41"),
    **cases(
        see.source,
        "data.path=FOLDER/second.csv data.image_column@manifest=other_path "
        "data.rank_columns@manifest={genus:genus,species:taxon} data.date_column@manifest=day data.elevation_column@manifest=height "
        "data.split_column=side data.group_column=site data.validation_fraction=0.5 "
        "data.split_seed=1",
        MANIFEST,
    ),
    **cases(see.source, "data.split_file=FOLDER/split.csv", MANIFEST),
    **cases(see.source, "data.split_dates@manifest={val:2020-06-01}", f"{MANIFEST} data.date_column=day"),
    **cases(see.batches, "data.order=blocks", f"{MANIFEST} data.block_records=2 data.window_blocks=2"),
    **cases(
        see.batches,
        "data.block_records=3 data.window_blocks=3",
        f"{MANIFEST} data.order=blocks data.block_records=2 data.window_blocks=2",
    ),
    **cases(see.refusal(see.source), "data.folds=3", f"{MANIFEST} data.fold=1"),
    **cases(see.source, "data.fold=2", f"{MANIFEST} data.folds=3 data.fold=1"),
    **cases(see.batches, "data.root@manifest=FOLDER/sub data.weight_column=unc data.max_image_pixels=9", MANIFEST),
    **cases(see.source, "data.taxonomy@manifest=FOLDER/regrouped.csv data.taxon_column@manifest=species", f"{MANIFEST} {TAXA}"),
    **cases(
        see.source,
        "data.latitude_column@manifest=unc data.longitude_column@manifest=unc data.uncertainty_column@manifest=unc",
        f"{MANIFEST} data.latitude_column=lat data.longitude_column=lon",
    ),
    **cases(see.source, "data.filters@labels_h5=[] data.images@labels_h5=FOLDER/images.h5", LABELS_H5),
    **cases(see.source, "data.levels@image_folder=[kind,make]", f"{NESTED} data.levels=[genus,species]"),
    **cases(
        see.source,
        "data.observation_level@camtrap_dp=event data.observation_types@camtrap_dp=[animal,human] data.min_probability@camtrap_dp=0.5 "
        "data.photo_names@camtrap_dp=id",
        f"{CAMTRAP} data.photo_names=path",
    ),
    **cases(see.source, "data.photo_names@darwin_core=id", f"{ARCHIVE} data.photo_names=name"),
    **cases(see.source, "data.photo_size@inat_open_data=small data.research_grade@inat_open_data=true", OPEN),
    **cases(see.source, "data.keep_zero_coordinates@manifest=true", f"{MANIFEST} data.latitude_column=row data.longitude_column=row"),
    **cases(see.source, "data.date_format@manifest=%Y-%d-%m", f"{MANIFEST} data.date_column=day"),
    **cases(see.source, "data.time_column@manifest=clock", f"{MANIFEST} data.date_column=day"),
    **cases(see.source, "data.elevation_missing@manifest=0.0", f"{MANIFEST} data.elevation_column=height"),
    **cases(see.parameters, "model.meta_width=32 model.size@mformer=nano"),
    **cases(see.parameters, "model.backbone@timm=test_vit", TIMM),
    **cases(see.updates, "model.fusion@timm=separate", TIMM),
    **cases(pretrained, "model.pretrained@timm=true", TIMM),
    **cases(see.refusal(pretrained), "model.pretrained_file@timm=absent.safetensors", TIMM),
    **cases(see.updates, "head.routing@hierarchical_softmax=hard head.temperature@hierarchical_softmax=0.1", "head=hierarchical_softmax"),
    **cases(
        see.parameters,
        "head.name=marginal head.nulls=predict",
        "head=conditional data.train_samples=72 trainer.global_batch_size=24 trainer.micro_batch_size=24",
    ),
    **cases(built(lambda t: t.model.head.sharded), "head.sharded@linear=true"),
    **cases(built(lambda t: t.model.reduced_in_bf16()), "head.reduce_precision=bf16", "head=conditional"),
    **cases(see.updates, "loss.effective_beta=0.9 loss.class_weight_cap=1.1", "loss=class_balanced"),
    **cases(see.updates, "loss.label_smoothing@taxonomic_smoothing=0.3 loss.beta@taxonomic_smoothing=0", "loss=taxonomic_smoothing"),
    **cases(see.updates, "loss.beta@soft_labels=5", "loss=soft_labels"),
    **cases(see.updates, "loss.alpha@conditional=0.5", "loss=conditional"),
    **cases(see.updates, "loss.coarser_share=0.4"),
    **cases(see.batches, "schedule.image_size.start=8", "schedule.image_size.multiple=8"),
    **cases(
        see.batches,
        "schedule.image_size.multiple=8 schedule.image_size.begin=34% schedule.image_size.until=34%",
        "schedule.image_size.start=8 schedule.image_size.multiple=4 schedule.image_size.until=67%",
    ),
    **cases(see.batches, "augment.place=device"),
    **cases(see.batches, "augment.off_last=1steps", "augment.horizontal_flip=1"),
    **cases(see.batches, "augment.policy_magnitude=30 augment.policy_operations=5", "augment.policy=randaugment"),
    **cases(see.batches, "augment.mixup_alpha=5", f"{MIXED} augment.cutmix_alpha=0"),
    **cases(see.batches, "augment.cutmix_alpha=9", f"{MIXED} augment.cutmix_share=1"),
    **cases(see.batches, "augment.cutmix_share=1", f"{MIXED} augment.cutmix_share=0"),
    **cases(row_names, "weighting.conflict@fixed=[] schedule.all_combinations_at_end=true"),
    **cases(
        see.updates,
        "weighting.every=[2steps] weighting.warmup=2steps weighting.alpha@gradnorm=0 weighting.lr@gradnorm=0.2 "
        "weighting.place@gradnorm=trunk",
        GRADNORM,
    ),
    **cases(see.updates, "weighting.lr@uncertainty=0.5", f"{VECTORS} weighting=uncertainty"),
    **cases(see.updates, "weighting.temperature@dwa=0.5", f"{VECTORS} weighting=dwa weighting.every=[1steps]"),
    **cases(see.updates, "weighting.lr@famo=0.5 weighting.decay@famo=0.5", f"{VECTORS} weighting=famo"),
    **cases(operated, "weighting.method@surgery=upgrad weighting.place@surgery=trunk", SURGERY),
    **cases(see.updates, "optimizer.lr_reference_batch=32", f"{VECTORS} optimizer.lr_scaling=linear"),
    **cases(see.updates, "optimizer.opt@timm=lion optimizer.options@timm={betas:[0.5,0.9]}", f"{VECTORS} optimizer=timm"),
    **cases(see.updates, "optimizer.momentum@sgd=0.5 optimizer.nesterov@sgd=false trainer.max_grad_norm=0.01", f"{VECTORS} optimizer=sgd"),
    **cases(
        see.updates,
        "optimizer.momentum@muon=0.5 optimizer.adamw_lr_scale@muon=0.5 optimizer.beta1@muon=0.5 optimizer.beta2@muon=0.5 "
        "optimizer.eps@muon=0.01",
        f"{VECTORS} optimizer=muon",
    ),
    **cases(see.learning_rates, "lr_scheduler.warmup=2steps lr_scheduler.final_scale@cosine=0.5"),
    **cases(see.learning_rates, "lr_scheduler.final_scale@linear=0.5", "lr_scheduler=linear"),
    **cases(see.learning_rates, "lr_scheduler.milestones@step=[10%] lr_scheduler.factor@step=0.5", f"{LONG} lr_scheduler=step"),
    **cases(
        see.learning_rates,
        "lr_scheduler.decay@wsd=50% lr_scheduler.decay_shape@wsd=linear lr_scheduler.final_scale@wsd=0.5",
        f"{LONG} lr_scheduler=wsd",
    ),
    **cases(
        plateau,
        "lr_scheduler.monitor@plateau=val/order/loss lr_scheduler.mode@plateau=max lr_scheduler.factor@plateau=0.5 "
        "lr_scheduler.patience@plateau=0 lr_scheduler.min_delta@plateau=0.1",
        "lr_scheduler=plateau lr_scheduler.patience=1",
    ),
    **cases(ran("rows"), "schedule.validate_partial_mask_meta=[3steps]", "schedule.partial_combinations=[[SPATIAL]]"),
    **cases(
        row_names,
        "schedule.partial_combinations=[[TEMPORAL]]",
        "schedule.partial_combinations=[[SPATIAL]] schedule.validate_partial_mask_meta=[3steps]",
    ),
    **cases(ran("rows"), "schedule.validate_at_end=false", f"{VECTORS} schedule.validate=[2steps]"),
    **cases(ran("checkpoints"), "schedule.checkpoint_at_end=false", f"{VECTORS} schedule.validate=[] schedule.validate_at_end=false"),
    **cases(ran("checkpoints"), "schedule.keep_last=3", CKPT),
    **cases(ran("checkpoints"), "schedule.keep_best=3", f"{CKPT} schedule.keep_best=0"),
    **cases(see.batches, "schedule.partial_mask_whitelist=[[SPATIAL]]", f"{NONE} schedule.partial_meta_mask_prob.start=1"),
    **cases(
        see.batches,
        "schedule.partial_mask_weights=[1,0]",
        f"{NONE} schedule.partial_meta_mask_prob.start=1 schedule.partial_mask_whitelist=[[SPATIAL],[TEMPORAL]]",
    ),
    **cases(see.batches, "schedule.mixup_group_level=[{from:0%,level:genus}]", MIXED),
    **cases(end, "schedule.early_stop.monitor=val/first/mse", f"{FALLING} schedule.early_stop.metric_bound=1.6"),
    **cases(see.stops, "schedule.early_stop.mode=max", "schedule.early_stop.patience=1"),
    **cases(see.stops, "schedule.early_stop.patience=1"),
    **cases(see.stops, "schedule.early_stop.min_delta=1.5", "schedule.early_stop.patience=2"),
    **cases(end, "schedule.early_stop.metric_bound=1000", FALLING),
    **cases(
        end,
        "schedule.early_stop.min_lr=1 schedule.early_stop.max_grad_norm=1e-6 schedule.early_stop.max_steps=2 trainer.length=2steps",
        VECTORS,
    ),
    **cases(
        see.updates,
        "growth.start@linear=0.3 growth.end@linear=0.5 growth.begin@linear=1steps growth.until@linear=1steps "
        "growth.every@linear=[2steps] growth.by@linear=random",
        GROWTH,
    ),
    **cases(see.refusal(device), "trainer.device=cuda"),
    **cases(ran("files"), "trainer.ema_decay=0.9", f"{VECTORS} trainer.ema_validate=false run.name=x"),
    **cases(see.process, "trainer.deterministic=true trainer.threads=3"),
    **cases(ran("status"), "trainer.max_time=0.000001s", VECTORS),
    **cases(ran("status"), "trainer.max_skipped_in_a_row=1", f"{VECTORS} optimizer=sgd optimizer.lr=1e30"),
    **cases(see.loader_on_gpu, "trainer.num_workers=1"),
    **cases(see.loader_on_gpu, "trainer.prefetch=2 trainer.pin_memory=false", "trainer.num_workers=1"),
    **cases(wandb, "logger.wandb=offline", VECTORS),
    **cases(wandb, "logger.wandb_project=x", f"{VECTORS} logger.wandb=offline"),
    **cases(ran("files"), "logger.report=true debug.dump_metrics=true profile=steps:1-2 debug.batch_hashes=true", f"{VECTORS} run.name=x"),
    **cases(launched.command, "launch.processes@torchrun=4", "launch=torchrun"),
    **cases(launched.squeue_calls, "launch.poll@slurm=5", "launch=slurm"),
    **cases(see.refusal(lambda c: check_settings(c.sweep)), "sweep.method=optuna sweep.trials=3 sweep.seed=3"),
    **cases(launched.sweep_name_of, "sweep.name=x"),
    **cases(lambda c: split_parameters(c.sweep.params, [], None), "sweep.params={seed:'1,2'}"),
    **cases(launched.most_at_once, "sweep.parallel=2"),
    **cases(lambda c: metric_of(c.sweep, c), "sweep.metric=val/order/loss"),
    **cases(lambda c: metric_of(c.sweep, c), "sweep.mode=max", "sweep.metric=val/order/loss"),
    **cases(launched.columns_of_a_run, "sweep.columns=[val/order/loss]"),
}


def keys(workload: str = "taxonomy") -> Iterator[tuple[str, Any]]:
    """Yield (`group.key`, or `group.key@variant` if a variant declares it; the field) of the whole schema."""
    variants = variants_of(workload)

    def walk(cls: type, prefix: str, suffix: str = "") -> Iterator[tuple[str, Any]]:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            key = f"{prefix}{field.name}"
            if key in variants:
                yield from of_variants(key, variants[key])
            elif dataclasses.is_dataclass(hints[field.name]):
                yield from walk(hints[field.name], key + ".")
            else:
                yield key + suffix, field
                if dataclasses.is_dataclass(entry := entry_type(hints[field.name])):
                    yield from walk(entry, f"{key}.NAME.")

    def of_variants(group: str, choices: dict[str, type]) -> Iterator[tuple[str, Any]]:
        distinct = {cls: name for name, cls in reversed(choices.items())}
        for cls in distinct:
            for field in dataclasses.fields(cls):
                owner = next(base for base in cls.__mro__[::-1] if field.name in inspect.get_annotations(base))
                named = f"@{distinct[owner]}" if len(distinct) > 1 and owner in distinct else ""
                yield f"{group}.{field.name}{named}", field

    yield from walk(config_class(workload), "")


def test_each_workload_has_a_table():
    """This one is the taxonomy's; another workload has that of its own groups among its own tests."""
    tests = Path(__file__).resolve().parents[1] / "workloads"
    others = {path.parent.name for path in Path(workloads.__file__).parent.glob("*/config.py")} - {"taxonomy"}
    assert "language" in others
    assert [name for name in others if not (tests / name / f"test_{name}_keys.py").exists()] == []


def test_no_key_is_left_out():
    found = dict(keys())
    assert set(found) - set(TABLE) == set()
    assert set(TABLE) <= set(found), "the table has keys that do not exist"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("manifest")
    see.write_manifest(found)
    weights = see.built(see.composed("seed=1")).model.state_dict()
    torch.save(weights, found / "weights.pt")
    torch.save({name: value for name, value in weights.items() if not name.startswith("head.")}, found / "headless.pt")
    return str(found)


_baselines: dict[Any, Any] = {}  # shared by the keys that are observed alike


def changes(case: Case, folder: str, *always: str) -> bool:
    """Return True if the change of a case changes what is observed, on top of its base and `always`. FOLDER stands for `folder`."""
    torch.set_num_threads(1)
    base, change = ([word.replace("FOLDER", folder) for word in text.split()] for text in (case.base, case.change))
    which = (case.base, str(case.observe), always)
    if which not in _baselines:
        _baselines[which] = case.observe(see.composed(*always, *base))
    return case.observe(see.composed(*always, *base, *change)) != _baselines[which]


@pytest.mark.parametrize("key", sorted(TABLE, key=lambda key: (TABLE[key].base, TABLE[key].observe.__qualname__, key)))
def test_a_key_changes_what_is_observed(key, folder):
    assert changes(TABLE[key], folder)


def test_the_observers_see_no_change_where_there_is_none(folder):
    """The negative control: the same configuration twice gives the same results."""
    config = see.composed()
    for observe in (see.updates, see.batches, see.plan_text, see.learning_rates, ran("rows", "files", "checkpoints")):
        assert observe(config) == observe(config)
