"""Compute the likelihood of tokens: the score of a text (with the windows and metrics of a validation pass), and the log-likelihood of
continuations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from linnaeus.data.sampler import ValidationBatches
from linnaeus.errors import ConfigError, counted
from linnaeus.workloads.language.language_metrics import LanguageMetrics
from linnaeus.workloads.language.model.gpt import GPT
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.text_windows import TextWindows
from linnaeus.workloads.language.token_array import TokensInMemory


class TextScore(NamedTuple):
    """Metrics of a text. The first token of the text is not predicted, so the metrics leave it out."""

    loss: float  # nats per token
    perplexity: float
    bits_per_byte: float  # per byte of the UTF-8 text, comparable between tokenizers
    top1: float  # fraction of tokens to which the model gave the highest probability
    tokens: int
    bytes: int


class Likelihood(NamedTuple):
    """Log-likelihood of a continuation in nats, the number of its tokens, and `greedy`: True if each token of the continuation was the most
    probable token at its position."""

    log_likelihood: float
    tokens: int
    greedy: bool


class Part(NamedTuple):
    """Part of a row (a context with its continuation) that the network reads at once. `target`: the next token at each position, `IGNORED`
    where the next token is not scored. `row`: number of the row."""

    row: int
    input: np.ndarray
    target: np.ndarray


@torch.inference_mode()
def score_tokens(
    network: GPT, tokens: np.ndarray, byte_lengths: np.ndarray, batch: int, show: Callable[[int], None] | None = None
) -> TextScore:
    """Return the score of tokens [N], read in text windows from the first token.

    `byte_lengths` int64 [V]: number of bytes of each token of the vocabulary. `show` is called after each batch of `batch` windows with the
    number of windows in it. Raise `ConfigError` for fewer than two tokens."""
    if len(tokens) < 2:
        raise ConfigError(f"a text of {counted(len(tokens), 'token')} has no token to predict; it needs at least 2")
    windows, device = TextWindows(TokensInMemory(tokens), network.block, 0, None, ""), network.token.weight.device
    metrics, sums = LanguageMetrics(byte_lengths, device), torch.zeros(2, dtype=torch.float64)
    for indices in ValidationBatches(range(len(windows)), batch):
        read = windows.__getitems__(indices)
        rows = {name: read[name].to(device) for name in ("input", "target")}
        outputs = network(rows)
        sums += metrics.sums(outputs, rows).cpu()  # in the order of a validation pass
        metrics.count(outputs, rows)
        if show is not None:
            show(len(indices))
    found = metrics.compute(sums, metrics.counts)
    _check_finite(found["loss"])
    return TextScore(**found, tokens=len(tokens) - 1, bytes=int(metrics.counts["bytes"]))


@torch.inference_mode()
def log_likelihoods(network: GPT, rows: Sequence[tuple[Sequence[int], int]], batch: int) -> list[Likelihood]:
    """Return the likelihood of the last tokens of each row. A row is (tokens, index of the first token that is scored, at least 1).
    `batch`: number of rows that the network reads at once."""
    parts = [part for number, (tokens, first) in enumerate(rows) for part in _parts(number, np.array(tokens), first, network.block)]
    sums, greedy = [0.0] * len(rows), [True] * len(rows)
    device = network.token.weight.device
    for start in range(0, len(parts), batch):
        some = parts[start : start + batch]
        inputs = pad_sequence([torch.from_numpy(part.input) for part in some], batch_first=True)  # on the right: not read by the others
        target = pad_sequence([torch.from_numpy(part.target) for part in some], batch_first=True, padding_value=IGNORED).to(device)
        outputs = network({"input": inputs.to(device), "target": target})
        losses = outputs["losses"].double().sum(1).tolist()
        right = ((outputs["predictions"] == target) | (target == IGNORED)).all(1).tolist()
        for part, loss, all_right in zip(some, losses, right, strict=True):
            _check_finite(loss)
            sums[part.row] -= loss
            greedy[part.row] &= all_right
    return [Likelihood(total, len(tokens) - first, all_right) for total, (tokens, first), all_right in zip(sums, rows, greedy)]


def _parts(row: int, tokens: np.ndarray, first: int, block: int) -> Iterator[Part]:
    """Yield the parts of a row: one part with as much context as fits into `block`, or several parts if more than `block` tokens are
    scored. `first`: index of the first token to score."""
    while first < len(tokens):
        end = min(len(tokens), first + block)
        start = max(0, end - 1 - block)
        target = tokens[start + 1 : end].copy()
        target[: first - start - 1] = IGNORED
        yield Part(row, tokens[start : end - 1], target)
        first = end


def _check_finite(loss: float) -> None:
    if not np.isfinite(loss):
        raise ConfigError("the model computes logits that are not finite, such as NaN; use an earlier checkpoint")
