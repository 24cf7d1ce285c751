"""List the settings to try for each kind of trial: the flat script, the script with a classifier per rank, and linnaeus."""

from __future__ import annotations

from itertools import product

BF16 = "script with ranks, bf16"
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


PAIRS = ["schedule.mixup_prob.start=0.5", "schedule.mixup_prob.end=0.5"]
OURS = {  # name -> overrides on top of `COMMON`
    "photos": [],
    "photos, 64 px": ["data.image_size=64"],
    "photos, 96 px": ["data.image_size=96"],
    "photos, linear": ["head=linear"],
    "photos, mixed pairs": PAIRS,
    "photos, without metadata": ["data.components=[]"],
    "photos, equal task weights": ["weighting.weights={}"],
    "photos, strong": ["augment.policy=trivialaugment", "augment.brightness=0", "augment.contrast=0", "augment.saturation=0"],
}


def settings_of(kind: str) -> dict[str, list[str]]:
    """Return {name: command-line arguments} of the settings to try for a kind of trial."""
    if kind == "linnaeus":
        return {name: ["experiment=photos", *words] for name, words in OURS.items()}
    return {name: [*words, *(["--bf16"] if kind == BF16 else [])] for name, words in SCRIPT.items()}
