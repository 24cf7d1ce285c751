"""Read the environment variables that torchrun or another launcher sets for each process of a group."""

from __future__ import annotations

import os

from linnaeus.errors import ConfigError


def launched() -> bool:
    """Return True if torchrun or another launcher started this process as part of a group."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def get_rank_safely() -> int:
    """Return the rank of this process from the launcher's environment; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def get_world_size() -> int:
    """Return the number of processes from the launcher's environment; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def store_made_by_agent() -> bool:
    """Return True if torchrun's agent created the key-value store before it started this process. Otherwise rank 0 creates it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def check_environment() -> None:
    """Raise `ConfigError` if RANK and WORLD_SIZE are set, but the other variables of a launcher are missing, or the rank is too large.

    torch would print a traceback, or wait half an hour for processes that do not exist."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    rank, size = get_rank_safely(), get_world_size()
    fix = "start with torchrun, or unset RANK and WORLD_SIZE to train with one process"
    if missing:
        raise ConfigError(f"RANK={rank} WORLD_SIZE={size} are set, as by a launcher, without {' and '.join(missing)}; {fix}")
    if not 0 <= rank < size:
        raise ConfigError(f"RANK={rank} is not the rank of one of WORLD_SIZE={size} processes; {fix}")
