"""Which GPUs a run may see, where several runs share a machine. The parent asks no CUDA library: it would occupy memory on each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The identifiers of this process's GPUs, as CUDA_VISIBLE_DEVICES takes them; empty where there are none."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    return [str(i) for i, _ in enumerate(path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))]


def share(gpus: Sequence[str], slot: int, processes: int) -> list[str]:
    """The GPUs of the run in `slot` (from 0), one per process: dealt out in turn, so that with too few of them runs share."""
    return list(dict.fromkeys(gpus[(slot * processes + i) % len(gpus)] for i in range(processes)))
