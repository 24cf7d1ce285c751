"""The runs that are killed: everything that has a state is on, and all of it is over in seconds.

85 samples in global batches of 24 make epochs of four updates with a partial last window; 24 splits over 1, 2 and 3 processes
into 6, 3 and 2 micro-batches of 4. Passes are pending at steps 3, 6, 9 and at the end; a checkpoint is written every second step.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests import runs

STEPS = 10
COMMON = [
    *["trainer.global_batch_size=24", "trainer.micro_batch_size=4", f"trainer.length={STEPS}steps", "trainer.ema_decay=0.9"],
    *["weighting=gradnorm", "weighting.every=[2steps]", "schedule.log=[1steps]", "schedule.checkpoint=[2steps]"],
    *["schedule.validate=[3steps]", "schedule.validate_at_end=true", "schedule.best_monitor=val_ema/loss", "logger.report=true"],
    *["schedule.early_stop.monitor=val_ema/loss", "schedule.early_stop.patience=40", "schedule.early_stop.min_delta=9"],
    *["debug.batch_hashes=true", "logger.console=plain"],
]
PLATEAU = ["lr_scheduler=plateau", "lr_scheduler.monitor=val_ema/loss", "lr_scheduler.patience=0", "lr_scheduler.min_delta=9"]
WORKLOADS = {
    # Batch statistics, the loss scale of float16, a plateau that lowers the rate.
    "vectors": [*COMMON, *PLATEAU, "model.batch_norm=true", "trainer.precision=fp16"],
    # The smallest mformer: augmentation, mixing, dropout, drop-path, masked metadata, null labels phased in, a cosine with warm-up.
    "biota": [
        *[*COMMON, "lr_scheduler=cosine", "augment=standard", "head.nulls=phase_in", "schedule.null_mask_prob.start=0.5"],
        *["schedule.meta_mask_prob={start: 0.1, end: 0.5, begin: 0%, until: 100%}", "schedule.partial_meta_mask_prob.start=0.4"],
        *["schedule.validate_mask_meta=[3steps]", "schedule.validate_partial_mask_meta=[3steps]"],
        "schedule.partial_combinations=[[SPATIAL], [TEMPORAL, ELEVATION]]",
    ],
}
# A prepared store of JPEGs, in the order for data larger than memory. Otherwise as above.
WORKLOADS["store"] = WORKLOADS["biota"]
# Two dictionaries of the activations of a language model, which every start finds stored or stores.
WORKLOADS["dictionary"] = [*(text for text in COMMON if not text.startswith("weighting")), *PLATEAU, "run.experiment=dictionary"]
# Generated sets of gear, dropout on.
GEAR = ["data.builds=120", "data.validation_batch=24", "run.experiment=loadout"]
WORKLOADS["loadout"] = [*(text for text in COMMON if not text.startswith("weighting")), *PLATEAU, *GEAR]
# "vectors" with metadata: passes with masked components, in a sixth of the time of "biota". `make torture` has no run of it.
MASKED = [*COMMON, *PLATEAU, "schedule.validate_mask_meta=[3steps]", "schedule.validate_partial_mask_meta=[3steps]"]
FEW = ("store", "dictionary", "loadout")  # workloads with a few kills of their own, on 1 and 2 processes


@dataclass(frozen=True)
class Setting:
    """Which run, on how many processes, with how many loader workers each."""

    workload: str
    processes: int
    workers: int

    def __str__(self) -> str:
        return f"{self.workload}-{self.processes}-processes-{self.workers}-workers"

    @property
    def settings(self) -> list[str]:
        return MASKED if self.workload == "masked" else WORKLOADS[self.workload]

    def command(self, root: Path) -> list[str]:
        """Return the command line of a user: the same for every launch of a run."""
        more = [f"trainer.num_workers={self.workers}"]
        if self.processes > 2:
            more.append("trainer.deterministic=true")
        settings = runs.overrides(self.workload, root, *self.settings, *more)
        config_dir = ["--config-dir", str(runs.VECTORS)] if self.workload in ("vectors", "masked") else []
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"] if self.processes > 1 else []
        return [sys.executable, *torchrun, "main.py", *config_dir, *settings]

    def directory(self, root: Path) -> Path:
        """Where its run lives."""
        return root / self.workload / "run"
