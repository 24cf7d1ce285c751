"""Compare a folder of transformers with the model that it was written from. The folder is read by this program, and by transformers if it
is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from linnaeus.errors import ConfigError, counted, one_line
from linnaeus.workloads.language.model.gpt import GPT
from linnaeus.workloads.language.tokenizers import BPETokenizer
from linnaeus.workloads.language.trained.language_model import LanguageModel

LIMIT = 1e-5  # largest difference of a logit that rounding can cause, relative to the largest logit
SAMPLE = 2000  # number of tokens whose text is compared


def check_reading(model: LanguageModel, again: LanguageModel) -> None:
    """Raise `ConfigError` if `again`, the model read from the folder, differs from `model` in any bit of the weights or in the meaning of
    the tokens."""
    own, read = model.network.state_dict(), again.network.state_dict()
    zero_biases = {name for name, value in own.items() if name.endswith(".bias") and name not in read and not value.any()}
    same = own.keys() - zero_biases == read.keys() and all(
        own[name].dtype == read[name].dtype and torch.equal(own[name], read[name]) for name in read
    )
    if not same or _meaning(model) != _meaning(again):
        raise ConfigError("OUT: the folder differs from the run when it is read again; the disk may be damaged")


def _meaning(model: LanguageModel) -> dict[str, Any]:
    """Return the part of a model's tokenizer that determines the tokens of a text. Equal results mean equal tokens."""
    if isinstance(model.tokenizer, BPETokenizer):
        return model.tokenizer.meaning() | {"kind": "bpe"}
    return model.tokenizer.to_dict()


def check_transformers(model: LanguageModel, folder: Path) -> list[str]:
    """Compare the logits and tokens of `model` with the logits and tokens that transformers computes from `folder`. Return a line about the
    result, or a line about installing transformers if it is missing.

    Raise `ConfigError` if the logits or the tokens differ."""
    if find_spec("transformers") is None:
        return ["not compared with transformers, which is not installed: pip install transformers"]
    import transformers

    try:
        network, tokenizer = _loaded(transformers, folder)
    except Exception as error:  # transformers raises exceptions of many types
        raise ConfigError(f"OUT: transformers {transformers.__version__} cannot load the folder ({one_line(error)})") from None
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.network.vocabulary, (1, model.network.block), generator=generator)
    with torch.inference_mode():
        own, theirs = model.network({"input": tokens})["logits"], network(tokens).logits
        with _float32_angles(model.network):
            expected = model.network({"input": tokens})["logits"]
    if own.shape != theirs.shape or own.dtype != theirs.dtype:
        raise ConfigError(f"OUT: transformers computes logits {list(theirs.shape)} in {theirs.dtype}, not {list(own.shape)} in {own.dtype}")
    wrong, difference, largest = (float(each.abs().max()) for each in (theirs - expected, theirs - own, own))
    if not wrong <= LIMIT * max(1.0, largest):
        raise ConfigError(f"OUT: logits of transformers {transformers.__version__} differ by up to {wrong:.2g}; nothing was written")
    size = _check_tokens(model, tokenizer, torch.randint(model.tokenizer.size, (SAMPLE,), generator=generator).tolist())
    equal = "equal to the bit" if difference == 0 else f"differ by up to {difference:.1g}, with logits up to {largest:.2g}"
    version, tokens_equal = transformers.__version__, f"a text of {size} characters has equal tokens"
    return [f"transformers {version}: the logits of {counted(tokens.numel(), 'token')} {equal}; {tokens_equal}"]


@contextmanager
def _float32_angles(network: GPT) -> Iterator[None]:
    """Return a context manager in which a network with rotary positions uses angles computed in float32, as transformers does. This program
    normally computes the angles in float64.

    The difference grows with the position (6e-5 radians at position 1,000) and would otherwise hide an error."""
    exact = network.rotary
    if exact is not None:
        assert network.rotary_base is not None
        channels = 2 * exact.shape[2]
        frequencies = 1.0 / network.rotary_base ** (torch.arange(0, channels, 2, dtype=torch.float32) / channels)
        angles = torch.arange(exact.shape[1], dtype=torch.float32)[:, None] * frequencies
        network.rotary = torch.stack([angles.cos(), angles.sin()]).to(exact.dtype)
    try:
        yield
    finally:
        network.rotary = exact


def _loaded(transformers: Any, folder: Path) -> tuple[Any, Any]:
    """Return the network in evaluation mode and the tokenizer, as transformers loads them from `folder`. Messages of transformers are
    switched off."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, torch_dtype="auto")
    return network.eval(), transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _check_tokens(model: LanguageModel, tokenizer: Any, tokens: list[int]) -> int:
    """Compare the tokenizer of transformers, `tokenizer`, with the tokenizer of `model`, on the text to which the model decodes `tokens`.

    Return the number of characters of the text. Raise `ConfigError` if the tokenizers encode the text to different tokens, if transformers
    decodes its tokens to another text, or if the end tokens differ."""
    text = model.tokenizer.decode(model.encode(model.tokenizer.decode(tokens)).tolist())  # normalized, if the tokenizer normalizes texts
    own, theirs = model.encode(text).tolist(), tokenizer(text, add_special_tokens=False)["input_ids"]
    if own != theirs or tokenizer.decode(theirs) != text or tokenizer.eos_token_id != model.tokenizer.end:
        raise ConfigError("OUT: the tokenizer of transformers gives other tokens, or another text; nothing was written")
    return len(text)
