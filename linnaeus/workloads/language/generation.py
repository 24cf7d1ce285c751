"""Generate text: continue a batch of prompts of any lengths, one token at a time, with a key/value cache.

**Rows.** A row of the batch is a prompt and its new tokens, at positions 0, 1, ... Shorter prompts are padded on the right, where causal
attention does not read, and new tokens overwrite the padding. So a prompt is continued as it would be alone. (Logits in a batch and alone
agree to rounding.)

**Draws.** The n-th new token of a prompt is drawn with a number that is a function of (seed, the prompt, its index among equal prompts, n),
so prompts may be batched in any way. No random generator with a state is used.

**Beyond the block.** When a row becomes longer than `block` tokens, its oldest `slide` tokens are dropped, and the rest is read again from
position 0. `window_start` is a function of the row's length alone. With `slide=1` every token has a full block of context, and each new
token costs reading a block. A larger slide costs less and leaves at least `block - slide + 1` tokens of context.

**Sampling.** Probabilities are float64, and their cumulative sums run in the order of the vocabulary. So rounding errors of the logits
change each cumulative sum by no more than the rounding errors themselves."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.errors import ConfigError
from linnaeus.randomness import GENERATION, key, uniforms
from linnaeus.workloads.language.model.causal_attention import Attend
from linnaeus.workloads.language.model.gpt import GPT

SPAN = 64  # a step attends to a multiple of this many positions: few tensor shapes, and less than the block for a short text


@dataclass(frozen=True)
class Sampling:
    """Rule by which the next token is drawn. `temperature` divides the logits; 0 selects the most probable token. `top_k` keeps the k most
    probable tokens; None keeps all. `top_p`, applied after `temperature` and `top_k`, keeps the fewest most probable tokens whose
    probabilities sum to at least p; None keeps all."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature:g}; it must be 0, for the most probable token, or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}; it must be at least 1, or omitted to keep all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p:g}; it must be above 0 and at most 1")


def window_start(length: int, block: int, slide: int) -> int:
    """Return the index of the first token that the model reads, for a sequence of `length` tokens: max(0, length - block), rounded up to a
    multiple of `slide`."""
    return -(-max(length - block, 0) // slide) * slide


def default_slide(block: int) -> int:
    """Return the number of tokens that are dropped at once when a context of `block` tokens is full, if the user sets no other."""
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
) -> list[list[int]]:
    """Return up to `length` new tokens for each prompt (a non-empty list of token ids), computed on the model's device.

    A row ends before a token in `stop_tokens`, or after `stop_when(new tokens of the row)` returns True. The model runs in evaluation mode;
    afterwards its earlier mode is restored. Raise `ConfigError` for an invalid prompt or slide, and for logits that are not finite.

    `slide` is the number of tokens dropped when the block (the longest context) is full. The default is a quarter of the block: the context
    is then seven eighths of the block on average, and to make a new token costs as much as to read three old tokens."""
    slide = default_slide(model.block) if slide is None else slide
    _check(model, prompts, slide)
    numbers = _draw_numbers(seed, prompts, length).to(model.token.weight.device)
    rows, running, training = [list(prompt) for prompt in prompts], list(range(len(prompts))), model.training
    new: list[list[int]] = [[] for _ in prompts]
    model.eval()
    try:
        decoder = IncrementalDecoder(model, rows, length, slide)
        for n in range(length):
            logits = decoder.next_logits()
            if not logits.isfinite().all():
                raise ConfigError("the model computes logits that are not finite, such as NaN; use an earlier checkpoint")
            chosen = draw(logits, sampling, numbers[:, n]).tolist()
            running = [row for row in running if chosen[row] not in stop_tokens]
            for row in running:
                rows[row].append(chosen[row])
                new[row].append(chosen[row])
            if stop_when is not None:
                running = [row for row in running if not stop_when(new[row])]
            if not running:
                break
    finally:
        model.train(training)
    return new


class IncrementalDecoder:
    """Decoder that computes the next logits of growing sequences with a key/value cache. `sequences` are B lists of token ids; between two
    calls of `next_logits` the caller appends at most one token to each."""

    def __init__(self, model: GPT, sequences: Sequence[list[int]], max_new_tokens: int, slide: int) -> None:
        """`max_new_tokens`: the largest number of tokens that the caller appends to a sequence."""
        self.model, self.sequences, self.slide = model, sequences, slide
        self.device = model.token.weight.device
        self.starts = [-1] * len(sequences)  # index of the token of each sequence that is at position 0 of the cache; -1: nothing is cached
        positions = min(model.block, max(len(tokens) for tokens in sequences) + max_new_tokens)
        self.cache = KeyValueCache(model, len(sequences), positions)

    def next_logits(self) -> Tensor:
        """Return the logits of the token that follows each sequence, [B, vocabulary]."""
        starts = [window_start(len(tokens), self.model.block, self.slide) for tokens in self.sequences]
        moved = [row for row, start in enumerate(starts) if start != self.starts[row]]
        self.starts = starts
        if len(moved) == len(starts):
            return self._read(moved)
        logits = self._step()
        if moved:
            logits[torch.tensor(moved, device=self.device)] = self._read(moved)
        return logits

    def _read(self, rows: list[int]) -> Tensor:
        """Read the whole windows of the sequences numbered `rows` into the cache. Return the logits of the token that follows each of these
        sequences, [len(rows), vocabulary]."""
        windows = [self.sequences[row][self.starts[row] :] for row in rows]
        lengths = torch.tensor([len(window) for window in windows])
        tokens = nn.utils.rnn.pad_sequence([torch.tensor(window) for window in windows], batch_first=True)
        features = self.model.features(tokens.to(self.device), attend=self.cache.read(torch.tensor(rows, device=self.device)))
        last = features[torch.arange(len(rows), device=self.device), (lengths - 1).to(self.device)]
        return self._logits(last)

    def _step(self) -> Tensor:
        """Read the last token of each sequence, whose earlier tokens are in the cache. Return the logits [B, vocabulary]. If the window of
        a sequence has moved, the logits of this sequence are not used, and `_read` overwrites its part of the cache."""
        last = torch.tensor([[tokens[-1]] for tokens in self.sequences], device=self.device)
        ends = [min(len(tokens) - start, self.cache.positions) - 1 for tokens, start in zip(self.sequences, self.starts, strict=True)]
        positions = torch.tensor(ends, device=self.device)
        features = self.model.features(last, positions[:, None], self.cache.step(positions, max(ends) + 1))
        return self._logits(features[:, 0])

    def _logits(self, features: Tensor) -> Tensor:
        """Return the logits of the tokens from `features`. Logits of rows that only pad the embedding are left out, since they are not
        tokens."""
        return self.model.logits(features)[:, : self.model.vocabulary]


class KeyValueCache:
    """Keys and values of the tokens read so far, [layers, B, heads, positions, head width] each, in the precision and on the device of the
    model. `read` and `step` return for each layer a function that computes its attention (`causal_attention.Attend`)."""

    def __init__(self, model: GPT, rows: int, positions: int) -> None:
        size, like = model.size, model.token.weight
        self.positions, self.layers = positions, size.layers
        self.keys, self.values = like.new_zeros(2, size.layers, rows, size.heads, positions, size.width // size.heads)

    def read(self, rows: Tensor) -> Sequence[Attend]:
        """Return the attention function of each layer for reading whole sequences from position 0 on. `rows`: int64 [R], the row of each
        sequence in the cache."""
        return [partial(self._read, layer, rows) for layer in range(self.layers)]

    def step(self, positions: Tensor, end: int) -> Sequence[Attend]:
        """Return the attention function of each layer for reading one more token of every row. `positions`: int64 [B], position of the new
        token of each row; all are below `end`."""
        span = min(-(-end // SPAN) * SPAN, self.positions)
        filled = torch.arange(span, device=positions.device) <= positions[:, None]
        return [partial(self._step, layer, positions, filled[:, None, None]) for layer in range(self.layers)]

    def _read(self, layer: int, rows: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys[layer][rows, :, : key.shape[2]] = key
        self.values[layer][rows, :, : key.shape[2]] = value
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def _step(self, layer: int, positions: Tensor, filled: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention output of one new token per row. `filled`: bool [B, 1, 1, span], True at the positions of tokens read so
        far, the new token included."""
        rows = torch.arange(len(positions), device=positions.device)
        self.keys[layer][rows, :, positions] = key[:, :, 0]
        self.values[layer][rows, :, positions] = value[:, :, 0]
        span = filled.shape[-1]
        return F.scaled_dot_product_attention(query, self.keys[layer, :, :, :span], self.values[layer, :, :, :span], attn_mask=filled)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the probability of each token after temperature, `top_k` and `top_p`, float64 [B, V]; each row sums to 1. `logits`: [B, V].
    The temperature must not be 0."""
    logits = logits.double()
    logits = (logits - logits.amax(1, keepdim=True)) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[1]:
        best = logits.topk(sampling.top_k, dim=1).indices
        logits = torch.full_like(logits, -torch.inf).scatter(1, best, logits.gather(1, best))
    probability = logits.softmax(1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = probability.sort(dim=1, descending=True, stable=True)
        before = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(1)[:, :-1]], 1)
        probability = torch.zeros_like(probability).scatter(1, order, ordered * (before < sampling.top_p))
        probability = probability / probability.sum(1, keepdim=True)
    return probability


def draw(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    """Return a token drawn for each row of `logits` [B, V], int64 [B]. `uniforms`: float64 [B] in [0, 1); the token of a row is the inverse
    of the cumulative distribution at this number. With temperature 0, return the most probable token."""
    if sampling.temperature == 0:
        return logits.argmax(1)
    cumulative = probabilities(logits, sampling).cumsum(1)
    total = cumulative[:, -1:]
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _draw_numbers(seed: int, prompts: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return uniform numbers in [0, 1), one for each new token of each prompt, float64 [prompts, length]. Number n of a prompt is a hash of
    (seed, the prompt, its index among equal prompts, n)."""
    copies: Counter[tuple[int, ...]] = Counter()
    lines = []
    for prompt in prompts:
        tokens = tuple(int(token) for token in prompt)
        lines.append(uniforms(key(seed, GENERATION, key(*tokens), copies[tokens]), np.arange(length)))
        copies[tokens] += 1
    return torch.from_numpy(np.stack(lines))


def _check(model: GPT, prompts: Sequence[Sequence[int]], slide: int) -> None:
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ConfigError("prompt is empty; it must have at least one token, for example a line break")
    unknown = next((token for prompt in prompts for token in prompt if not 0 <= token < model.vocabulary), None)
    if unknown is not None:
        raise ConfigError(f"prompt: token {unknown} is not one of the model's {model.vocabulary}; use the tokenizer of its run")
    if not 1 <= slide <= model.block:
        raise ConfigError(f"slide is {slide}; it must be from 1 to {model.block}, the model's block")
