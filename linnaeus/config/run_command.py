"""Run a command of `linnaeus` that prints lines. All such commands parse their arguments here and treat mistakes and Ctrl-C in the same
way."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterable, Sequence

from linnaeus.config.messages import user_errors

CONTINUES = "interrupted; give the same command again to continue"


def run_command(
    arguments: Sequence[str] | None,
    parse: Callable[[Sequence[str] | None], argparse.Namespace],
    run: Callable[[argparse.Namespace], Iterable[str]],
    interrupted: Callable[[argparse.Namespace], str] = lambda options: "interrupted",
) -> int:
    """Print the lines of `run(parse(arguments))` one by one. Return 0, or 130 after Ctrl-C with the line `interrupted(options)`.

    Exit with status 2 and one line on stderr after a user's mistake."""
    with user_errors(2):
        options = parse(arguments)
        try:
            for line in run(options):
                print(line)
        except KeyboardInterrupt:
            print(interrupted(options))
            return 128 + signal.SIGINT
    return 0
