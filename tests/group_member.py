"""One process of a group that runs jobs in sequence; started by `tests.runs.run_group`."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from unittest import mock

from tests.runs import run_job

if __name__ == "__main__":
    faulthandler.enable()
    for one in json.loads(Path(sys.argv[1]).read_text()):
        os.environ["MASTER_PORT"] = str(one["port"])
        with mock.patch("os.fsync", lambda descriptor: None):  # the disk is not what these tests are about
            run_job(one)
