"""Run jobs in sequence in one process of a group. `tests.runs.run_group` starts it.

Check after each job that every thread of the process group has ended. A thread that is alive when the interpreter exits can abort the
process.
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

TASKS = Path("/proc/self/task")  # on Linux: one folder per thread


def group_threads() -> list[str]:
    """Return the names of the threads of this process that belong to gloo or to the launcher's store."""
    names = []
    for task in TASKS.iterdir() if TASKS.is_dir() else ():
        with contextlib.suppress(OSError):  # the thread has ended
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith(("gloo", "pt_gloo", "pt_tcpstore"))]


if __name__ == "__main__":
    faulthandler.enable()
    for job in json.loads(Path(sys.argv[1]).read_text()):
        os.environ["MASTER_PORT"] = str(job["port"])
        with mock.patch("os.fsync", lambda descriptor: None):  # these tests do not test the disk
            run_job(job)
        assert group_threads() == [], "a run has left threads of its group"
