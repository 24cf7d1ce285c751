"""Train and evaluate dictionaries with SAELens, in an environment of its own. `study.py` starts this script; data and results are files.

    PYTHON saelens_side.py JOBS.json

Each job of the list has `action` "train" or "evaluate", and `folder`. "train" reads activations from `data` (.npy, float32 [N, d]) once, in
order, and writes the dictionary in SAELens' layout for inference, and the CPU seconds of the updates, `cost.json`, to `folder`. "evaluate"
loads the dictionary in `folder` and writes the result of SAELens' own evaluator there, `evaluation.json`. Nothing of linnaeus is imported.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sae_lens import SAE, LoggingConfig
from sae_lens.config import SAETrainerConfig
from sae_lens.registry import get_sae_training_class
from sae_lens.synthetic import eval_sae_on_synthetic_data
from sae_lens.training.sae_trainer import SAETrainer


def train(job: dict[str, Any]) -> None:
    data = np.load(job["data"], mmap_mode="r")
    batch, updates = job["batch"], job["samples"] // job["batch"]
    torch.manual_seed(job["seed"])
    Path(job["folder"]).mkdir(exist_ok=True)
    sae_class, config_class = get_sae_training_class(job["architecture"])
    sae = sae_class(config_class(d_in=data.shape[1], d_sae=job["features"], **job["settings"]))
    config = SAETrainerConfig(
        n_checkpoints=0,
        checkpoint_path=None,
        save_final_checkpoint=False,
        total_training_samples=updates * batch,
        device="cpu",
        autocast=False,
        lr=job["lr"],
        lr_end=job["lr"],
        lr_scheduler_name="constant",
        lr_warm_up_steps=job["warmup"],
        adam_beta1=0.9,
        adam_beta2=0.999,
        lr_decay_steps=job["decay"],
        n_restart_cycles=1,
        train_batch_size_samples=batch,
        dead_feature_window=job["dead_after"] // batch,
        feature_sampling_window=2000,
        logger=LoggingConfig(log_to_wandb=False),
        n_batches_for_norm_estimate=max(min(1000, updates // 10), 1),
    )
    batches = (torch.from_numpy(np.array(data[start : start + batch])) for start in range(0, len(data), batch))
    start = time.process_time()
    trained = SAETrainer(cfg=config, sae=sae, data_provider=batches).fit()
    seconds = time.process_time() - start
    trained.save_inference_model(job["folder"])
    Path(job["folder"], "cost.json").write_text(json.dumps({"cpu_seconds": seconds}))


class Stored(torch.nn.Module):
    """The planted features as SAELens' evaluator expects its feature dictionary, and the stored codes as its generator."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.feature_vectors = torch.from_numpy(np.load(job["planted"]))
        self.bias = torch.from_numpy(np.load(job["bias"]))
        self.codes = torch.from_numpy(np.load(job["codes"]))
        self.read = 0

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return codes @ self.feature_vectors + self.bias

    def sample(self, count: int) -> torch.Tensor:
        self.read += count
        return self.codes[self.read - count : self.read]


def evaluate(job: dict[str, Any]) -> None:
    stored = Stored(job)
    sae = SAE.load_from_disk(job["folder"])
    found = eval_sae_on_synthetic_data(sae, stored, stored, num_samples=len(stored.codes), batch_size=2000).to_dict()  # type: ignore[arg-type]
    found |= found.pop("classification")
    Path(job["folder"], "evaluation.json").write_text(json.dumps(found))
    print("evaluated", job["folder"], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for described in json.loads(Path(sys.argv[1]).read_text()):
        {"train": train, "evaluate": evaluate}[described["action"]](described)
