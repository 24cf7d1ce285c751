"""The command `linnaeus generate`: generate text from a trained model.

linnaeus generate MODEL --prompt "To be" [--prompt ... --samples 3 --tokens 500 --temperature 0.8 --top-k 200]
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError, counted

SEPARATOR = "-" * 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Print continuations of the prompts to stdout, and a line about the model and the speed to stderr. Equal commands print equal text.
    Return 0, or exit with status 2 and one line on stderr for a user's mistake."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # otherwise a character outside the terminal's encoding loses all text
    with user_errors(2):
        _run(_parse(arguments))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(
        prog="linnaeus generate",
        description="Generate text from a trained model. Prompts are continued together, each as it would be alone.",
    )
    add = parser.add_argument
    add("run", metavar="MODEL", help="directory of a run, one of its checkpoints, or a folder of transformers (GPT-2, GPT-NeoX)")
    add("--checkpoint", metavar="WHICH", help="of a run: best, newest or a step (the best if one was validated, else the newest)")
    add(
        "--tokenizer",
        metavar="FOLDER",
        help="for a run without a tokenizer (trained on tokens of another program): tokenizer.json of its tokens, or its folder",
    )
    add("--prompt", action="append", metavar="TEXT", help="text to continue; may be repeated; default: the beginning of a document")
    add("--prompt-file", action="append", type=Path, metavar="FILE", help="UTF-8 file with a text to continue; may be repeated")
    add("--samples", type=int, default=1, metavar="N", help="continuations of each prompt (%(default)s)")
    add("--tokens", type=int, default=500, metavar="N", help="maximum number of new tokens (%(default)s)")
    add("--temperature", type=float, default=0.8, metavar="T", help="divides the logits; 0: the most probable token (%(default)s)")
    add("--top-k", type=int, default=200, metavar="K", help="draw from the K most probable tokens; 0: from all (%(default)s)")
    add("--top-p", type=float, default=1.0, metavar="P", help="draw from the fewest tokens with total probability P (%(default)s)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    add(
        "--dimension",
        action="append",
        default=[],
        metavar="NAME=WEIGHT",
        help="weight of a dimension, as in a phase; may be repeated; default: the weights at the end of the run",
    )
    add("--slide", type=int, metavar="N", help="tokens dropped at once when the context is full; default: a quarter of the block")
    add("--seed", type=int, default=0, metavar="N", help="seed of the draws (%(default)s)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: CUDA if available (%(default)s)")
    options = parser.parse_args(arguments)
    for name in ("samples", "tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be at least 1")
    if "" in options.stop:
        parser.error("--stop is empty; it must have at least one character")
    return options


def _run(options: argparse.Namespace) -> None:
    from linnaeus.workloads.language.generation import Sampling
    from linnaeus.workloads.language.trained.load_language_model import load_model
    from linnaeus.workloads.run_weights import available_device

    sampling = Sampling(options.temperature, options.top_k or None, options.top_p)
    texts, device = _prompts(options), available_device(options.device)
    model = load_model(options.run, checkpoint=options.checkpoint, device=device, tokenizer=options.tokenizer)
    if options.dimension:
        model.network.set_dimension_weights(dimension_weights(model.network.dimensions, options.dimension))
    prompts = [text for text in texts for _ in range(options.samples)]
    start = time.perf_counter()
    continuations = model.continuations(prompts, options.tokens, sampling, options.stop, options.seed, options.slide)
    seconds = time.perf_counter() - start
    for prompt, continuation in zip(prompts, continuations, strict=True):
        if len(continuations) > 1:
            print(SEPARATOR)
        print(prompt + continuation.text)
    tokens = sum(continuation.tokens for continuation in continuations)
    for line in (
        *model.notes,
        f"{model.source}: {counted(tokens, 'token')} in {seconds:.1f} s on {device}, {tokens / seconds:.0f} per second",
    ):
        print(line, file=sys.stderr)


def _prompts(options: argparse.Namespace) -> list[str]:
    """Return the prompts of the options `--prompt` and `--prompt-file`, in order. Without these options, return one empty prompt, which
    starts a document.

    Raise `ConfigError` for a file that cannot be read as UTF-8."""
    texts = list(options.prompt or [])
    for file in options.prompt_file or []:
        try:
            texts.append(file.read_bytes().decode())  # as in training: line ends are not converted
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompt-file: {file} cannot be read ({error}); use a UTF-8 text file") from None
    return texts or [""]


def dimension_weights(names: Sequence[str], given: Sequence[str]) -> list[float]:
    """Return the weight of each dimension (a named adapter of the model) in `names`, scaled to sum to 1. `given`: values of the option
    `--dimension`, NAME=WEIGHT. A dimension that is not given has weight 1 before scaling.

    Raise `ConfigError` for an unknown name, for a weight that is not a number of at least 0, and if all weights are 0."""
    from linnaeus.schedule.phases import normalised_weights

    weights = dict.fromkeys(names, 1.0)
    for text in given:
        name, _, number = text.partition("=")
        if name not in weights:
            raise ConfigError(f"--dimension: {text}: {name} is not a dimension of this model; it has {', '.join(names) or 'none'}")
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = math.nan
        if not 0 <= weights[name] < math.inf:
            raise ConfigError(f"--dimension: {text}: the weight must be a number of at least 0, as in {name}=2")
    if not any(weights.values()):
        raise ConfigError("--dimension: all weights are 0; at least one must be positive")
    return normalised_weights(weights, names, 1.0).tolist()


if __name__ == "__main__":
    raise SystemExit(main())
