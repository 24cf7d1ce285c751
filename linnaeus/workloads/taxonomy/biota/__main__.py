"""biota from the command line.

python -m linnaeus.workloads.taxonomy.biota export DIR [--train N --validation N --size PIXELS --world W]
python -m linnaeus.workloads.taxonomy.biota sheet FILE.png [--size PIXELS --world W]
python -m linnaeus.workloads.taxonomy.biota ceilings [--train N --validation N --world W]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from linnaeus.workloads.taxonomy.config import BiotaConfig


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and status 2, without the usage."""
        self.exit(2, f"{self.prog}: {message}\n")


def _whole(low: int):
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is below {low}")
        return value

    return parse


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="python -m linnaeus.workloads.taxonomy.biota", description="the embedded world of drawn organisms")
    commands = parser.add_subparsers(dest="command", required=True, metavar="export | sheet | ceilings", parser_class=_Parser)
    options = {
        "--train": {"type": _whole(2), "default": 10000, "help": "individuals for training (%(default)s)"},
        "--validation": {"type": _whole(1), "default": 2000, "help": "individuals for validation (%(default)s)"},
        "--size": {"type": _whole(8), "default": 64, "help": "side of a photograph in pixels (%(default)s)"},
        "--world": {"type": _whole(0), "default": 0, "help": "number of the world (%(default)s)"},
    }
    for name, what, path, wanted in (
        ("export", "write JPEGs and manifest.csv", "DIR", ("--train", "--validation", "--size", "--world")),
        ("sheet", "draw every species as a PNG", "FILE.png", ("--size", "--world")),
        ("ceilings", "print the best possible accuracies", "", ("--train", "--validation", "--world")),
    ):
        command = commands.add_parser(name, help=what, description=what, prog=f"biota {name}")
        if path:
            command.add_argument("path", metavar=path, type=Path)
        for option in wanted:
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


def _perform(arguments: argparse.Namespace) -> None:
    if arguments.command == "export":
        from linnaeus.workloads.taxonomy.biota.export import export

        print(f"{export(_config(arguments), arguments.path)} photographs and manifest.csv in {arguments.path}")
    elif arguments.command == "sheet":
        from linnaeus.workloads.taxonomy.biota.sheet import write_sheet

        write_sheet(arguments.path, arguments.world, arguments.size)
        print(f"every species of world {arguments.world} in {arguments.path}")
    else:
        from linnaeus.workloads.taxonomy.biota.oracle import ceilings, table

        print(table(ceilings(_config(arguments))))


def main(argv: list[str]) -> int:
    """Exit status: 0, or 2 with one line on stderr for what a user got wrong."""
    arguments = _arguments(argv)
    try:
        if arguments.command == "sheet" and arguments.path.suffix.lower() != ".png":
            raise ValueError(f"{arguments.path} does not end in .png")
        _perform(arguments)
    except (OSError, ValueError) as mistake:
        print(f"biota {arguments.command}: {mistake}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
