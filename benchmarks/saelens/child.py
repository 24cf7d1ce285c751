"""Run SAELens in the interpreter of another environment, and read the dictionaries that it saved. Data and results pass as files."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from linnaeus.config.load import compose
from linnaeus.distributed.processes import KEPT
from linnaeus.workloads.dictionary.model.sparse_dictionary import SparseDictionary
from linnaeus.workloads.dictionary.model.variants import THRESHOLD_SPEED, build_dictionary

Job = Mapping[str, Any]


def run_saelens(python: str, jobs: Sequence[Job], root: Path) -> Iterator[Path]:
    """Run jobs of `side.py` with one thread. Yield the folder of each job when it is finished. The process keeps freed memory, as linnaeus
    does (`keep_freed_memory`).

    python: interpreter that has SAELens. root: folder for the files jobs.json and saelens.txt, the list of jobs and the messages. Raise
    `SystemExit` with the end of the messages if a job fails."""
    file, log = root / "jobs.json", root / "saelens.txt"
    file.write_text(json.dumps(jobs))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"MALLOC_MMAP_THRESHOLD_": str(KEPT), "MALLOC_TRIM_THRESHOLD_": str(KEPT)}
    command = [python, str(Path(__file__).with_name("side.py")), str(file)]
    with log.open("w") as errors, subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("finished "):
                yield Path(line.removeprefix("finished ").strip())
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")


def read_folder(folder: Path) -> SparseDictionary:
    """Return the dictionary that SAELens saved in `folder` for inference, in evaluation mode.

    Its architecture must be topk or jumprelu; SAELens saves a trained batchtopk as jumprelu."""
    config, weights = json.loads((folder / "cfg.json").read_text()), load_file(folder / "sae_weights.safetensors")
    kind, (features, width) = config["architecture"], weights["W_dec"].shape
    assert kind in ("topk", "jumprelu") and config["apply_b_dec_to_input"] and config["normalize_activations"] == "none", config
    k = [f"model.k={config['k']}"] if kind == "topk" else []
    model = build_dictionary(compose(["workload=dictionary", f"model={kind}", f"model.features={features}", *k]).model, width, 0)
    values = {"encoder": weights["W_enc"].T, "encoder_bias": weights["b_enc"], "decoder": weights["W_dec"], "bias": weights["b_dec"]}
    if kind == "jumprelu":
        values["slow_threshold"] = weights["threshold"] / THRESHOLD_SPEED
    with torch.no_grad():
        for name, value in values.items():
            getattr(model, name).copy_(value)
    return model.eval().requires_grad_(False)
