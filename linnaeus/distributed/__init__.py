"""Process ranks: the process group and its collectives, flags that all ranks agree on, the watchdog, stop signals and DDP."""

from linnaeus.distributed.context import DistributedContext
from linnaeus.distributed.launch_environment import get_rank_safely, get_world_size, launched, store_made_by_agent
from linnaeus.distributed.processes import die_with_launcher, die_with_parent, keep_freed_memory, write_torchrun_error

__all__ = [
    "DistributedContext",
    "die_with_launcher",
    "die_with_parent",
    "get_rank_safely",
    "get_world_size",
    "keep_freed_memory",
    "launched",
    "store_made_by_agent",
    "write_torchrun_error",
]
