"""Show windows of text on an HTML page about single samples, with marked tokens."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.workloads.language.model.token_loss import IGNORED
from linnaeus.workloads.language.tokenizers import Tokenizer
from linnaeus.workloads.sample_view import SampleView

BEFORE, AFTER = 160, 60  # characters around the strongest token


class TextView(SampleView):
    """View of the text windows of a language run. The model's outputs are the probabilities of the next token."""

    def __init__(self, tokenizer: Tokenizer | None, vocabulary: int, name: Callable[[int], str]) -> None:
        super().__init__(name)
        self.tokenizer = tokenizer
        texts = [f"token {i}" for i in range(vocabulary)] if tokenizer is None else [tokenizer.decode([i]) for i in range(vocabulary)]
        self.texts, self.outputs = texts, {"next token": [repr(text) for text in texts]}

    def scores(self, model: nn.Module, batch: Batch, position: Tensor | None) -> dict[str, Tensor]:
        logits = model({name: value for name, value in batch.items() if name != "target"})["logits"]  # without targets it has logits
        rows = torch.arange(len(logits), device=logits.device)
        at = logits.shape[1] - 1 if position is None else position
        return {"next token": logits[rows, at, : len(self.texts)].float().log_softmax(1)}

    def html(self, batch: Batch, row: int, heat: np.ndarray | None) -> str:
        """Return the text around the token with the largest `heat`, with a mark on each token whose heat is above 0, as HTML."""
        positions, real = batch["input"].shape[1], int((batch["target"][row] != IGNORED).sum())
        tokens = batch["input"][row, :real].tolist()  # without the padding after the end of the text
        strength = np.zeros(real) if heat is None or heat.shape != (positions,) else heat[:real]
        peak = int(strength.argmax())
        first, last = _around([len(self.texts[token]) for token in tokens], peak)
        parts = ["…" if first else ""]
        for i in range(first, last):
            text = escape(self.texts[tokens[i]].replace("\n", "⏎\n"))
            parts.append(text if strength[i] <= 0 else f'<mark style="--heat:{strength[i]:.2f}">{text}</mark>')
        return f'<p class="text">{"".join(parts)}{"…" if last < len(tokens) else ""}</p>'


def _around(lengths: list[int], peak: int) -> tuple[int, int]:
    """Return (first, last + 1): the range of the tokens to show around the token number `peak`, at most `BEFORE` characters before this
    token and `AFTER` characters after it.

    lengths: number of characters of each token."""
    first, last = peak, peak + 1
    while first > 0 and sum(lengths[first - 1 : peak]) <= BEFORE:
        first -= 1
    while last < len(lengths) and sum(lengths[peak + 1 : last + 1]) <= AFTER:
        last += 1
    return first, last
