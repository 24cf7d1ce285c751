"""Run a case of `fuzz.py` in a fork of this process, with limits of time and memory."""

import io
import multiprocessing
import re
import resource
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError

TIMEOUT = 60.0  # seconds; an idle core takes about 0.05
MEMORY = 1 << 30  # bytes beside those of the program


Make = Callable[[int, int, Path], Any]
Check = Callable[[Any], list[str]]


def isolated(make: Make, check: Check, number: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Return the case that `make(seed, number, folder)` makes, as text, and the failures that `check` finds. Both run in a fork.

    `make` may raise `ConfigError`: there is no case then."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(make, check, number, seed, folder, sender))
    child.start()
    sender.close()
    case = ""
    try:
        found: list[str] | None = None
        if receiver.poll(TIMEOUT):
            case = receiver.recv()
            found = receiver.recv() if receiver.poll(TIMEOUT) else None
        return case, [f"no end within {TIMEOUT:.0f} s"] if found is None else found
    except EOFError:
        child.join()
        return case, [f"exit status {child.exitcode}"]
    finally:
        child.kill()
        child.join()


def _run(make: Make, check: Check, number: int, seed: int, folder: Path, sender: Connection) -> None:
    sys.stdout = sys.stderr = io.StringIO()
    data = int(re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_DATA, (data + MEMORY,) * 2)
    try:
        case = make(seed, number, folder)
    except Exception as error:
        sender.send(f"case {number} was not written: {error}")
        return sender.send([] if isinstance(error, ConfigError) else [_trace()])
    sender.send(str(case))
    try:
        failures = check(case)
    except BaseException:  # also of SystemExit
        failures = [_trace()]
    sender.send(failures)


def _trace() -> str:
    """Return the end of the traceback of the exception that is handled, on one line."""
    return " / ".join(traceback.format_exc().strip().splitlines()[-7:])
