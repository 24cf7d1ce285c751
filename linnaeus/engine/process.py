"""What is set once per process: threads and deterministic kernels."""

from __future__ import annotations

import os

from linnaeus.config.schema import Config


def apply_process_settings(config: Config) -> None:
    """Threads and deterministic kernels."""
    import torch

    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    if config.trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
