"""Compute the results of two predictions that use only the token frequencies of the training text, as baselines.

`constant` always predicts the most frequent token. `unigram` predicts every token with its frequency."""

import math
from typing import Any

import numpy as np

from linnaeus.workloads.language.token_store import TokenStore

MOST_TOKENS = 20_000_000  # of a split, for frequencies


def unigram(store: TokenStore) -> dict[str, float]:
    """Return {"unigram_loss": nats per token, "constant_top1": share of tokens that are the most frequent token of the training text}. If
    the bytes of the tokens are known, add "bits_per_byte", `unigram_loss` in bits per byte.

    They are measured on the whole validation text; of a split with more than `MOST_TOKENS` tokens, the first are used. For the loss, 1 is
    added to the count of each token, so that no token is impossible."""
    training, validation = (split.read(np.arange(min(split.size, MOST_TOKENS))) for split in (store.train, store.validation))
    counts = np.bincount(training, minlength=store.vocabulary_size)
    occurs = np.bincount(validation, minlength=store.vocabulary_size)[: len(counts)] / max(len(validation), 1)
    log_p = np.log((counts + 1) / (counts.sum() + len(counts)))
    found = {"unigram_loss": float(-(occurs * log_p).sum()), "constant_top1": float(occurs[counts.argmax()])}
    size = 0.0 if store.byte_lengths is None else float(occurs @ store.byte_lengths)
    return found | ({"bits_per_byte": found["unigram_loss"] / math.log(2) / size} if size else {})


def baseline_rows(found: dict[str, float]) -> list[dict[str, Any]]:
    """Return the rows of the table `baselines`: `metric`, `constant` and `unigram`. `found`: result of `unigram`. The loss of `constant` is
    infinite, so it has only `top1`."""
    loss, top1 = found["unigram_loss"], found["constant_top1"]
    values = {"loss": loss, "perplexity": math.exp(min(loss, 700)), "bits_per_byte": found.get("bits_per_byte")}
    rows = [{"metric": name, "constant": None, "unigram": value} for name, value in values.items() if value is not None]
    return [*rows, {"metric": "top1", "constant": top1, "unigram": top1}]
