"""Every key of the configuration changes something that can be observed, and no key is left out of the table."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from linnaeus import workloads
from linnaeus.config.load import entry_schema, variants_of
from linnaeus.config.registry import registered
from linnaeus.config.schema import Config
from linnaeus.workloads import build_workload
from tests.config import launched, on_slurm
from tests.config import observers as see


class Case(NamedTuple):
    """`change` (overrides) makes `observe` answer differently, both on top of `base`."""

    change: str
    observe: Callable[[Any], Any]
    base: str = ""


def ran(*what: str, **row: bool) -> Callable[[Any], Any]:
    return lambda config: [getattr(see.ran(config), name) for name in what]


def built(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda config: get(see.built(config))


def end(config: Any) -> Any:
    return see.ran(config).summary["global_step"]


def row_names(config: Any) -> set[str]:
    return {name for row in see.ran(config).rows for name in row}


def validation_batches(config: Any) -> int:
    t = see.built(config)
    see.train.validate_one_pass(t, t.passes[0])
    return len(t.validation_loader)


def device(config: Any) -> str:
    return see.DistributedContext().initialize(device=config.trainer.device).device.type


def plateau(config: Any) -> list[float]:
    """The rate's scale under losses that fall, rest, and fall a little, another metric rising meanwhile."""
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
    class Asked(Exception):
        pass

    def logger(*_: Any, mode: str, project: str, **more: Any) -> None:
        raise Asked(f"{mode} {project}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linnaeus.reporting.wandb_logger.WandbLogger", logger)
        try:
            return see.ran(config).status
        except Asked as asked:
            return str(asked)


def operated(config: Any) -> str:
    """Updates under a stand-in for the library, which need not be there."""
    with pytest.MonkeyPatch.context() as patch:
        stand_in = lambda method: lambda gramian: 1 + (method == "pcgrad") * gramian.diagonal()
        patch.setattr("linnaeus.weighting.surgery.library_weighting", stand_in)
        return see.updates(config)


GRADNORM = "weighting=gradnorm weighting.every=[1steps]"
SURGERY = "weighting=surgery trainer.micro_batch_size=8"
MIXED = "schedule.mixup_prob.start=1 schedule.mixup_prob.end=1 schedule.mixup_group_level=[{from:0%,level:order}]"
MANIFEST = "data=manifest data.path=FOLDER/manifest.csv data.image_size=32 data.components=[] data.validation_batch=20"
TAXA = "data.taxonomy=FOLDER/taxa.csv data.taxon_column=taxon"
TIMM = "model=timm model.backbone=test_resnet"
LONG = "trainer.length=20steps"
FALLING = "schedule.validate=[1steps] optimizer.lr=0.003"
CKPT = f"{FALLING} schedule.checkpoint=[1steps] schedule.keep_last=1"
PHASE = "schedule.phases={one:{start:0%,end"
GROWTH = "experiment=vectors growth=linear growth.every=[1steps] growth.until=100% optimizer.lr=0.01"
RAMP = "schedule.{0}.start=0 schedule.{0}.end=1 schedule.{0}.begin=0% schedule.{0}.until=67%"
NONE = "schedule.meta_mask_prob.start=0 schedule.meta_mask_prob.end=0"
NULLS = "head.nulls=phase_in data.train_samples=72 trainer.global_batch_size=24 trainer.micro_batch_size=24"


def ramp(name: str, observe: Callable[[Any], Any], base: str = "") -> dict[str, Case]:
    base = f"{base} {RAMP.format(name)}"
    changes = {"start": "0.95", "end": "0", "begin": "67%", "until": "0%"}
    return {f"schedule.{name}.{word}": Case(f"schedule.{name}.{word}={value}", observe, base) for word, value in changes.items()}


TABLE = {
    "seed": Case("seed=1", see.updates),
    "plan": Case("plan=true", ran("checkpoints")),
    "plugins": Case("plugins=[tests.config.plugin]", lambda c: registered("optimizer", "registered_by_the_tests") is not None),
    "run.name": Case("run.name=x", see.directory),
    "run.experiment": Case("run.experiment=x", see.directory),
    "run.root": Case("run.root=x", see.directory),
    "run.resume": Case("run.resume=never", see.second_start, "run.allow=[seed]"),
    "run.allow": Case("run.allow=[seed]", see.second_start),
    "run.init_from": Case("run.init_from=FOLDER/weights.pt", ran("rows")),
    "run.init_allow": Case("run.init_allow=[head]", see.refusal(ran("rows")), "run.init_from=FOLDER/headless.pt"),
    "run.init_skip": Case("run.init_skip=[head]", ran("rows"), "run.init_from=FOLDER/weights.pt"),
    "workload.name": Case("experiment=vectors", lambda c: type(build_workload(c)).__name__),
    "data.name": Case(MANIFEST, built(lambda t: t.workload.fingerprint)),
    "data.last_batch": Case("data.last_batch=drop", see.plan_text, "data.train_samples=41"),
    "data.validation_batch": Case("data.validation_batch=7", validation_batches),
    "data.max_bad_fraction": Case("data.max_bad_fraction=0.5", see.refusal(see.source), f"{MANIFEST} data.path=FOLDER/gaps.csv"),
    "data.ranks": Case("data.ranks=[order,genus]", built(lambda t: [t.workload.tasks, t.model.head.sizes])),
    "data.components": Case("data.components=[SPATIAL]", built(lambda t: t.workload.train_set.meta.shape)),
    "data.image_size": Case("data.image_size=40", see.batches),
    "data.sampling": Case("data.sampling=class_balanced", see.batches),
    "data.sampling_rank": Case("data.sampling_rank=order", see.batches, "data.sampling=square_root data.train_samples=400"),
    "data.train_samples@biota": Case("data.train_samples=41", see.plan_text),
    "data.validation_samples@biota": Case("data.validation_samples=21", validation_batches),
    "data.world@biota": Case("data.world=1", see.batches),
    "data.path@manifest": Case("data.path=FOLDER/second.csv", see.source, MANIFEST),
    "data.root@manifest": Case("data.root=FOLDER/sub", see.batches, MANIFEST),
    "data.image_column@manifest": Case("data.image_column=other_path", see.source, MANIFEST),
    "data.rank_columns@manifest": Case("data.rank_columns={genus:genus,species:taxon}", see.source, MANIFEST),
    "data.taxonomy@manifest": Case("data.taxonomy=FOLDER/regrouped.csv", see.source, f"{MANIFEST} {TAXA}"),
    "data.taxon_column@manifest": Case("data.taxon_column=species", see.source, f"{MANIFEST} {TAXA}"),
    "data.latitude_column@manifest": Case(
        "data.latitude_column=unc", see.source, f"{MANIFEST} data.latitude_column=lat data.longitude_column=lon"
    ),
    "data.longitude_column@manifest": Case(
        "data.longitude_column=unc", see.source, f"{MANIFEST} data.latitude_column=lat data.longitude_column=lon"
    ),
    "data.uncertainty_column@manifest": Case(
        "data.uncertainty_column=unc", see.source, f"{MANIFEST} data.latitude_column=lat data.longitude_column=lon"
    ),
    "data.date_column@manifest": Case("data.date_column=day", see.source, MANIFEST),
    "data.time_column@manifest": Case("data.time_column=clock", see.source, f"{MANIFEST} data.date_column=day"),
    "data.elevation_column@manifest": Case("data.elevation_column=height", see.source, MANIFEST),
    "data.elevation_missing@manifest": Case("data.elevation_missing=0.0", see.source, f"{MANIFEST} data.elevation_column=height"),
    "data.split_column@manifest": Case("data.split_column=side", see.source, MANIFEST),
    "data.weight_column@manifest": Case("data.weight_column=unc", see.batches, MANIFEST),
    "data.group_column@manifest": Case("data.group_column=site", see.source, MANIFEST),
    "data.validation_fraction@manifest": Case("data.validation_fraction=0.5", see.source, MANIFEST),
    "data.split_seed@manifest": Case("data.split_seed=1", see.source, MANIFEST),
    "data.max_image_pixels@manifest": Case("data.max_image_pixels=9", see.batches, MANIFEST),
    "model.name": Case(TIMM, built(lambda t: type(t.model.trunk).__name__)),
    "model.dropout": Case("model.dropout=0.5", see.updates),
    "model.drop_path": Case("model.drop_path=0.5", see.updates),
    "model.meta_width": Case("model.meta_width=32", see.parameters),
    "model.size@mformer": Case("model.size=nano", see.parameters),
    "model.backbone@timm": Case("model.backbone=test_vit", see.parameters, TIMM),
    "model.pretrained@timm": Case("model.pretrained=true", pretrained, TIMM),
    "head.name": Case("head.name=marginal", see.parameters),
    "head.routing@hierarchical_softmax": Case("head.routing=hard", see.updates, "head=hierarchical_softmax"),
    "head.temperature@hierarchical_softmax": Case("head.temperature=0.1", see.updates, "head=hierarchical_softmax"),
    "head.nulls": Case(
        "head.nulls=predict", see.parameters, "data.train_samples=72 trainer.global_batch_size=24 trainer.micro_batch_size=24"
    ),
    "loss.name": Case("loss=marginal", see.updates),
    "loss.class_weights": Case("loss.class_weights=inverse", see.updates),
    "loss.effective_beta": Case("loss.effective_beta=0.9", see.updates, "loss=class_balanced"),
    "loss.class_weight_cap": Case("loss.class_weight_cap=1.1", see.updates, "loss=class_balanced"),
    "loss.logit_adjustment": Case("loss.logit_adjustment=1", see.updates),
    "loss.label_smoothing@cross_entropy": Case("loss.label_smoothing=0.1", see.updates),
    "loss.label_smoothing@taxonomic_smoothing": Case("loss.label_smoothing=0.3", see.updates, "loss=taxonomic_smoothing"),
    "loss.beta@taxonomic_smoothing": Case("loss.beta=0", see.updates, "loss=taxonomic_smoothing"),
    "loss.beta@soft_labels": Case("loss.beta=5", see.updates, "loss=soft_labels"),
    "loss.alpha@conditional": Case("loss.alpha=0.5", see.updates, "loss=conditional"),
    "augment.name": Case("augment=none", see.batches),
    "augment.crop_scale": Case("augment.crop_scale=[0.2,0.3]", see.batches),
    "augment.crop_ratio": Case("augment.crop_ratio=[0.3,0.4]", see.batches),
    "augment.horizontal_flip": Case("augment.horizontal_flip=1", see.batches),
    "augment.vertical_flip": Case("augment.vertical_flip=1", see.batches),
    "augment.brightness": Case("augment.brightness=0.8", see.batches),
    "augment.contrast": Case("augment.contrast=0.8", see.batches),
    "augment.saturation": Case("augment.saturation=0.8", see.batches),
    "augment.hue": Case("augment.hue=0.3", see.batches),
    "augment.policy": Case("augment.policy=randaugment", see.batches),
    "augment.policy_magnitude": Case("augment.policy_magnitude=30", see.batches, "augment.policy=randaugment"),
    "augment.policy_operations": Case("augment.policy_operations=5", see.batches, "augment.policy=randaugment"),
    "augment.erasing": Case("augment.erasing=1", see.batches),
    "augment.mixup_alpha": Case("augment.mixup_alpha=5", see.batches, f"{MIXED} augment.cutmix_alpha=0"),
    "augment.cutmix_alpha": Case("augment.cutmix_alpha=9", see.batches, f"{MIXED} augment.cutmix_share=1"),
    "augment.cutmix_share": Case("augment.cutmix_share=1", see.batches, f"{MIXED} augment.cutmix_share=0"),
    "augment.mix_nulls": Case(
        "augment.mix_nulls=true", built(lambda t: t.workload.train_set.groups("order").tolist()), f"{MIXED} data.train_samples=400"
    ),
    "weighting.name@fixed": Case("weighting=gradnorm weighting.every=[1steps]", see.updates),
    "weighting.weights@fixed": Case("weighting.weights={order:3}", see.updates),
    "weighting.conflict@fixed": Case("weighting.conflict=[]", row_names),
    "weighting.every": Case("weighting.every=[2steps]", see.updates, GRADNORM),
    "weighting.warmup": Case("weighting.warmup=2steps", see.updates, GRADNORM),
    "weighting.alpha@gradnorm": Case("weighting.alpha=0", see.updates, GRADNORM),
    "weighting.lr@gradnorm": Case("weighting.lr=0.2", see.updates, GRADNORM),
    "weighting.place@gradnorm": Case("weighting.place=trunk", see.updates, GRADNORM),
    "weighting.lr@uncertainty": Case("weighting.lr=0.5", see.updates, "weighting=uncertainty"),
    "weighting.temperature@dwa": Case("weighting.temperature=0.5", see.updates, "weighting=dwa weighting.every=[1steps]"),
    "weighting.lr@famo": Case("weighting.lr=0.5", see.updates, "weighting=famo"),
    "weighting.decay@famo": Case("weighting.decay=0.5", see.updates, "weighting=famo"),
    "weighting.method@surgery": Case("weighting.method=upgrad", operated, SURGERY),
    "weighting.place@surgery": Case("weighting.place=trunk", operated, SURGERY),
    "optimizer.name": Case("optimizer=sgd", see.updates),
    "optimizer.lr": Case("optimizer.lr=0.01", see.updates),
    "optimizer.lr_scaling": Case("optimizer.lr_scaling=sqrt", see.updates),
    "optimizer.lr_reference_batch": Case("optimizer.lr_reference_batch=32", see.updates, "optimizer.lr_scaling=linear"),
    "optimizer.weight_decay": Case("optimizer.weight_decay=0.5", see.updates),
    "optimizer.opt@timm": Case("optimizer.opt=lion", see.updates, "optimizer=timm"),
    "optimizer.options@timm": Case("optimizer.options={betas:[0.5,0.9]}", see.updates, "optimizer=timm"),
    "optimizer.fused": Case("optimizer.fused=false", built(lambda t: [type(m).__name__ for m in t.optimizers.optimizers])),
    "optimizer.param_groups": Case("optimizer.param_groups=[{filter:{dim:1},lr_scale:0}]", see.updates),
    "optimizer.beta1@adamw": Case("optimizer.beta1=0.5", see.updates),
    "optimizer.beta2@adamw": Case("optimizer.beta2=0.5", see.updates),
    "optimizer.eps@adamw": Case("optimizer.eps=0.01", see.updates),
    "optimizer.momentum@sgd": Case("optimizer.momentum=0.5", see.updates, "optimizer=sgd"),
    "optimizer.nesterov@sgd": Case("optimizer.nesterov=false", see.updates, "optimizer=sgd"),
    "optimizer.momentum@muon": Case("optimizer.momentum=0.5", see.updates, "optimizer=muon"),
    "optimizer.adamw_lr_scale@muon": Case("optimizer.adamw_lr_scale=0.5", see.updates, "optimizer=muon"),
    "optimizer.beta1@muon": Case("optimizer.beta1=0.5", see.updates, "optimizer=muon"),
    "optimizer.beta2@muon": Case("optimizer.beta2=0.5", see.updates, "optimizer=muon"),
    "optimizer.eps@muon": Case("optimizer.eps=0.01", see.updates, "optimizer=muon"),
    "lr_scheduler.name": Case("lr_scheduler=constant", see.learning_rates),
    "lr_scheduler.warmup": Case("lr_scheduler.warmup=2steps", see.learning_rates),
    "lr_scheduler.final_scale@cosine": Case("lr_scheduler.final_scale=0.5", see.learning_rates),
    "lr_scheduler.final_scale@linear": Case("lr_scheduler.final_scale=0.5", see.learning_rates, "lr_scheduler=linear"),
    "lr_scheduler.milestones@step": Case("lr_scheduler.milestones=[10%]", see.learning_rates, f"{LONG} lr_scheduler=step"),
    "lr_scheduler.factor@step": Case("lr_scheduler.factor=0.5", see.learning_rates, f"{LONG} lr_scheduler=step"),
    "lr_scheduler.decay@wsd": Case("lr_scheduler.decay=50%", see.learning_rates, f"{LONG} lr_scheduler=wsd"),
    "lr_scheduler.decay_shape@wsd": Case("lr_scheduler.decay_shape=linear", see.learning_rates, f"{LONG} lr_scheduler=wsd"),
    "lr_scheduler.final_scale@wsd": Case("lr_scheduler.final_scale=0.5", see.learning_rates, f"{LONG} lr_scheduler=wsd"),
    "lr_scheduler.monitor@plateau": Case("lr_scheduler.monitor=val/order/loss", plateau, "lr_scheduler=plateau lr_scheduler.patience=1"),
    "lr_scheduler.mode@plateau": Case("lr_scheduler.mode=max", plateau, "lr_scheduler=plateau lr_scheduler.patience=1"),
    "lr_scheduler.factor@plateau": Case("lr_scheduler.factor=0.5", plateau, "lr_scheduler=plateau lr_scheduler.patience=1"),
    "lr_scheduler.patience@plateau": Case("lr_scheduler.patience=0", plateau, "lr_scheduler=plateau lr_scheduler.patience=1"),
    "lr_scheduler.min_delta@plateau": Case("lr_scheduler.min_delta=0.1", plateau, "lr_scheduler=plateau lr_scheduler.patience=1"),
    "schedule.log": Case("schedule.log=[2steps]", ran("rows")),
    "schedule.report": Case("schedule.report=[1steps]", lambda c: see.ran(c).console.count("step ")),
    "schedule.validate": Case("schedule.validate=[1steps]", ran("rows")),
    "schedule.validate_mask_meta": Case("schedule.validate_mask_meta=[3steps]", ran("rows")),
    "schedule.validate_partial_mask_meta": Case(
        "schedule.validate_partial_mask_meta=[3steps]", ran("rows"), "schedule.partial_combinations=[[SPATIAL]]"
    ),
    "schedule.partial_combinations": Case(
        "schedule.partial_combinations=[[TEMPORAL]]",
        row_names,
        "schedule.partial_combinations=[[SPATIAL]] schedule.validate_partial_mask_meta=[3steps]",
    ),
    "schedule.validate_at_end": Case("schedule.validate_at_end=false", ran("rows"), "schedule.validate=[2steps]"),
    "schedule.all_combinations_at_end": Case("schedule.all_combinations_at_end=true", row_names),
    "schedule.checkpoint": Case("schedule.checkpoint=[1steps]", ran("checkpoints")),
    "schedule.checkpoint_at_end": Case("schedule.checkpoint_at_end=false", ran("checkpoints"), "schedule.validate=[]"),
    "schedule.keep_last": Case("schedule.keep_last=3", ran("checkpoints"), CKPT),
    "schedule.keep_best": Case("schedule.keep_best=3", ran("checkpoints"), f"{CKPT} schedule.keep_best=0"),
    "schedule.best_monitor": Case("schedule.best_monitor=val/order/top1", lambda c: see.ran(c).summary["best"]),
    "schedule.best_mode": Case("schedule.best_mode=max", lambda c: see.ran(c).summary["best"], FALLING),
    **ramp("meta_mask_prob", see.batches),
    **ramp("partial_meta_mask_prob", see.batches, NONE),
    "schedule.partial_mask_whitelist": Case(
        "schedule.partial_mask_whitelist=[[SPATIAL]]", see.batches, f"{NONE} schedule.partial_meta_mask_prob.start=1"
    ),
    "schedule.partial_mask_weights": Case(
        "schedule.partial_mask_weights=[1,0]",
        see.batches,
        f"{NONE} schedule.partial_meta_mask_prob.start=1 schedule.partial_mask_whitelist=[[SPATIAL],[TEMPORAL]]",
    ),
    **ramp("null_mask_prob", see.updates, NULLS),
    **ramp("mixup_prob", see.batches, "schedule.mixup_group_level=[{from:0%,level:order}]"),
    "schedule.mixup_group_level": Case("schedule.mixup_group_level=[{from:0%,level:genus}]", see.batches, MIXED),
    "schedule.phases": Case(f"{PHASE}:100%,lr:2}}}}", see.learning_rates),
    **{
        f"schedule.phases.NAME.{name}": Case(change, observe, f"{PHASE}:100%}}}}")
        for name, change, observe in (
            ("start", PHASE.replace("0%", "50%") + ":100%}}", see.refusal(see.plan_text)),
            ("end", f"{PHASE}:50%}}}}", see.refusal(see.plan_text)),
            ("description", f"{PHASE}:100%,description:x}}}}", see.plan_text),
            ("lr", f"{PHASE}:100%,lr:0.5}}}}", see.learning_rates),
            (
                "data",
                f"{PHASE}:100%,data:{{x:1}}}}}}",
                see.refusal(see.plan_text),
            ),  # where the workload has them: tests/laws/test_curriculum.py
            ("dimensions", f"{PHASE}:100%,dimensions:{{x:1}}}}}}", see.refusal(see.plan_text)),
        )
    },
    "schedule.early_stop.monitor": Case("schedule.early_stop.monitor=val/order/top1", end, f"{FALLING} schedule.early_stop.metric_bound=0"),
    "schedule.early_stop.mode": Case("schedule.early_stop.mode=max", see.stops, "schedule.early_stop.patience=1"),
    "schedule.early_stop.patience": Case("schedule.early_stop.patience=1", see.stops),
    "schedule.early_stop.min_delta": Case("schedule.early_stop.min_delta=1.5", see.stops, "schedule.early_stop.patience=2"),
    "schedule.early_stop.metric_bound": Case("schedule.early_stop.metric_bound=1000", end, FALLING),
    "schedule.early_stop.min_lr": Case("schedule.early_stop.min_lr=1", end),
    "schedule.early_stop.max_grad_norm": Case("schedule.early_stop.max_grad_norm=1e-6", end),
    "schedule.early_stop.max_steps": Case("schedule.early_stop.max_steps=2", end),
    "growth.name@none": Case("growth=linear", see.updates, "experiment=vectors"),
    "growth.start@linear": Case("growth.start=0.3", see.updates, GROWTH),
    "growth.end@linear": Case("growth.end=0.5", see.updates, GROWTH),
    "growth.begin@linear": Case("growth.begin=1steps", see.updates, GROWTH),
    "growth.until@linear": Case("growth.until=1steps", see.updates, GROWTH),
    "growth.every@linear": Case("growth.every=[2steps]", see.updates, GROWTH),
    "growth.by@linear": Case("growth.by=random", see.updates, GROWTH),
    "trainer.global_batch_size": Case("trainer.global_batch_size=16", see.updates),
    "trainer.micro_batch_size": Case("trainer.micro_batch_size=8", built(lambda t: t.sampler.accumulation)),
    "trainer.length": Case("trainer.length=2steps", end),
    "trainer.device": Case("trainer.device=cuda", see.refusal(device)),
    "trainer.precision": Case("trainer.precision=bf16", see.updates),
    "trainer.freeze": Case("trainer.freeze=[trunk]", see.updates),
    "trainer.max_grad_norm": Case("trainer.max_grad_norm=0.01", see.updates, "optimizer=sgd"),
    "trainer.ema_decay": Case("trainer.ema_decay=0.9", ran("files"), "trainer.ema_validate=false run.name=x"),
    "trainer.ema_validate": Case(
        "trainer.ema_validate=true schedule.best_monitor=val_ema/loss", row_names, "trainer.ema_decay=0.9 trainer.ema_validate=false"
    ),
    "trainer.compile": Case("trainer.compile=true", built(lambda t: [m._compiled_call_impl is None for m in t.model.modules()])),
    "trainer.channels_last": Case("trainer.channels_last=true", built(lambda t: [p.stride() for p in t.model.parameters()])),
    "trainer.deterministic": Case("trainer.deterministic=true", see.process),
    "trainer.threads": Case("trainer.threads=3", see.process),
    "trainer.max_time": Case("trainer.max_time=0.000001s", ran("status")),
    "trainer.startup_timeout": Case("trainer.startup_timeout=5min", built(lambda t: t.watchdog.startup_timeout)),
    "trainer.timeout": Case("trainer.timeout=1min", built(lambda t: t.watchdog.timeout)),
    "trainer.max_skipped_in_a_row": Case("trainer.max_skipped_in_a_row=1", ran("status"), "optimizer=sgd optimizer.lr=1e30"),
    "trainer.limit_train_samples": Case("trainer.limit_train_samples=16", see.batches),
    "trainer.limit_validation_samples": Case("trainer.limit_validation_samples=10", ran("rows")),
    "trainer.num_workers": Case("trainer.num_workers=1", see.loader_on_gpu),
    "trainer.prefetch": Case("trainer.prefetch=2", see.loader_on_gpu, "trainer.num_workers=1"),
    "trainer.pin_memory": Case("trainer.pin_memory=false", see.loader_on_gpu, "trainer.num_workers=1"),
    "logger.console": Case("logger.console=quiet", lambda c: see.ran(c).console == ""),
    "logger.wandb": Case("logger.wandb=offline", wandb),
    "logger.wandb_project": Case("logger.wandb_project=x", wandb, "logger.wandb=offline"),
    "logger.tensorboard": Case("logger.tensorboard=true", lambda c: any("tfevents" in name for name in see.ran(c).files)),
    "logger.report_sections": Case(
        "logger.report_sections=[progress]", lambda c: "samples" in see.ran(c).console, "schedule.report=[100%] logger.report=false"
    ),
    "logger.peak_tflops": Case("logger.peak_tflops=1", lambda c: "no effect" in see.ran(c).console),
    "logger.report": Case("logger.report=true", ran("files"), "run.name=x"),
    "debug.dump_metrics": Case("debug.dump_metrics=true", ran("files"), "run.name=x"),
    "debug.profile_steps": Case("debug.profile_steps=[1,2]", ran("files"), "run.name=x"),
    "debug.batch_hashes": Case("debug.batch_hashes=true", ran("files"), "run.name=x"),
    "launch.name@process": Case("launch=torchrun", launched.command),
    "launch.processes@torchrun": Case("launch.processes=3", launched.command, "launch=torchrun"),
    **{
        f"launch.{key}@slurm": Case(f"launch.{key}={value}", on_slurm.asked, "launch=slurm")
        for key, value in {
            **{"nodes": "2", "processes": "2", "time": "4h", "partition": "x", "cpus": "3", "gpus": "1", "memory": "4G"},
            **{"signal_before": "60", "max_requeues": "1", "extra": "{account:birds}"},
        }.items()
    },
    "launch.poll@slurm": Case("launch.poll=5", on_slurm.questions, "launch=slurm"),
    "sweep.method": Case("sweep.method=optuna", see.refusal(launched.sweep_is_sound)),
    "sweep.name": Case("sweep.name=x", launched.sweep_name_of),
    "sweep.params": Case("sweep.params={seed:'1,2'}", launched.parameters),
    "sweep.parallel": Case("sweep.parallel=2", launched.most_at_once),
    "sweep.metric": Case("sweep.metric=val/order/loss", launched.compared_by),
    "sweep.mode": Case("sweep.mode=max", launched.compared_by, "sweep.metric=val/order/loss"),
    "sweep.columns": Case("sweep.columns=[val/order/loss]", launched.columns_of_a_run),
    "sweep.trials": Case("sweep.trials=3", see.refusal(launched.sweep_is_sound)),
    "sweep.seed": Case("sweep.seed=3", see.refusal(launched.sweep_is_sound)),
}


def keys() -> Iterator[tuple[str, Any]]:
    """(`group.key`, or `group.key@variant` where a variant declares it; the field) of the whole schema."""
    variants = variants_of("taxonomy")

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
                if (entry := entry_schema(hints[field.name])) is not None:
                    yield from walk(entry, f"{key}.NAME.")

    def of_variants(group: str, choices: dict[str, type]) -> Iterator[tuple[str, Any]]:
        distinct = {cls: name for name, cls in reversed(choices.items())}
        for cls in distinct:
            for field in dataclasses.fields(cls):
                owner = next(base for base in cls.__mro__[::-1] if field.name in inspect.get_annotations(base))
                named = f"@{distinct[owner]}" if len(distinct) > 1 and owner in distinct else ""
                yield f"{group}.{field.name}{named}", field

    yield from walk(Config, "")


def test_each_workload_has_a_table():
    """This one is the taxonomy's; another workload has that of its own groups among its own tests."""
    tests = Path(__file__).resolve().parents[1] / "workloads"
    others = {path.parent.name for path in Path(workloads.__file__).parent.glob("*/config.py")} - {"taxonomy"}
    assert "language" in others
    assert [name for name in others if not (tests / name / f"test_{name}_keys.py").exists()] == []


def test_no_key_is_left_out():
    found = dict(keys())
    assert set(found) - set(TABLE) == set()
    assert set(TABLE) <= set(found), "the table names keys that are no more"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("manifest")
    see.write_manifest(found)
    weights = see.built(see.composed("seed=1")).model.state_dict()
    torch.save(weights, found / "weights.pt")
    torch.save({name: value for name, value in weights.items() if not name.startswith("head.")}, found / "headless.pt")
    return str(found)


_baselines: dict[tuple[str, str], Any] = {}  # shared by the keys that are observed alike


@pytest.mark.parametrize("key", sorted(TABLE, key=lambda key: (TABLE[key].base, TABLE[key].observe.__qualname__, key)))
def test_a_key_changes_what_is_observed(key, folder):
    torch.set_num_threads(1)
    case = TABLE[key]
    base = [text.replace("FOLDER", folder) for text in case.base.split()]
    change = [text.replace("FOLDER", folder) for text in case.change.split()]
    which = (case.base, str(case.observe))
    if which not in _baselines:
        _baselines[which] = case.observe(see.composed(*base))
    assert case.observe(see.composed(*base, *change)) != _baselines[which]


def test_the_observers_see_no_change_where_there_is_none(folder):
    """The negative control: the same configuration twice gives the same answers."""
    config = see.composed()
    for observe in (see.updates, see.batches, see.plan_text, see.learning_rates, ran("rows"), ran("files", "checkpoints")):
        assert observe(config) == observe(config)
