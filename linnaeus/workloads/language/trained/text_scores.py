"""Evaluate a language model on texts, without training: `linnaeus evaluate MODEL TEXT...`.

    linnaeus evaluate MODEL TEXT... [--json] [--output FOLDER]       the loss of each text and of all together, as a table or as JSON
    linnaeus evaluate MODEL --continuations FILE.jsonl [--json]      the log-likelihood of continuations (`continuations.py`)

MODEL is a run, a checkpoint, or a folder of transformers.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, one_line, shorten
from linnaeus.files import refuse_read_only, to_json, write_atomic
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.language.text_pieces import check_encoding, read_pieces, reading_progress, recut
from linnaeus.workloads.language.tokenizers import PIECE_SIZE
from linnaeus.workloads.language.trained.continuations import answer_lines, read_questions
from linnaeus.workloads.language.trained.language_model import LanguageModel
from linnaeus.workloads.language.trained.likelihood import TextScore
from linnaeus.workloads.language.trained.load_language_model import load_model
from linnaeus.workloads.run_weights import available_device

COLUMNS = ("nats/token", "perplexity", "bits/byte", "top-1 %", "tokens", "text")


def evaluate(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines that `linnaeus evaluate` prints for text files or continuations. With --output, write metrics.json.

    Lines about the model are printed to stderr. Raise `ConfigError` for a user's mistake."""
    if options.output is not None:
        refuse_read_only(options.output, "--output", "choose another folder")
    questions = None if options.continuations is None else read_questions(options.continuations)
    for path in options.texts:
        check_readable(path)
    device = available_device(options.device or "auto")
    model = load_model(options.model, checkpoint=options.checkpoint, device=device, tokenizer=options.tokenizer)
    model.batch = options.batch_size or model.batch
    print(*model.notes, f"weights of {model.source}", sep="\n", file=sys.stderr)
    if questions is not None:
        yield from answer_lines(model, questions, options.json)
        return
    found = score_files(model, options.texts, options.encoding or "utf-8")
    content = to_json(record(found, model.source))
    yield from [content.rstrip("\n")] if options.json else table(found)
    if options.output is None:
        return
    file = options.output / "metrics.json"
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        write_atomic(file, content)
    except OSError as error:
        raise ConfigError(f"--output: {options.output} cannot be written ({error.strerror}); choose another folder") from None
    yield from [] if options.json else ["", str(file)]


def score_files(model: LanguageModel, paths: Sequence[Path], encoding: str) -> dict[str, TextScore]:
    """Return path -> score of each file. Raise `ConfigError` for a file that is not text in `encoding`, or that has fewer than two
    tokens."""
    found: dict[str, TextScore] = {}
    for path in paths:
        tokens = read_tokens(model, path, encoding)
        windows = -(-(len(tokens) - 1) // model.network.block)
        with PreparationProgress(f"scoring {path.name}", windows, f"{windows:,} windows") as progress:
            try:
                found[str(path)] = model.score_tokens(tokens, progress.add)
            except ConfigError as error:
                raise ConfigError(f"TEXT: {path}: {error}") from None
    return found


def read_tokens(model: LanguageModel, path: Path, encoding: str) -> np.ndarray:
    """Return the tokens of a text file, uint32 [N]. The text itself is not held in memory.

    Raise `ConfigError` for an unknown encoding, a file that is not text in this encoding, and a character without a token."""
    check_encoding("--encoding", encoding)
    parts = [np.zeros(0, np.uint32)]
    try:
        with reading_progress(f"reading {path.name}", path.stat().st_size) as progress:
            pieces = read_pieces(path, encoding, hashlib.sha256(), progress)
            for piece in recut(pieces, model.tokenizer.boundary, PIECE_SIZE):
                parts.append(model.encode(piece).astype(np.uint32))
    except UnicodeError as error:
        raise ConfigError(f"TEXT: {path} is not {encoding} ({one_line(error)}); correct the file, or set --encoding") from None
    except ConfigError as error:
        raise ConfigError(f"TEXT: {path}: {error}") from None
    return np.concatenate(parts)


def check_readable(path: Path) -> None:
    """Raise `ConfigError` if a text file cannot be read."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"TEXT: {path} cannot be read ({error.strerror}); give text files") from None


def combined(scores: Sequence[TextScore]) -> TextScore:
    """Return the score of all texts together, computed from the score of each text. Each token and each byte has the same weight."""
    if len(scores) == 1:
        return scores[0]
    tokens, size = sum(one.tokens for one in scores), sum(one.bytes for one in scores)
    nats = sum(one.loss * one.tokens for one in scores)
    loss, top1 = nats / tokens, sum(one.top1 * one.tokens for one in scores) / tokens
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return TextScore(loss, perplexity, nats / math.log(2) / size if size else math.nan, top1, tokens, size)


def record(found: dict[str, TextScore], source: str) -> dict[str, Any]:
    """Return the scores of texts as values for JSON. `source`: path of the weights."""
    texts = [{"text": name, **score._asdict()} for name, score in found.items()]
    return {"weights": source, "texts": texts, "all": combined(list(found.values()))._asdict()}


def table(found: dict[str, TextScore]) -> list[str]:
    """Return the scores of texts as lines of a table: a row for each, and for several texts a row for all together."""
    rows = [*found.items(), *([("all", combined(list(found.values())))] if len(found) > 1 else [])]
    lines = ["".join(f"{name:>12s}" for name in COLUMNS[:-1]) + f"  {COLUMNS[-1]}"]
    for name, one in rows:
        numbers = f"{one.loss:12.4f}{one.perplexity:12.4g}{one.bits_per_byte:12.4f}{100 * one.top1:12.2f}{one.tokens:12,d}"
        lines.append(f"{numbers}  {shorten(name, 100)}")
    return lines
