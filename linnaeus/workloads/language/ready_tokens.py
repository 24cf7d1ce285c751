"""Tokens made elsewhere: nanoGPT's folder of `train.bin`, `val.bin` and, for characters, `meta.pkl`.

The files are little-endian uint16 without a header. `meta.pkl` is a pickle, and a pickle can run any program: it is read by a loader
that makes plain containers, texts and numbers and refuses everything else. Without it the ids are taken for GPT-2's, or for those of
`data.tokenizer_file`.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.files import text_digest
from linnaeus.workloads.language.config import TokensConfig
from linnaeus.workloads.language.store import SPLITS, TokenArray, TokenStore
from linnaeus.workloads.language.tokenizers import CharacterTokenizer, Tokenizer, identity, load_tokenizer

DTYPE = "<u2"
GPT2_TOKENS = 50257
META = "meta.pkl"


class PlainUnpickler(pickle.Unpickler):
    """Loads dicts, lists, tuples, sets, texts, bytes and numbers; nothing that has to be imported or called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no plain value")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to what is not in it")


def load_plain_pickle(path: Path) -> Any:
    """What a pickle of plain values holds. Raises ConfigError for any other, before anything of it is run."""
    try:
        return PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None
    except Exception as error:  # a broken pickle may raise anything
        raise ConfigError(f"data.path: {path} is refused: {error or type(error).__name__}; only plain values are read") from None


def survey_tokens(config: TokensConfig) -> dict[str, Any]:
    """Check the files, on one process: what `open_tokens` makes a store of on every one."""
    folder = Path(config.path).expanduser()
    for file in SPLITS.values():
        if not (folder / file).is_file():
            raise ConfigError(f"data.path: {folder} has no {file}; data=tokens takes a folder with {' and '.join(SPLITS.values())}")
    tokenizer = read_tokenizer(folder, config)
    size = vocabulary_size(tokenizer, config)
    checked = {split: check_tokens(folder / file, DTYPE, size) for split, file in SPLITS.items()}
    return {"size": size, "splits": {split: {"tokens": count, "sha256": digest} for split, (count, digest) in checked.items()}}


def open_tokens(config: TokensConfig, surveyed: dict[str, Any]) -> TokenStore:
    folder, splits = Path(config.path).expanduser(), surveyed["splits"]
    tokenizer = read_tokenizer(folder, config)
    name = identity(tokenizer) if tokenizer is not None else f"unknown-{surveyed['size']}"
    unknown = ("bits per byte: not known, for data.path has no meta.pkl and data.tokenizer_file is null",) if tokenizer is None else ()
    counts = f"{splits['train']['tokens']:,} tokens to train on, {splits['validation']['tokens']:,} tokens to validate"
    arrays = {split: TokenArray(folder / file, DTYPE, splits[split]["tokens"]) for split, file in SPLITS.items()}
    return TokenStore(
        train=arrays["train"],
        validation=arrays["validation"],
        size=surveyed["size"],
        tokenizer=tokenizer,
        lengths=None if tokenizer is None else tokenizer.byte_lengths(),
        facts={"path": str(config.path), "identity": name, "dtype": DTYPE, "splits": splits},
        fingerprint=text_digest("".join([name, *(splits[split]["sha256"] for split in SPLITS)]))[:32],
        notes=(f"tokens: {config.path}: {name}: {counts}", *unknown),
    )


def read_tokenizer(folder: Path, config: TokensConfig) -> Tokenizer | None:
    """Of meta.pkl, or of the file that the configuration gives; None where there is neither."""
    path = folder / META
    if not path.exists():
        return None if config.tokenizer_file is None else load_tokenizer(config.tokenizer_file, "gpt2", "data.tokenizer_file")
    if config.tokenizer_file is not None:
        raise ConfigError(f"data.tokenizer_file has no effect: {path} says what the tokens are; leave one of them out")
    meta = load_plain_pickle(path)
    letters = meta.get("itos") if isinstance(meta, dict) else None
    size = len(letters) if isinstance(letters, dict) else 0
    alphabet: list[Any] = [letters.get(i) for i in range(size)] if isinstance(letters, dict) else []
    if not size or not all(isinstance(letter, str) and len(letter) == 1 for letter in alphabet) or len(set(alphabet)) < size:
        raise ConfigError(f"data.path: {path} has no itos that gives each id a character of its own; remove it, or make it again")
    lone = next((i for i, letter in enumerate(alphabet) if "\ud800" <= letter <= "\udfff"), None)
    if lone is not None:
        raise ConfigError(f"data.path: {path} gives id {lone} half a character, {alphabet[lone]!a}, which no text has; make it again")
    if meta.get("vocab_size", size) != size:
        raise ConfigError(f"data.path: {path} has vocab_size {meta['vocab_size']} and {size} characters; make it again")
    return CharacterTokenizer("".join(alphabet), with_end=False)


def vocabulary_size(tokenizer: Tokenizer | None, config: TokensConfig) -> int:
    if tokenizer is None:
        return GPT2_TOKENS if config.vocabulary is None else config.vocabulary
    if config.vocabulary is not None:
        raise ConfigError(f"data.vocabulary={config.vocabulary} has no effect: the tokens are those of {identity(tokenizer)}; leave it out")
    return tokenizer.size


def check_tokens(path: Path, dtype: str, size: int) -> tuple[int, str]:
    """(number of tokens, SHA-256) of a file of tokens. Raises ConfigError for what is no such file, or has ids of another vocabulary."""
    width, digest, count = np.dtype(dtype).itemsize, hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while content := file.read(1 << 24):
                digest.update(content)
                tokens = np.frombuffer(content[: len(content) // width * width], dtype)
                wrong = np.flatnonzero(tokens >= size)
                if len(wrong):
                    where = count // width + wrong[0]
                    raise ConfigError(f"data.path: {path} has token {tokens[wrong[0]]} at {where}, and the vocabulary has {size}")
                count += len(content)
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None
    if count % width:
        raise ConfigError(f"data.path: {path} has {count} bytes, which is no whole number of tokens of {width} bytes")
    return count // width, digest.hexdigest()
