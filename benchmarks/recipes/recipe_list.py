"""List the settings to try for each kind of trial: the flat script, the script with a classifier per rank, and linnaeus."""

from __future__ import annotations

BF16 = "script with ranks, bf16"
BACKBONE = "resnet10t"
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
    "lr 0.003, 48 px": ["--lr", "0.003", "--size", "48"],
    "lr 0.003, 64 px": ["--lr", "0.003", "--size", "64"],
    "lr 0.003, 96 px": ["--lr", "0.003", "--size", "96"],
    "lr 0.001, 64 px": ["--lr", "0.001", "--size", "64"],
    "lr 0.003, 64 px, strong": ["--lr", "0.003", "--size", "64", "--strong"],
}
OURS = {  # name -> overrides on top of `COMMON`
    "photos": [],
    "photos, 48 px": ["data.image_size=48"],
    "photos, 64 px": ["data.image_size=64"],
    "photos, 96 px": ["data.image_size=96"],
    "photos, 48 px, larger crops": ["data.image_size=48", "augment.crop_scale=[0.6,1.0]"],
}


def settings_of(kind: str) -> dict[str, list[str]]:
    """Return {name: command-line arguments} of the settings to try for a kind of trial."""
    if kind == "linnaeus":
        return {name: ["experiment=photos", *words] for name, words in OURS.items()}
    return {name: ["--backbone", BACKBONE, *words, *(["--bf16"] if kind == BF16 else [])] for name, words in SCRIPT.items()}
