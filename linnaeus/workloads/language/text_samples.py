"""Save examples of a trained language model for report.html: validation/step-N/texts.json.

continuations    validation text, its continuation by the model, and the text that follows in the data
windows          validation text token by token, each with its loss in nats
unigram_loss     loss of predicting every token with its frequency in the training text, in nats per token
constant_top1    share of tokens that are the most frequent token of the training text
bits_per_byte    `unigram_loss` in bits per byte, if the bytes of the tokens are known
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linnaeus.errors import ConfigError
from linnaeus.files import to_json, write_atomic
from linnaeus.workloads.language.generation import Sampling, generate
from linnaeus.workloads.language.model.gpt import GPT
from linnaeus.workloads.language.token_store import TokenStore
from linnaeus.workloads.language.unigram import MOST_TOKENS

FILE = "texts.json"
TEXTS, PROMPT, NEW, SHOWN = 4, 48, 160, 256  # texts, and tokens of a prompt, of a continuation and of a text with losses
SAMPLING = Sampling(temperature=0.8, top_k=200)


def save_texts(folder: Path, store: TokenStore, model: GPT, baselines: Mapping[str, float]) -> None:
    """Write texts.json to `folder`. `baselines`: result of `unigram`.

    Texts are left out if the store has no tokenizer, so that the meaning of the tokens is unknown; continuations also if the model computes
    logits that are not finite."""
    validation = store.validation.read(np.arange(min(store.validation.size, MOST_TOKENS)))
    content: dict[str, Any] = dict(baselines)
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


@torch.inference_mode()
def _losses(model: GPT, tokens: np.ndarray, decode: Any) -> list[tuple[str, float]]:
    """Return (text, loss in nats) of each of `tokens` [N] after the first."""
    device, training = model.token.weight.device, model.training
    both = torch.from_numpy(tokens).to(device).unsqueeze(0)
    model.eval()
    losses = model({"input": both[:, :-1], "target": both[:, 1:]})["losses"][0].float().tolist()
    model.train(training)
    return [(decode([token]), round(loss, 3)) for token, loss in zip(tokens[1:].tolist(), losses, strict=True)]
