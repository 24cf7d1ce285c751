"""Settings to try for each kind of trial: the flat script, the script with a classifier per rank, and linnaeus."""

from __future__ import annotations

from itertools import product

BACKBONE = "resnet10t"
RATES, SIZES = ("0.001", "0.003"), ("64", "96")
COMMON = [  # of every run of linnaeus: without reports and logs, which the scripts do not have, and with as many validations
    "logger.report=false",
    "logger.console=quiet",
    "schedule.report=[]",
    "schedule.validate=[10%]",
    "schedule.validate_mask_meta=[]",
    "schedule.validate_partial_mask_meta=[]",
    "schedule.checkpoint=[100%]",
    "trainer.threads=1",
    "trainer.num_workers=0",
]
SCRIPT = {  # name -> words of the script
    f"lr {lr}, {size} px, {name}": ["--backbone", BACKBONE, "--lr", lr, "--size", size, *words]
    for lr, size, (name, words) in product(RATES, SIZES, (("jitter", []), ("strong", ["--strong"])))
}


def timm_recipe(lr: str, size: str, *more: str) -> list[str]:
    """Return the overrides of a run with the network and the crops of the scripts."""
    network = ["model=timm", f"model.backbone={BACKBONE}", f"data.image_size={size}", "trainer.global_batch_size=64"]
    return [*network, f"optimizer.lr={lr}", "augment.crop_scale=[0.35,1.0]", *more]


OURS = {  # name -> overrides on top of `COMMON`
    "defaults of today": ["data.image_size=96"],
    "linear, label smoothing": timm_recipe("0.003", "64", "loss=label_smoothing"),
    "marginal": timm_recipe("0.003", "64", "head=marginal"),
    "marginal, label smoothing": timm_recipe("0.003", "64", "head=marginal", "loss=label_smoothing"),
    "marginal, finest label": timm_recipe("0.003", "64", "head=marginal", "loss=marginal"),
    "marginal, finer ranks first": timm_recipe("0.003", "64", "head=marginal", "loss=conditional", "loss.alpha=-0.1"),
    "marginal, no clipping": timm_recipe("0.003", "64", "head=marginal", "trainer.max_grad_norm=null"),
    "marginal, averaged": timm_recipe("0.003", "64", "head=marginal", "trainer.ema_decay=0.99"),
}


def settings_of(kind: str) -> dict[str, list[str]]:
    """Return name -> overrides or words of the settings of a kind of trial."""
    return OURS if kind == "linnaeus" else SCRIPT
