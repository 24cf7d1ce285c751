"""One configuration for all processes: rank 0 composes it and tells it, every process checks that it understood the same."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import socket
from collections.abc import Callable
from typing import Any

from linnaeus.config.load import typed_config
from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext, get_rank_safely
from linnaeus.errors import ConfigError


def shared_config(compose: Callable[[], dict[str, Any]]) -> Config:
    """The typed config of the tree that `compose` returns on rank 0, where alone it is called. Raises `ConfigError`, rank 0's on
    every process, or this process's when it makes another configuration of the same tree."""

    def composed() -> dict[str, Any]:
        tree = compose()
        return {"tree": tree, "hash": config_hash(typed_config(tree))}

    told = DistributedContext().from_master("config", composed)
    config = typed_config(told["tree"])
    if config_hash(config) != told["hash"]:
        raise ConfigError(
            f"process rank {get_rank_safely()} on {socket.gethostname()} reads the configuration of rank 0 otherwise; "
            "install the same version of the program on every node"
        )
    return config


def config_hash(config: Config) -> str:
    """Of every value, for processes to compare."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(config), sort_keys=True).encode()).hexdigest()
