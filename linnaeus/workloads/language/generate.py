"""Text from a trained model.

python -m linnaeus.workloads.language.generate RUN --prompt "To be" [--prompt ... --samples 3 --tokens 500 --temperature 0.8 --top-k 200]

RUN is the directory of a run, whose newest checkpoint is taken, or one of its checkpoints. Several prompts, and several samples of each,
are continued together, each as it would be alone. The same command prints the same text; `--seed` gives another.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from linnaeus.workloads.language.generation import Continuation
    from linnaeus.workloads.language.tokenizers import Tokenizer

RULE = "-" * 16


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and status 2, without the usage."""
        self.exit(2, f"error: {message}\n")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="python -m linnaeus.workloads.language.generate", description="text from a trained model")
    add = parser.add_argument
    add("run", metavar="RUN", help="directory of a run, or one of its checkpoints")
    add("--prompt", action="append", metavar="TEXT", help="what to go on with; may be given again. Without: a document's beginning")
    add("--prompt-file", action="append", type=Path, metavar="FILE", help="the same from a UTF-8 file; may be given again")
    add("--samples", type=int, default=1, metavar="N", help="continuations of each prompt (%(default)s)")
    add("--tokens", type=int, default=500, metavar="N", help="longest continuation, in tokens (%(default)s)")
    add("--temperature", type=float, default=0.8, metavar="T", help="0: the likeliest token each time (%(default)s)")
    add("--top-k", type=int, default=200, metavar="K", help="draw from the K likeliest tokens; 0: from all (%(default)s)")
    add("--top-p", type=float, default=1.0, metavar="P", help="draw from the fewest tokens that hold this share (%(default)s)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given again")
    add(
        "--dimension", action="append", default=[], metavar="NAME=WEIGHT", help="as in a phase; may be given again. Without: the run's last"
    )
    add("--slide", type=int, metavar="N", help="tokens forgotten at once when the block is full. Without: a quarter of it")
    add("--seed", type=int, default=0, metavar="N", help="another seed draws another text (%(default)s)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto takes CUDA when there is one")
    arguments = parser.parse_args(argv)
    for name in ("samples", "tokens"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is {getattr(arguments, name)}; it takes a whole number from 1")
    if "" in arguments.stop:
        parser.error("--stop is an empty text, which is everywhere; leave it out")
    return arguments


def _prompts(arguments: argparse.Namespace) -> list[str]:
    """In the order of the options; a lone empty one, which stands for a document's beginning, where none is given."""
    texts = list(arguments.prompt or [])
    for file in arguments.prompt_file or []:
        try:
            texts.append(file.read_bytes().decode())  # as training does: line ends stay what they are
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompt-file: {file} cannot be read ({error}); give a file of UTF-8 text") from None
    return texts or [""]


def encoded(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt. An empty one begins a document: behind the end marker of another, or where there is none, on a new line."""
    if not prompt and tokenizer.end is not None:
        return [tokenizer.end]
    if not prompt and "\n" not in getattr(tokenizer, "alphabet", "\n"):
        raise ConfigError("--prompt: this model knows no line break, with which a text could begin; give one")
    try:
        return [int(token) for token in tokenizer.encode(prompt or "\n")]
    except (ConfigError, UnicodeEncodeError) as error:  # the latter where the command line was no UTF-8
        raise ConfigError(f"--prompt: {error}") from None


def stop_when(tokenizer: Tokenizer, stops: Sequence[str]) -> Callable[[list[int]], bool] | None:
    """Whether the text of new tokens holds one of `stops`."""
    if not stops:
        return None
    return lambda tokens: any(stop in tokenizer.decode(tokens) for stop in stops)


def text_of(tokenizer: Tokenizer, found: Continuation, stops: Sequence[str]) -> str:
    """The text of a continuation up to the first of `stops`."""
    text = tokenizer.decode(found.tokens)
    return text[: min([len(text), *(where for stop in stops if (where := text.find(stop)) >= 0)])]


def weights_of(names: Sequence[str], given: Sequence[str]) -> list[float]:
    """What `--dimension` asks for, as a phase does: a dimension that is not named weighs 1, and all are scaled to sum to 1."""
    from linnaeus.schedule.phases import normalised

    weights = dict.fromkeys(names, 1.0)
    for text in given:
        name, _, number = text.partition("=")
        if name not in weights:
            there = f"there are {', '.join(names)}" if names else "this model has none"
            raise ConfigError(f"--dimension: {text}: {name} is no dimension; {there}")
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = math.nan
        if not 0 <= weights[name] < math.inf:
            raise ConfigError(f"--dimension: {text}: a weight is a number from 0, as in {name}=2")
    if not any(weights.values()):
        raise ConfigError("--dimension: all weights are 0; give one that is more")
    return normalised(weights, names, 1.0).tolist()


def perform(arguments: argparse.Namespace) -> None:
    """Print the texts on stdout, what they were made with on stderr."""
    import torch

    from linnaeus.workloads.language.generation import generate
    from linnaeus.workloads.language.sampling import Sampling
    from linnaeus.workloads.language.trained import load_trained

    sampling = Sampling(arguments.temperature, arguments.top_k or None, arguments.top_p)
    texts = _prompts(arguments)
    trained = load_trained(arguments.run)
    tokenizer = trained.tokenizer
    if arguments.dimension:
        trained.model.weigh(weights_of(trained.model.dimensions, arguments.dimension))
    device = _device(arguments.device, torch.cuda.is_available())
    prompts = [encoded(tokenizer, text) for text in texts for _ in range(arguments.samples)]
    begun = time.perf_counter()
    found = generate(
        trained.model.to(device),
        prompts,
        arguments.tokens,
        sampling,
        arguments.seed,
        [] if tokenizer.end is None else [tokenizer.end],
        stop_when(tokenizer, arguments.stop),
        arguments.slide,
    )
    took = time.perf_counter() - begun
    for i, continuation in enumerate(found):
        if len(found) > 1:
            print(RULE)
        print(texts[i // arguments.samples] + text_of(tokenizer, continuation, arguments.stop))
    made = sum(len(continuation.tokens) for continuation in found)
    for line in (*trained.notes, f"{trained.source}: {made} tokens in {took:.1f} s on {device}, {made / took:.0f} a second"):
        print(line, file=sys.stderr)


def _device(wanted: str, has_cuda: bool) -> str:
    if wanted == "cuda" and not has_cuda:
        raise ConfigError("--device=cuda: there is no CUDA device here; use --device=cpu")
    return ("cuda" if has_cuda else "cpu") if wanted == "auto" else wanted


def main(argv: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one line on stderr for what a user got wrong."""
    arguments = _arguments(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character that the terminal has not must not cost the text
    with user_errors(2):
        perform(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
