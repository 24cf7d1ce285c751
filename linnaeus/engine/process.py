"""What is set once per process: threads, determinism, the fate shared with the launcher, and signals that ask to stop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext, launched

if TYPE_CHECKING:
    from linnaeus.engine.training import Training

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def apply_process_settings(config: Config, context: DistributedContext) -> None:
    """Threads, deterministic kernels, TF32 off where float32 was asked for, and death with the launcher's agent."""
    import torch

    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    if config.trainer.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if launched() and sys.platform == "linux":
        die_with_parent()


def die_with_parent() -> None:
    """Under torchrun every rank has its own session, so killing the agent's group would leave ranks training on."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the parent went before we asked
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def stop_on_signals(training: Training) -> Iterator[None]:
    """Until the block ends, SIGTERM, SIGINT and SIGUSR1 ask for a checkpoint and an end at the next step; a second one leaves at
    once."""

    def ask(number: int, _: Any) -> None:
        if training.stop_signalled:
            os._exit(128 + number)
        training.stop_signalled = True

    previous = {s: signal.signal(s, ask) for s in STOPPING}
    try:
        yield
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)
