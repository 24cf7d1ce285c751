"""The command `linnaeus export`: write the model of a run as a folder for other machines and programs. The workload of the run does the
work.

    linnaeus export RUN OUT [--checkpoint best|newest|STEP]
    linnaeus export RUN|BUNDLE OUT --form onnx,torch_export,timm

A classifier is written as a bundle or in the forms of `--form`, a language model as a folder that the library transformers loads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.model_options import add_model, add_model_options
from linnaeus.config.run_command import run_command
from linnaeus.errors import ConfigError
from linnaeus.workloads.trained_models import trained_module


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 130 after Ctrl-C. Exit with status 2 and one line on stderr after a user's mistake."""
    return run_command(arguments, _parse, _export)


def _export(options: argparse.Namespace) -> list[str]:
    trained = trained_module(options.run)
    if not hasattr(trained, "export_model"):
        raise ConfigError(f"RUN: models of this workload cannot be exported: {trained.__name__} has no function `export_model`")
    lines: list[str] = trained.export_model(options)
    return lines


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="linnaeus export", description="Write a trained model as a folder that stands alone.")
    add = parser.add_argument
    add_model(parser, "run", "; with --form a bundle, too")
    add("out", metavar="OUT", type=Path, help="folder that is written; it must not exist")
    add("--form", metavar="FORMS", help="for a classifier, instead of a bundle: onnx, torch_export, timm, or several, as onnx,timm")
    add("--tokenizer", metavar="FOLDER", help="for a language model whose run has no tokenizer.json: that of its tokens, or its folder")
    add_model_options(parser, "checkpoint", "plugins")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
