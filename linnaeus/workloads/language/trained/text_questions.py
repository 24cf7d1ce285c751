"""Questions of `linnaeus edit` to a language model: prompts, which it continues with the most probable tokens."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from linnaeus.errors import ConfigError, quoted
from linnaeus.workloads.language.generation import Sampling, default_slide, window_start
from linnaeus.workloads.language.trained.language_model import MOST_TOKENS, LanguageModel, encode_prompt
from linnaeus.workloads.language.trained.load_language_model import load_model
from linnaeus.workloads.questions import Answer, Question, Questions, refuse_options

TOKENS = 60  # of a continuation, without --tokens
GREEDY = Sampling(0.0, None, None)


def questions(path: Path, options: argparse.Namespace) -> Questions:
    """Return a question for each prompt of `options.inputs`. Without prompts, return one question: how a document begins."""
    refuse_options(options, ("tokens", "tokenizer"), "a language model")
    tokens = TOKENS if options.tokens is None else options.tokens
    if not 0 <= tokens <= MOST_TOKENS:
        raise ConfigError(f"--tokens is {tokens}; it must be from 0 to {MOST_TOKENS}")
    model = load_model(path, checkpoint=options.checkpoint, device=options.device, tokenizer=options.tokenizer)
    names = [repr(text) for text in token_texts(model)]
    asked = [_question(model, prompt, tokens) for prompt in options.inputs or [""]]
    sizes = [(one, len(one.places), len(encode_prompt(model.tokenizer, one.name))) for one in asked]
    cut = [f"the last {read} of {size} tokens of the prompt {quoted(one.name, 30)} are read" for one, read, size in sizes if read < size]
    return Questions(model.network, {"next token": names}, asked, [*model.notes, *cut])


def token_texts(model: LanguageModel) -> list[str]:
    """Return the text of each token of the vocabulary."""
    return [model.tokenizer.decode([token]) for token in range(model.tokenizer.size)]


def _question(model: LanguageModel, prompt: str, tokens: int) -> Question:
    encoded, block = encode_prompt(model.tokenizer, prompt), model.network.block
    encoded = encoded[window_start(len(encoded), block, default_slide(block)) :]  # the tokens that the continuation reads
    device = model.network.token.weight.device

    def ask() -> Answer:
        with torch.inference_mode():
            text = model.continuations([prompt], tokens, GREEDY)[0].text if tokens else ""
            # last, so that a caller that records the module has all positions of the prompt
            logits = model.network({"input": torch.tensor([encoded], device=device)})["logits"][0, -1, : model.tokenizer.size]
        return Answer({"next token": logits.float().softmax(0).cpu().numpy()}, (text,) if tokens else ())

    return Question(prompt, ask, tuple(model.tokenizer.decode([token]) for token in encoded))
