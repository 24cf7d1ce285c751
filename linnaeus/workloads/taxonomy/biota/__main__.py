"""Export biota, draw its contact sheet, or print its best possible accuracies from the command line.

python -m linnaeus.workloads.taxonomy.biota export DIR [--train N --validation N --size PIXELS --world W]
python -m linnaeus.workloads.taxonomy.biota sheet FILE.png [--size PIXELS --world W]
python -m linnaeus.workloads.taxonomy.biota ceilings [--train N --validation N --world W]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from linnaeus.workloads.taxonomy.config import BiotaConfig


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line, without the usage, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def _whole_number(low: int) -> Callable[[str], int]:
    """Return an argument type: a whole number of at least `low`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is too small; it must be at least {low}")
        return value

    return parse


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m linnaeus.workloads.taxonomy.biota", description="Export the embedded world of drawn organisms, or describe it."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="export | sheet | ceilings", parser_class=_Parser)
    options: dict[str, dict[str, Any]] = {
        "--train": {"type": _whole_number(2), "default": 10000, "help": "individuals for training (%(default)s)"},
        "--validation": {"type": _whole_number(1), "default": 2000, "help": "individuals for validation (%(default)s)"},
        "--size": {"type": _whole_number(8), "default": 64, "help": "side of a photograph in pixels (%(default)s)"},
        "--world": {"type": _whole_number(0), "default": 0, "help": "number of the world (%(default)s)"},
    }
    for name, description, path, accepted in (
        ("export", "write JPEGs and manifest.csv", "DIR", ("--train", "--validation", "--size", "--world")),
        ("sheet", "draw every species as a PNG", "FILE.png", ("--size", "--world")),
        ("ceilings", "print the best possible accuracies", "", ("--train", "--validation", "--world")),
    ):
        command = commands.add_parser(name, help=description, description=description, prog=f"biota {name}")
        if path:
            command.add_argument("path", metavar=path, type=Path)
        for option in accepted:
            command.add_argument(option, **options[option])
    return parser.parse_args(argv)


def _config(arguments: argparse.Namespace) -> BiotaConfig:
    return BiotaConfig(
        name="biota",
        last_batch="keep",
        validation_batch=100,
        max_bad_fraction=0.0,
        ranks=None,
        components=["SPATIAL", "TEMPORAL", "ELEVATION"],
        sampling="natural",
        sampling_rank=None,
        image_size=getattr(arguments, "size", 64),
        train_samples=arguments.train,
        validation_samples=arguments.validation,
        world=arguments.world,
    )


def _run(arguments: argparse.Namespace) -> None:
    if arguments.command == "export":
        from linnaeus.workloads.taxonomy.biota.export import export

        print(f"{export(_config(arguments), arguments.path)} photographs and manifest.csv written to {arguments.path}")
    elif arguments.command == "sheet":
        from linnaeus.workloads.taxonomy.biota.export import write_sheet

        write_sheet(arguments.path, arguments.world, arguments.size)
        print(f"all species of world {arguments.world} written to {arguments.path}")
    else:
        from linnaeus.workloads.taxonomy.biota.oracle import ceilings, format_ceilings

        print(format_ceilings(ceilings(_config(arguments))))


def main(argv: list[str]) -> int:
    """Run the command and return the exit status: 0, or 2 after one line on stderr for a user's mistake."""
    arguments = _arguments(argv)
    try:
        if arguments.command == "sheet" and arguments.path.suffix.lower() != ".png":
            raise ValueError(f"{arguments.path} must end in .png")
        _run(arguments)
    except (OSError, ValueError) as error:
        print(f"biota {arguments.command}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
