"""Text that a model goes on with: prompts of any lengths together, each continued as it would be alone.

    prompts -> read at once, keys and values kept -> one token at a time: scores -> temperature, top-k, top-p -> draw -> read it

**Rows.** A row's tokens stand at places 0, 1, ... of its own, whatever the lengths of its neighbours; shorter prompts are padded on the
right, where a causal model cannot see the padding, and each later token is written over it. No row reads another's tokens, so
a row's scores do not depend on what its neighbours say. (Between a batch and a single prompt they agree to rounding: matrix products of
another shape add in another order.)

**Draws.** The n-th new token of a prompt is drawn by one number, a function of (seed, the prompt, which of its copies in the batch, n).
No generator has a state, so nothing global changes and prompts may be put into batches as one likes.

**Beyond the block.** A model knows `block` places. A row that has filled them forgets its oldest `slide` tokens and reads the others
again from place 0: `window_start` says where a sequence of a given length is read from, a function of that length alone. With
`slide=1` every token sees a full block and costs reading one; larger slides cost less and see `block - slide + 1` tokens at least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.randomness import GENERATION, key, uniforms
from linnaeus.workloads.language.cache import Cache
from linnaeus.workloads.language.model.gpt import GPT
from linnaeus.workloads.language.sampling import Sampling, draw


@dataclass(frozen=True)
class Continuation:
    """`tokens` that follow a prompt, a stop token among them no more; `ended`: by `length`, a `token`, or the `text` so far."""

    tokens: list[int]
    ended: str


def window_start(length: int, block: int, slide: int) -> int:
    """The first token that is read of a sequence of `length`: 0 up to a full block, then in jumps of `slide`."""
    return -(-max(length - block, 0) // slide) * slide


def default_slide(block: int) -> int:
    """A quarter of the block: the context is seven eighths of it on average, and a new token costs reading three old ones."""
    return max(1, block // 4)


@torch.inference_mode()
def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    length: int,
    sampling: Sampling,
    seed: int = 0,
    stop_tokens: Sequence[int] = (),
    stop_when: Callable[[list[int]], bool] | None = None,
    slide: int | None = None,
) -> list[Continuation]:
    """Up to `length` tokens after each prompt (lists of token numbers, none empty), on the model's device.

    A row ends at one of `stop_tokens`, or when `stop_when` says so of its new tokens. The model computes as in validation and is left
    in the mode it was in. ConfigError, one line, for prompts and slides that cannot be."""
    slide = default_slide(model.block) if slide is None else slide
    _check(model, prompts, slide)
    numbers = _uniforms(seed, prompts, length).to(model.token.weight.device)
    rows = [_Row(list(prompt), len(prompt)) for prompt in prompts]
    training = model.training
    model.eval()
    try:
        reader = Reader(model, [row.tokens for row in rows], length, slide)
        for n in range(length):
            chosen = draw(reader.scores(), sampling, numbers[:, n]).tolist()
            for row, token in zip(rows, chosen, strict=True):
                row.take(token, stop_tokens, stop_when)
            if all(row.ended for row in rows):
                break
    finally:
        model.train(training)
    return [Continuation(row.tokens[row.prompt :], row.ended or "length") for row in rows]


class Reader:
    """Reads sequences as they grow. `sequences` are lists the caller appends to, at most one token each between two `scores()`."""

    def __init__(self, model: GPT, sequences: Sequence[list[int]], further: int, slide: int) -> None:
        """`further`: how many tokens a sequence may grow by, at most."""
        self.model, self.sequences, self.slide = model, sequences, slide
        self.device = model.token.weight.device
        self.starts = [-1] * len(sequences)  # where the row that is kept begins in its sequence; -1: nothing is
        places = min(model.block, max(len(tokens) for tokens in sequences) + further)
        self.cache = Cache(model, len(sequences), places)

    def scores(self) -> Tensor:
        """Scores [B, vocabulary] of the token after each sequence."""
        starts = [window_start(len(tokens), self.model.block, self.slide) for tokens in self.sequences]
        anew = [row for row, start in enumerate(starts) if start != self.starts[row]]
        self.starts = starts
        if len(anew) == len(starts):
            return self._read(anew)
        scores = self._step()
        if anew:
            scores[torch.tensor(anew, device=self.device)] = self._read(anew)
        return scores

    def _read(self, rows: list[int]) -> Tensor:
        """Read the windows of some rows from their beginnings; [rows, vocabulary]."""
        windows = [self.sequences[row][self.starts[row] :] for row in rows]
        lengths = torch.tensor([len(window) for window in windows])
        tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
        for line, window in zip(tokens, windows, strict=True):
            line[: len(window)] = torch.tensor(window)
        features = self.model.features(tokens.to(self.device), attend=self.cache.reading(torch.tensor(rows, device=self.device)))
        last = features[torch.arange(len(rows), device=self.device), (lengths - 1).to(self.device)]
        return self._scores(last)

    def _step(self) -> Tensor:
        """Read the last token of each row after what is kept of it; [B, vocabulary]. What it says of rows that slide now is no use,
        and overwritten in the cache when they are read anew."""
        last = torch.tensor([[tokens[-1]] for tokens in self.sequences], device=self.device)
        places = [min(len(tokens) - start, self.cache.places) - 1 for tokens, start in zip(self.sequences, self.starts, strict=True)]
        positions = torch.tensor(places, device=self.device)
        features = self.model.features(last, positions[:, None], self.cache.stepping(positions, max(places) + 1))
        return self._scores(features[:, 0])

    def _scores(self, features: Tensor) -> Tensor:
        """Without the rows of the embedding that stand for no token."""
        return self.model.logits(features)[:, : self.model.vocabulary]


@dataclass
class _Row:
    """A sequence on its way: `prompt` tokens of it were given."""

    tokens: list[int]
    prompt: int
    ended: str = ""

    def take(self, token: int, stop_tokens: Sequence[int], stop_when: Callable[[list[int]], bool] | None) -> None:
        if self.ended:
            return
        if token in stop_tokens:
            self.ended = "token"
            return
        self.tokens.append(token)
        if stop_when is not None and stop_when(self.tokens[self.prompt :]):
            self.ended = "text"


def _uniforms(seed: int, prompts: Sequence[Sequence[int]], length: int) -> Tensor:
    """float64 [B, length] in [0, 1): one number for each new token of each row."""
    seen: Counter[tuple[int, ...]] = Counter()
    lines = []
    for prompt in prompts:
        name = tuple(int(token) for token in prompt)
        lines.append(uniforms(key(seed, GENERATION, key(*name), seen[name]), np.arange(length)))
        seen[name] += 1
    return torch.from_numpy(np.stack(lines))


def _check(model: GPT, prompts: Sequence[Sequence[int]], slide: int) -> None:
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ConfigError("prompt: it has no token; give at least one character, a line break will do")
    strange = next((token for prompt in prompts for token in prompt if not 0 <= token < model.vocabulary), None)
    if strange is not None:
        raise ConfigError(f"prompt: token {strange} is none of the model's {model.vocabulary}; use the tokenizer it was trained with")
    if not 1 <= slide <= model.block:
        raise ConfigError(f"slide is {slide}; it takes a number of tokens from 1 to the model's block of {model.block}")
