"""Save examples of a trained language model for report.html: validation/step-N/texts.json.

continuations    validation text, its continuation by the model, and the text that follows in the data
windows          validation text token by token, each with its loss in nats
unigram_loss     loss of predicting every token with its frequency in the training text, in nats per token
constant_top1    share of tokens that are the most frequent token of the training text
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linnaeus.errors import ConfigError
from linnaeus.files import to_json, write_atomic
from linnaeus.workloads.language.generation import Sampling, generate
from linnaeus.workloads.language.model.gpt import GPT
from linnaeus.workloads.language.token_store import TokenStore

FILE = "texts.json"
TEXTS, PROMPT, NEW, SHOWN = 4, 48, 160, 256  # texts, and tokens of a prompt, of a continuation and of a text with losses
SAMPLING = Sampling(temperature=0.8, top_k=200)
MOST_TOKENS = 20_000_000  # of a split, for frequencies


def save_texts(folder: Path, store: TokenStore, model: GPT) -> None:
    """Write texts.json to `folder`. Texts are left out if the store has no tokenizer, so that the meaning of the tokens is unknown;
    continuations also if the model computes logits that are not finite."""
    training, validation = (split.read(np.arange(min(split.size, MOST_TOKENS))) for split in (store.train, store.validation))
    content: dict[str, Any] = unigram(training, validation, store.vocabulary_size)
    length, own = min(SHOWN, model.block), min(PROMPT, model.block)
    room = len(validation) - max(length, own) - 1
    if store.tokenizer is not None and room > 0:
        starts = np.linspace(0, room, TEXTS).astype(np.int64).tolist()
        prompts = [validation[start : start + own].tolist() for start in starts]
        decode = store.tokenizer.decode
        with contextlib.suppress(ConfigError):  # logits that are not finite, of a run that has diverged
            found = generate(model, prompts, NEW, SAMPLING)
            content["continuations"] = [
                {"prompt": decode(p), "model": decode(new), "data": decode(validation[s + len(p) : s + len(p) + NEW].tolist())}
                for s, p, new in zip(starts, prompts, found, strict=True)
            ]
        content["windows"] = [_losses(model, validation[s : s + length + 1], decode) for s in starts]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE, to_json(content, None))


def unigram(training: np.ndarray, validation: np.ndarray, vocabulary: int) -> dict[str, float]:
    """Return {"unigram_loss", "constant_top1"}: the results of two predictions that use only the token frequencies of `training`, measured
    on `validation` (see the module).

    training, validation: tokens, int [N]. For the loss, 1 is added to the count of each token, so that no token is impossible."""
    counts = np.bincount(training, minlength=vocabulary)
    occurs = np.bincount(validation, minlength=vocabulary)[: len(counts)] / max(len(validation), 1)
    log_p = np.log((counts + 1) / (counts.sum() + len(counts)))
    return {"unigram_loss": float(-(occurs * log_p).sum()), "constant_top1": float(occurs[counts.argmax()])}


@torch.inference_mode()
def _losses(model: GPT, tokens: np.ndarray, decode: Any) -> list[tuple[str, float]]:
    """Return (text, loss in nats) of each of `tokens` [N] after the first."""
    device, training = model.token.weight.device, model.training
    both = torch.from_numpy(tokens).to(device).unsqueeze(0)
    model.eval()
    losses = model({"input": both[:, :-1], "target": both[:, 1:]})["losses"][0].float().tolist()
    model.train(training)
    return [(decode([token]), round(loss, 3)) for token, loss in zip(tokens[1:].tolist(), losses, strict=True)]
