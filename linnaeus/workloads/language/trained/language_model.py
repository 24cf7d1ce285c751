"""`LanguageModel`: a trained network with its tokenizer, which continues texts and computes their likelihood.

Everything is computed in the precision of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.language.generation import Sampling, generate
from linnaeus.workloads.language.model.gpt import GPT
from linnaeus.workloads.language.tokenizers import Tokenizer
from linnaeus.workloads.language.trained.likelihood import Likelihood, TextScore, log_likelihoods, score_tokens

LOGITS = 2**26  # number of logits in a batch whose size is not given: 256 MB in float32
MOST_ROWS = 64
MOST_TOKENS = 1_000_000  # of a continuation: 8 MB of random numbers


class Continuation(NamedTuple):
    """Generated text without its prompt, and the number of its tokens."""

    text: str
    tokens: int


class LanguageModel:
    """Trained network in evaluation mode, with its tokenizer. `source`: path of the file with the weights. `notes`: messages for the
    user."""

    def __init__(self, network: GPT, tokenizer: Tokenizer, source: str, notes: Sequence[str] = (), batch: int | None = None) -> None:
        """`batch`: number of text windows that are scored at once; None: at most `MOST_ROWS`, with at most `LOGITS` logits in total.

        If `batch` is the batch size of the run's validation, scores equal the validation results in every digit."""
        self.network, self.tokenizer, self.source, self.notes = network.eval(), tokenizer, source, list(notes)
        rows = LOGITS // (network.block * len(network.token.weight))
        self.batch = batch or max(1, min(MOST_ROWS, rows))

    def to(self, device: str) -> LanguageModel:
        """Move the network to `device` and return this `LanguageModel`. Raise `ConfigError` if the machine does not have the device."""
        try:
            self.network.to(torch.device(device))
        except (RuntimeError, AssertionError):
            raise ConfigError(f"device is {device!r}, which this machine does not have; use cpu or cuda") from None
        return self

    # -- generation ------------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[str] = "",
        *,
        tokens: int = 500,
        temperature: float = 0.8,
        top_k: int | None = 200,
        top_p: float | None = None,
        stop: Sequence[str] = (),
        seed: int = 0,
        slide: int | None = None,
    ) -> str | list[str]:
        """Return the text that continues a prompt, without the prompt; for a list of prompts, return a list.

        Equal arguments give equal text; a prompt that is repeated in the list is continued in several ways. The prompt "" starts a
        document. At most `tokens` tokens are drawn, each from the `top_k` most probable tokens and from the fewest tokens with total
        probability `top_p`; None: no such limit. `temperature` divides the logits; 0 selects the most probable token. The text ends before
        the first occurrence of a text in `stop`. `slide`: number of tokens dropped at once when the context is full; by default a quarter
        of the context. Raise `ConfigError` for an impossible value."""
        single = isinstance(prompt, str)
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        stops = [stop] if isinstance(stop, str) else list(stop)
        found = [new.text for new in self.continuations(prompts, tokens, Sampling(temperature, top_k, top_p), stops, seed, slide)]
        return found[0] if single else found

    def continuations(
        self,
        prompts: Sequence[str],
        tokens: int,
        sampling: Sampling,
        stops: Sequence[str] = (),
        seed: int = 0,
        slide: int | None = None,
    ) -> list[Continuation]:
        """Return the continuation of each prompt. `stops`: texts before which a continuation ends. The other arguments are as in
        `generate`.

        Raise `ConfigError` if `tokens` is less than 1 or above `MOST_TOKENS`, and for an empty text in `stops`."""
        if not 1 <= tokens <= MOST_TOKENS:
            raise ConfigError(f"tokens is {tokens}; it must be from 1 to {MOST_TOKENS}")
        if "" in stops:
            raise ConfigError("stop is empty; it must have at least one character")
        end, stop_when = self.tokenizer.end, stop_finder(self.tokenizer, stops)
        encoded = [encode_prompt(self.tokenizer, text) for text in prompts]
        new = generate(self.network, encoded, tokens, sampling, seed, [] if end is None else [end], stop_when, slide)
        return [Continuation(text_of(self.tokenizer, row, stops), len(row)) for row in new]

    # -- likelihood ------------------------------------------------------------------------------------------------------------

    def loss(self, text: str) -> float:
        """Return the mean negative log-likelihood of the tokens of a text, in nats per token. See `score`."""
        return self.score(text).loss

    def score(self, text: str) -> TextScore:
        """Return loss, perplexity, bits per byte and top-1 accuracy of a text, as a validation pass computes them.

        The text is read in windows of `network.block` tokens from its first token; each token but the first is predicted once. Raise
        `ConfigError` for a text of fewer than two tokens, and for a character that the tokenizer does not have."""
        return self.score_tokens(self.encode(text))

    def score_tokens(self, tokens: np.ndarray, show: Callable[[int], None] | None = None) -> TextScore:
        """Return the score of a text from its tokens, [N]. `show` is called after each batch with the number of windows in the batch."""
        return score_tokens(self.network, tokens, self.tokenizer.byte_lengths(), self.batch, show)

    def log_likelihood(self, context: str, continuation: str) -> float:
        """Return the log-probability of a continuation, given the context before it: the sum over its tokens, in nats. See
        `log_likelihoods`."""
        return self.log_likelihoods([(context, continuation)])[0].log_likelihood

    def log_likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Return the log-likelihood of the continuation of each pair (context, continuation).

        Context and continuation are tokenized together, so one token may contain the end of the context and the start of the continuation.
        Scoring begins at the first token that differs from the tokens of the context alone. An empty context starts a document. If context
        and continuation together are longer than `network.block`, only the last tokens of the context are read. Raise `ConfigError` for an
        empty continuation, and in the same cases as `score`."""
        return log_likelihoods(self.network, [self._split(*pair) for pair in pairs], self.batch)

    def _split(self, context: str, continuation: str) -> tuple[list[int], int]:
        """Return the tokens of context and continuation together, and the index of the first token to score.

        Raise `ConfigError` for an empty continuation."""
        if not continuation:
            raise ConfigError("continuation is empty; it must have at least one character")
        alone, whole = self.encode(context).tolist(), self.encode(context + continuation).tolist()
        shared = next((i for i, (a, b) in enumerate(zip(alone, whole)) if a != b), len(alone))
        start = [] if shared else encode_prompt(self.tokenizer, "")
        return [*start, *whole], len(start) + shared

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of a text, int64 [N]. Raise `ConfigError` for a character that the tokenizer does not have."""
        return _encoded(self.tokenizer, text)


def _encoded(tokenizer: Tokenizer, text: str) -> np.ndarray:
    try:
        return tokenizer.encode(text)
    except UnicodeEncodeError as error:  # of a command line that is not UTF-8, for example
        raise ConfigError(f"the text contains {error.object[error.start]!r}, which is not a character of Unicode") from None


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the tokens of a prompt.

    An empty prompt starts a document: it becomes the end marker, or a line break if the tokenizer has no end marker. Raise `ConfigError`
    for an empty prompt if the tokenizer has neither of these tokens, and for a character that the tokenizer does not have."""
    if not prompt and tokenizer.end is not None:
        return [tokenizer.end]
    if not prompt and "\n" not in getattr(tokenizer, "alphabet", "\n"):
        raise ConfigError("prompt is empty, and this model has no line break to start a text with; give a prompt, or a context")
    try:
        return [int(token) for token in _encoded(tokenizer, prompt or "\n")]
    except ConfigError as error:
        raise ConfigError(f"prompt: {error}") from None


def text_of(tokenizer: Tokenizer, tokens: Sequence[int], stops: Sequence[str]) -> str:
    """Return the text of tokens, cut before the first occurrence of one of `stops`."""
    text = tokenizer.decode(tokens)
    return text[: min([len(text), *(index for stop in stops if (index := text.find(stop)) >= 0)])]


def stop_finder(tokenizer: Tokenizer, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    """Return a function from a list of tokens to True if the newest token completes one of the texts `stops`. Return None if there are no
    stops.

    The function decodes only the newest token and the tokens before it that a stop could contain, so its time does not depend on the number
    of tokens."""
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
