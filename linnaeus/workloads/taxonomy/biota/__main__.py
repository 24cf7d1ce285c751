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

from linnaeus.workloads.taxonomy.biota.export import export, write_sheet
from linnaeus.workloads.taxonomy.biota.oracle import ceilings, format_ceilings
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


def biota_config(train: int = 10000, validation: int = 2000, size: int = 64, world: int = 0) -> BiotaConfig:
    """Return a configuration of the source outside a run."""
    return BiotaConfig(
        name="biota",
        last_batch="keep",
        validation_batch=100,
        max_bad_fraction=0.0,
        ranks=None,
        components=["SPATIAL", "TEMPORAL", "ELEVATION"],
        sampling="natural",
        sampling_rank=None,
        image_size=size,
        train_samples=train,
        validation_samples=validation,
        world=world,
    )


def _run(command: str, path: Path | None = None, **options: int) -> str:
    """Run a command and return the text to print. Raises ValueError for a sheet that is not a PNG."""
    if command == "ceilings":
        return format_ceilings(ceilings(biota_config(**options)))
    assert path is not None
    if command == "export":
        return f"{export(biota_config(**options), path)} photographs and manifest.csv written to {path}"
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path} must end in .png")
    write_sheet(path, options["world"], options["size"])
    return f"all species of world {options['world']} written to {path}"


def main(argv: list[str]) -> int:
    """Run the command and return the exit status: 0, or 2 after one line on stderr for a user's mistake."""
    arguments = vars(_arguments(argv))
    try:
        print(_run(**arguments))
    except (OSError, ValueError) as error:
        print(f"biota {arguments['command']}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
