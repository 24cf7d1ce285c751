"""Compute the log-likelihood of continuations of a context: `linnaeus evaluate MODEL --continuations FILE.jsonl`.

A line of FILE.jsonl is {"context": "To be", "continuations": [" or", " not"]}, optionally with "answer", the index of the right
continuation from 0 on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, quoted
from linnaeus.files import to_json, with_distinct_keys
from linnaeus.workloads.language.trained.language_model import LanguageModel
from linnaeus.workloads.language.trained.likelihood import Likelihood

TOGETHER = 256  # lines of a file of continuations that are scored together


@dataclass(frozen=True)
class Question:
    """Context with possible continuations. `answer`: index of the right continuation, None if unknown. `line`: line number in the file,
    from 1 on."""

    line: int
    context: str
    continuations: tuple[str, ...]
    answer: int | None

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.context, text) for text in self.continuations]


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a JSONL file. Empty lines are skipped. Raise `ConfigError`, naming the line, for any other content."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")  # Windows editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--continuations: {path} cannot be read ({reason}); give a file of JSON lines") from None
    found = [_question(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"--continuations: {path} is empty; a line is " + '{"context": "To be", "continuations": [" or", " not"]}')
    return found


def _question(path: Path, number: int, line: str) -> Question:
    where = f"{path}, line {number}"
    try:
        content = json.loads(line, object_pairs_hook=with_distinct_keys)
        context, continuations, answer = content["context"], content["continuations"], content.get("answer")
        texts = isinstance(continuations, list) and all(isinstance(text, str) and text for text in continuations)
        if not isinstance(context, str) or not texts or not continuations:
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        needed = '{"context": "To be", "continuations": [" or", " not"]}'
        raise ConfigError(
            f"--continuations: {where} is {quoted(line)}; it must be like {needed}, each key once, with texts that are not empty"
        ) from None
    if answer is not None and (type(answer) is not int or not 0 <= answer < len(continuations)):
        raise ConfigError(f"--continuations: {where}: answer is {quoted(answer)}; it must be from 0 to {len(continuations) - 1}")
    return Question(number, context, tuple(continuations), answer)


def answers(model: LanguageModel, questions: Sequence[Question]) -> Iterator[tuple[Question, list[Likelihood]]]:
    """Yield each question with the likelihoods of its continuations. Raise `ConfigError` for a character without a token."""
    for first in range(0, len(questions), TOGETHER):
        some = questions[first : first + TOGETHER]
        try:
            found = iter(model.log_likelihoods([pair for one in some for pair in one.pairs()]))
        except ConfigError:
            for one in some:
                _check_question(model, one)
            raise
        for one in some:
            yield one, [next(found) for _ in one.continuations]


def _check_question(model: LanguageModel, question: Question) -> None:
    try:
        model.log_likelihoods(question.pairs())
    except ConfigError as error:
        raise ConfigError(f"--continuations: line {question.line}: {error}") from None


def answer_lines(model: LanguageModel, questions: Sequence[Question], as_json: bool) -> Iterator[str]:
    """Yield the lines for each question, or one line of JSON, and then the shares of right answers, if some are known. With JSON, print the
    shares to stderr instead."""
    right = {"log-likelihood": 0, "log-likelihood per byte": 0}
    known = sum(one.answer is not None for one in questions)
    for one, found in answers(model, questions):
        totals = [each.log_likelihood for each in found]
        per_byte = [total / len(text.encode()) for total, text in zip(totals, one.continuations)]
        best = {name: int(np.argmax(values)) for name, values in zip(right, (totals, per_byte))}
        for name, chosen in best.items():
            right[name] += chosen == one.answer
        if as_json:
            yield to_json(_record(one, found, best), indent=None).rstrip("\n")
        else:
            yield from _lines(one, found, best["log-likelihood"])
    shares = [f"right by {name}: {number} of {known}, {100 * number / known:.2f} %" for name, number in right.items() if known]
    if as_json:
        print(*shares, sep="\n", end="\n" if shares else "", file=sys.stderr)
    else:
        yield from shares


def _record(one: Question, found: Sequence[Likelihood], best: dict[str, int]) -> dict[str, Any]:
    """Return the result of a question as values for JSON. `found`: likelihood of each continuation. `best`: name of a measure -> index of
    the best continuation by this measure."""
    rows = [{"text": text, **each._asdict()} for text, each in zip(one.continuations, found)]
    record: dict[str, Any] = {"context": one.context, "continuations": rows}
    record |= {"best": best["log-likelihood"], "best_per_byte": best["log-likelihood per byte"]}
    return record | ({} if one.answer is None else {"answer": one.answer})


def _lines(one: Question, found: Sequence[Likelihood], best: int) -> list[str]:
    rows = [
        f"{'*' if number == best else ' '}{each.log_likelihood:12.4f} {each.tokens:5d} tokens  {quoted(text, 80)}"
        for number, (text, each) in enumerate(zip(one.continuations, found))
    ]
    return [quoted(one.context, 100), *rows]
