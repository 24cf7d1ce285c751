"""The command `linnaeus generate`: generate text from a trained model.

linnaeus generate RUN --prompt "To be" [--prompt ... --samples 3 --tokens 500 --temperature 0.8 --top-k 200]
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from linnaeus.workloads.language.tokenizers import Tokenizer

SEPARATOR = "-" * 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Print continuations of the prompts to stdout, and a line about the model and the speed to stderr. The same command prints the same
    text. Return 0, or exit with status 2 and one line on stderr for a user's mistake."""
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
    add("run", metavar="RUN", help="directory of a run (its newest checkpoint is used), or one of its checkpoints")
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
    import torch

    from linnaeus.workloads.language.generation import Sampling, generate
    from linnaeus.workloads.language.trained_model import load_trained_model

    sampling = Sampling(options.temperature, options.top_k or None, options.top_p)
    texts = _prompts(options)
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device=cuda: this machine has no CUDA device; use --device=cpu")
    trained = load_trained_model(options.run)
    tokenizer = trained.tokenizer
    if options.dimension:
        trained.model.set_dimension_weights(dimension_weights(trained.model.dimensions, options.dimension))
    prompts = [encode_prompt(tokenizer, text) for text in texts for _ in range(options.samples)]
    start = time.perf_counter()
    continuations = generate(
        trained.model.to(device),
        prompts,
        options.tokens,
        sampling,
        options.seed,
        [] if tokenizer.end is None else [tokenizer.end],
        stop_finder(tokenizer, options.stop),
        options.slide,
    )
    seconds = time.perf_counter() - start
    for i, continuation in enumerate(continuations):
        if len(continuations) > 1:
            print(SEPARATOR)
        print(texts[i // options.samples] + text_of(tokenizer, continuation, options.stop))
    tokens = sum(len(continuation) for continuation in continuations)
    for line in (*trained.notes, f"{trained.source}: {tokens} tokens in {seconds:.1f} s on {device}, {tokens / seconds:.0f} per second"):
        print(line, file=sys.stderr)


def _prompts(options: argparse.Namespace) -> list[str]:
    """Return the prompts in the order of the options; without any, one empty prompt, which starts a document."""
    texts = list(options.prompt or [])
    for file in options.prompt_file or []:
        try:
            texts.append(file.read_bytes().decode())  # as in training: line ends are not converted
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompt-file: {file} cannot be read ({error}); use a UTF-8 text file") from None
    return texts or [""]


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the tokens of a prompt. An empty prompt starts a document: it becomes the end marker, or a line break without one."""
    if not prompt and tokenizer.end is not None:
        return [tokenizer.end]
    if not prompt and "\n" not in getattr(tokenizer, "alphabet", "\n"):
        raise ConfigError("--prompt: this model has no line break to start a text with; set a prompt")
    try:
        return [int(token) for token in tokenizer.encode(prompt or "\n")]
    except (ConfigError, UnicodeEncodeError) as error:  # UnicodeEncodeError: the command line was not UTF-8
        raise ConfigError(f"--prompt: {error}") from None


def text_of(tokenizer: Tokenizer, tokens: Sequence[int], stops: Sequence[str]) -> str:
    """Return the text of tokens, up to the first of `stops`."""
    text = tokenizer.decode(tokens)
    return text[: min([len(text), *(index for stop in stops if (index := text.find(stop)) >= 0)])]


def stop_finder(tokenizer: Tokenizer, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    """Return a function that returns True if the newest of some tokens completes one of `stops`; None without stops.

    It decodes the newest token and as many before it as a stop may have bytes, so its time does not depend on the number of tokens."""
    if not stops:
        return None
    lengths, longest = tokenizer.byte_lengths().tolist(), 4 * max(map(len, stops))  # a character has up to 4 bytes

    def completes_stop(tokens: Sequence[int]) -> bool:
        first, size = len(tokens) - 1, 0
        while first > 0 and size < longest:
            first -= 1
            size += lengths[tokens[first]]
        text = tokenizer.decode(tokens[first:])
        return any(stop in text for stop in stops)

    return completes_stop


def dimension_weights(names: Sequence[str], given: Sequence[str]) -> list[float]:
    """Return the weights of `--dimension` options, scaled to sum to 1. A dimension that is not given has weight 1 before scaling."""
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
