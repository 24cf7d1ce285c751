"""Run a function on many items in several processes (`each_in_processes`)."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from linnaeus.distributed import die_with_parent
from linnaeus.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3  # items per process that are submitted at the same time
_task: Callable[[Any], Any] | None = None  # set in worker processes


def each_in_processes(task: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """Yield `task(item)` for each item, in order of completion, computed by at most `processes` new processes.

    Each process gets one copy of `task`. `items` is read only as far as needed for the next results. If `processes` is 0 or 1, this process
    does the work. Raise `ConfigError` if a process is killed; errors of `task` are raised here, too."""
    if processes <= 1:
        yield from map(task, items)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _start, (task, os.getpid()))
    rest = iter(items)
    try:
        waiting = {pool.submit(_do, item) for item in islice(rest, AHEAD * processes)}
        while waiting:
            complete, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(_do, item) for item in islice(rest, len(complete))}
            for future in complete:
                yield future.result()
    except BrokenProcessPool:
        raise ConfigError("--processes: a process was killed, perhaps for lack of memory; repeat the command with fewer") from None
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
