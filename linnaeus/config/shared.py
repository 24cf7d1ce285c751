"""Give all process ranks one configuration: rank 0 composes it and sends it to the other ranks. Every rank checks that the hash of its
configuration equals the hash on rank 0."""

import dataclasses
import hashlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from linnaeus.config.choices import Choice, with_choices
from linnaeus.config.environment import resolve
from linnaeus.config.schema import Config
from linnaeus.config.typed_config import typed_config
from linnaeus.distributed import DistributedContext, get_rank_safely
from linnaeus.errors import ConfigError


def shared_config(compose: Callable[[], dict[str, Any]], chosen: Sequence[Choice] = ()) -> Config:
    """Call `compose` on rank 0 only, and return the typed configuration on every rank. `compose` returns plain values. `chosen`: choices
    that these values contain already, for the log.

    An error of rank 0 is raised on every rank. Raise `ConfigError` also if this rank derives another configuration from the same values."""

    prepared = None

    def composed() -> dict[str, Any]:
        nonlocal prepared
        tree, choices, prepared = with_choices(compose())
        found = {"tree": tree, "hash": _hash(typed_config(tree)), "environment": resolve(tree)[2]}
        return found | {"choices": [dataclasses.astuple(choice) for choice in (*chosen, *choices)]}

    received = DistributedContext().from_master("config", composed)
    os.environ.update(received["environment"])  # other nodes may not have the variables that the configuration reads
    config = typed_config(received["tree"])
    if _hash(config) != received["hash"]:
        raise ConfigError(
            f"process rank {get_rank_safely()} on {socket.gethostname()} derives another configuration from that of rank 0; "
            "install the same version of the program on every node"
        )
    object.__setattr__(config, "choices", tuple(Choice(*values) for values in received["choices"]))
    object.__setattr__(config, "prepared", prepared)
    return config


def _hash(config: Config) -> str:
    """Return a hash of all values of the configuration, so that process ranks can compare their configurations."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(config), sort_keys=True).encode()).hexdigest()
