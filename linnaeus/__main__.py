"""Entry point of the command `linnaeus` and of `python -m linnaeus`.

`linnaeus KEY=VALUE...` trains, as `python main.py KEY=VALUE...` does; `linnaeus NAME ...` runs the subcommand NAME of `linnaeus.commands`.
"""

from __future__ import annotations

import difflib
import importlib
import sys

from linnaeus.commands import COMMANDS
from linnaeus.streams import print_page

USAGE = """linnaeus: train classifiers of species, and other research programs

  linnaeus [KEY=VALUE ...]      train, or continue; without settings the demo
  linnaeus plan=true            print the schedule, train nothing
  linnaeus -m seed=0,1,2        a sweep
  linnaeus --help-keys          every key; --help WORD: those with this word
"""


def usage() -> str:
    """Return the text of `linnaeus --help`: how to train, then one line for each subcommand."""
    width = max(map(len, COMMANDS))
    lines = [f"  linnaeus {name:<{width}}  {meaning}" for name, meaning in COMMANDS.items()]
    return "\n".join([USAGE, "Commands (`linnaeus NAME --help` for each):", *lines])


def main(arguments: list[str] | None = None) -> int:
    """Run the subcommand that the first argument names, print help, or train. Return the exit status.

    `arguments`: the words after the program's name; None: the words in `sys.argv`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    first = arguments[0] if arguments else ""
    if first in COMMANDS:
        return importlib.import_module(f"linnaeus.commands.{first}").main(arguments[1:])
    if arguments in (["--help"], ["-h"]):
        print_page(usage())
        return 0
    if first and "=" not in first and not first.startswith(("-", "~")):
        close = difflib.get_close_matches(first, COMMANDS, 1)
        hint = f"did you mean {close[0]}? Commands" if close else "commands"
        print(f"error: {first!r} is not a command and not a setting; {hint}: {', '.join(COMMANDS)}; settings: KEY=VALUE", file=sys.stderr)
        return 2
    from linnaeus.main import main as train

    sys.argv[1:] = ["--help" if word == "--help-keys" else word for word in arguments]
    return train()


if __name__ == "__main__":
    sys.exit(main())
