"""Train and evaluate dictionaries with SAELens, in an environment of its own. `child.py` starts this script; data and results are files.

    PYTHON side.py JOBS.json

Each job of the list has `action` "train" or "evaluate", and `folder`. "train" writes the dictionary in SAELens' layout for inference, and
the CPU and wall seconds of the updates, `cost.json`, to `folder`. Its activations are `data`: a file (.npy, float32 [N, d]) that is read
once, in order, or a folder of activations that linnaeus has stored, which are read in random order, another one in each epoch. "evaluate"
loads the dictionary in `folder` and writes the result of SAELens' own evaluator on planted features there, `evaluation.json`. Nothing of
linnaeus is imported.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sae_lens import SAE, LoggingConfig
from sae_lens.config import SAETrainerConfig
from sae_lens.registry import get_sae_training_class
from sae_lens.synthetic import eval_sae_on_synthetic_data
from sae_lens.training.sae_trainer import SAETrainer


def load(data: Path) -> np.ndarray:
    """Return the activations [N, d] of a file, memory-mapped, or those of a folder, in memory."""
    return np.load(data, mmap_mode="r") if data.is_file() else np.concatenate([np.load(one) for one in sorted(data.glob("shard-*.npy"))])


def in_order(rows: np.ndarray, batch: int) -> Iterator[torch.Tensor]:
    """Yield the batches [batch, d] of `rows` once."""
    return (torch.from_numpy(np.array(rows[start : start + batch])) for start in range(0, len(rows), batch))


def shuffled(rows: np.ndarray, batch: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield batches [batch, d] of `rows` without end, in another random order in each epoch."""
    stored, generator = torch.from_numpy(rows), torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(stored), generator=generator)
        yield from (stored[order[start : start + batch]] for start in range(0, len(order) - batch + 1, batch))


def train(job: dict[str, Any]) -> None:
    rows, batch, updates = load(Path(job["data"])), job["batch"], job["samples"] // job["batch"]
    torch.manual_seed(job["seed"])
    Path(job["folder"]).mkdir(exist_ok=True)
    sae_class, config_class = get_sae_training_class(job["architecture"])
    sae = sae_class(config_class(d_in=rows.shape[1], d_sae=job["features"], **job["settings"]))
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
    provider = shuffled(rows, batch, job["seed"]) if Path(job["data"]).is_dir() else in_order(rows, batch)
    trainer = SAETrainer(cfg=config, sae=sae, data_provider=provider)
    cpu, wall = time.process_time(), time.perf_counter()
    trained = trainer.fit()
    seconds = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
    trained.save_inference_model(job["folder"])
    Path(job["folder"], "cost.json").write_text(json.dumps(seconds))


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    for described in json.loads(Path(sys.argv[1]).read_text()):
        {"train": train, "evaluate": evaluate}[described["action"]](described)
        print("finished", described["folder"], flush=True)
