"""`python -m tests.sweep.command -m ...`: `python main.py -m ...` whose trials run `fake_run.py`, about a third of a second each."""

import sys
from pathlib import Path

from linnaeus.config.command_line import parse_command_line
from linnaeus.config.messages import user_errors
from linnaeus.launch import launcher
from linnaeus.sweep.run_sweep import sweep

launcher.PROGRAM = [str(Path(__file__).with_name("fake_run.py"))]

if __name__ == "__main__":
    with user_errors(2):
        sys.exit(sweep(parse_command_line(sys.argv[1:])))
