"""`python -m tests.sweep.command -m ...`: `python main.py -m ...` whose trials run `fake_run.py`, about a third of a second each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from linnaeus.config.command_line import parse_command_line, refuse_sweep_under_launcher
from linnaeus.config.messages import user_errors
from linnaeus.launch import launcher
from linnaeus.sweep import sweep

launcher.MAIN = Path(__file__).with_name("fake_run.py")

if __name__ == "__main__":
    with user_errors(2):
        arguments = parse_command_line(sys.argv[1:])
        refuse_sweep_under_launcher(arguments, os.environ)
        sys.exit(sweep(arguments))
