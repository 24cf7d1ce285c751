"""One process of a group that runs jobs in sequence; started by `tests.runs.run_group`.

A run leaves none of the threads that work for a group: one that is alive when the interpreter ends may abort the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
from pathlib import Path
from unittest import mock

from tests.runs import run_job

TASKS = Path("/proc/self/task")  # of Linux: one folder per thread


def group_threads() -> list[str]:
    """Names of the threads of this process that belong to gloo or to the launcher's store."""
    names = []
    for task in TASKS.iterdir() if TASKS.is_dir() else ():
        with contextlib.suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith(("gloo", "pt_gloo", "pt_tcpstore"))]


if __name__ == "__main__":
    faulthandler.enable()
    for one in json.loads(Path(sys.argv[1]).read_text()):
        os.environ["MASTER_PORT"] = str(one["port"])
        with mock.patch("os.fsync", lambda descriptor: None):  # the disk is not what these tests are about
            run_job(one)
        assert group_threads() == [], "a run has left threads of its group behind"
