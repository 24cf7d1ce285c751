"""Do the items of a long task in several processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from linnaeus.distributed import die_with_parent
from linnaeus.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")

_task: Callable[[Any], Any] | None = None  # of a worker process


def each_in_processes(task: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result]:
    """Yield `task(item)` of each item, in the order in which they are complete, from `processes` new processes.

    Every process gets one copy of `task`. With one process or one item, this process does them. Raise ConfigError if a process ends, and
    the errors of `task`."""
    if processes == 1 or len(items) <= 1:
        yield from map(task, items)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(items)), context, _start, (task, os.getpid()))
    try:
        for future in as_completed([pool.submit(_do, item) for item in items]):
            yield future.result()
    except BrokenProcessPool:
        raise ConfigError("--processes: a process was ended from outside, perhaps for memory; repeat the command, with fewer") from None
    except BaseException:  # Ctrl-C, or an error of an item
        for child in multiprocessing.active_children():
            child.kill()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start(task: Callable[[Any], Any], parent: int) -> None:
    global _task
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends its workers
    _task = task


def _do(item: Any) -> Any:
    assert _task is not None
    return _task(item)
