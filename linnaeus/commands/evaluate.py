"""`linnaeus evaluate`: score a trained model, without training, on the rows of its run, on a labelled manifest or on texts.

linnaeus evaluate RUN [--split test] [--checkpoint best|newest|STEP] [--image-size 192,224] [--tta none,flip] [KEY=VALUE ...]
linnaeus evaluate RUN|BUNDLE --manifest FILE [--tta flip] [--compare OTHER ...] [--by COLUMN] [--clade RANK] [--output FOLDER]
linnaeus evaluate RUN|BUNDLE TEXT ... [--json] [--output FOLDER]      for a language model
linnaeus evaluate RUN|BUNDLE --continuations FILE [--json]            for a language model
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.model_options import add_model, add_model_options, check_ranges
from linnaeus.config.run_command import run_command
from linnaeus.errors import ConfigError

OF_THE_RUN = ("overrides", "split", "image_size")  # options that have no effect with --manifest or a text
OF_A_MANIFEST = (
    "setting",
    "by",
    "clade",
    "compare",
    "outside",
    "checklist",
    "region",
    "batch_size",
    "device",
    "threads",
    "plugins",
)  # these have none without it, except WITH_TEXTS
OF_TEXTS = ("json", "encoding", "tokenizer")  # these have none without a text or continuations
WITH_TEXTS = ("batch_size", "device")  # of a manifest and of texts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 130 after Ctrl-C. Exit with status 2 and one line on stderr after a user's mistake."""
    return run_command(arguments, parse, _evaluate)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line. Raise `ConfigError` for options that exclude each other."""
    parser = OneLineParser(prog="linnaeus evaluate", description="Score a trained model on the rows of its run, on others, or on texts.")
    add = parser.add_argument
    add_model(parser, "model")
    add_model_options(parser, "checkpoint")
    folder = "RUN/evaluations/<split>-step-<N>, and -<hash of the settings> with KEY=VALUE; with --manifest none"
    add("--output", type=Path, metavar="FOLDER", help=f"folder of the results ({folder})")
    views = "views whose probabilities are averaged: none, flip or, without --manifest, both, none,flip (those of the run)"
    add("--tta", type=_listed, metavar="VIEWS", help=views)
    run = parser.add_argument_group("on the rows of a run")
    words = "settings that differ from those of the run: trainer.device=cpu; or, of a language model, text files"
    run.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=words)
    run.add_argument("--split", choices=("validation", "test"), help="rows to score (validation)")
    run.add_argument("--image-size", type=_listed, metavar="SIZES", help="sizes of the images, such as 192,224,256 (that of the run)")
    other = parser.add_argument_group("on other photographs")
    add = other.add_argument
    add("--manifest", metavar="FILE", help="CSV or Parquet table of labelled photographs")
    add("--setting", action="append", metavar="KEY=VALUE", help="of the manifest, such as data.group_column=observation")
    add("--compare", nargs="+", type=Path, metavar="OTHER", help="further runs or bundles, whose differences from MODEL are computed")
    add("--by", metavar="COLUMN", help="also a row for each value of this column, such as the source")
    add("--outside", metavar="FOLDER", help='photographs of no organism, for the AUROC of "none of these"')
    add("--clade", metavar="RANK", help="a row for each taxon of this rank (the coarsest with two)")
    add("--batch-size", type=int, metavar="N", help="photographs or windows of text at once (that of the run's validation; of a bundle 32)")
    add_model_options(other, "checklist", "region", "device", "threads", "plugins")
    about = "MODEL may also be a checkpoint or a folder of transformers; --batch-size and --device (auto) have an effect, too"
    texts = parser.add_argument_group("on texts, by a language model", about)
    add = texts.add_argument
    example = '{"context": "a", "continuations": ["b", "c"], "answer": 0}'
    add("--continuations", type=Path, metavar="FILE", help=f"compute the log-likelihood of continuations, JSON lines such as {example}")
    add("--json", action="store_true", help="print JSON, with --continuations one line for each line of FILE")
    add("--encoding", metavar="CODEC", help="encoding of the texts (utf-8)")
    add("--tokenizer", metavar="FOLDER", help="tokenizer.json, or its folder, of a run that was trained on tokens of another program")
    parser.set_defaults(device=None, plugins=None)
    options = parser.parse_intermixed_args(arguments)
    options.texts = _texts(options)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    """Raise `ConfigError` for an option without effect and for a value out of range."""
    if options.texts and options.continuations is not None:
        raise ConfigError("give text files or --continuations FILE, not both")
    others = [*OF_THE_RUN, "tta", *(name for name in OF_A_MANIFEST if name not in WITH_TEXTS)]
    if options.texts:
        idle = dict.fromkeys(others, "with a text")
    elif options.continuations is not None:
        idle = dict.fromkeys(["manifest", *others, "encoding", "output"], "with --continuations")
    elif options.manifest is None:
        idle = dict.fromkeys(OF_A_MANIFEST, "without --manifest") | dict.fromkeys(OF_TEXTS, "without a text")
    else:
        idle = dict.fromkeys([*OF_THE_RUN, *OF_TEXTS], "with --manifest")
    for name, reason in idle.items():
        if getattr(options, name):
            shown = options.overrides[0] if name == "overrides" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{shown} has no effect {reason}; leave it out")
    if options.manifest is not None and options.tta and len(options.tta) > 1:
        raise ConfigError(f"--tta is {','.join(options.tta)}; with --manifest give one of them")
    check_ranges(options, {})


def _listed(text: str) -> list[str]:
    """Return the distinct values of a list such as `192,224`, in order."""
    return list(dict.fromkeys(text.split(",")))


def _texts(options: argparse.Namespace) -> list[Path]:
    """Remove the paths of text files from `options.overrides`, and return them: words that are not KEY=VALUE, or that name a file."""
    if options.manifest is not None:
        return []
    texts = [word for word in options.overrides if os.path.isfile(word) or ("=" not in word and not word.startswith("~"))]
    options.overrides = [word for word in options.overrides if word not in texts]
    return [*map(Path, texts)]


def _evaluate(options: argparse.Namespace) -> Iterable[str]:
    if options.texts or options.continuations is not None:
        return _of_texts(options)
    return _of_run(options) if options.manifest is None else _of_manifest(options)


def _of_texts(options: argparse.Namespace) -> Iterable[str]:
    from linnaeus.workloads.language.trained.text_scores import evaluate

    return evaluate(options)


def _of_run(options: argparse.Namespace) -> list[str]:
    from linnaeus.train.evaluation import Variant, evaluate
    from linnaeus.workloads.language.trained.transformers_folder import is_transformers_folder

    if is_transformers_folder(options.model):
        raise ConfigError(f"{options.model} has no validation text; give text files: linnaeus evaluate {options.model} TEXT")
    variants = [Variant(size, tta) for size in options.image_size or [None] for tta in options.tta or [None]]
    return evaluate(options.model, options.split or "validation", options.checkpoint or "best", options.overrides, options.output, variants)


def _of_manifest(options: argparse.Namespace) -> list[str]:
    from linnaeus.workloads.taxonomy.trained.evaluate.manifest_evaluation import evaluate

    return evaluate(options)


if __name__ == "__main__":
    raise SystemExit(main())
