"""Tokens made by another program, in nanoGPT's layout: a folder with `train.bin`, `val.bin` and, for characters, `meta.pkl`.

The .bin files are little-endian uint16 without a header. A pickle can run any program when it is loaded, so `meta.pkl` is read by a loader
that accepts containers, strings and numbers only. Without `meta.pkl` the ids are those of `data.tokenizer_file`, or else GPT-2's.
"""

import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

from linnaeus.errors import ConfigError
from linnaeus.files import file_digest
from linnaeus.workloads.language.config import TokensConfig
from linnaeus.workloads.language.token_store import SPLITS, TokenArray, TokenStore
from linnaeus.workloads.language.tokenizers import CharacterTokenizer, Tokenizer, identity, load_tokenizer

DTYPE = "<u2"


class PlainUnpickler(pickle.Unpickler):
    """An unpickler of dicts, lists, tuples, sets, strings, bytes and numbers. It refuses anything that is imported or called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which is not a plain value")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to an object outside the file")


def load_plain_pickle(path: Path) -> Any:
    """Return the content of a pickle of plain values. Raise `ConfigError` for any other pickle, before any of its code runs."""
    try:
        return PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None
    except Exception as error:  # a damaged pickle can raise any exception
        raise ConfigError(f"data.path: {path} is refused: {error or type(error).__name__}; it must contain plain values only") from None


def check_token_files(config: TokensConfig) -> dict[str, Any]:
    """Read and check the files, on one process. Return the content of dataset.json, which every process needs to open them."""
    folder = Path(config.path).expanduser()
    for file in SPLITS.values():
        if not (folder / file).is_file():
            raise ConfigError(f"data.path: {folder} has no {file}; data=tokens needs a folder with {' and '.join(SPLITS.values())}")
    tokenizer = read_tokenizer(folder, config)
    size = vocabulary_size(tokenizer, config)
    name = identity(tokenizer) if tokenizer is not None else f"unknown-{size}"
    splits = {split: check_token_file(folder / file, size) for split, file in SPLITS.items()}
    return {"path": str(config.path), "identity": name, "dtype": DTYPE, "splits": splits}


def open_token_files(config: TokensConfig, facts: dict[str, Any]) -> TokenStore:
    """Return the token store of files that `check_token_files` has checked."""
    folder = Path(config.path).expanduser()
    tokenizer = read_tokenizer(folder, config)
    unknown = ["bits per byte: unknown, because data.path has no meta.pkl and data.tokenizer_file is null"] if tokenizer is None else []
    return TokenStore(folder, facts, tokenizer, vocabulary_size(tokenizer, config), [f"text: token files in {config.path}", *unknown])


def read_tokenizer(folder: Path, config: TokensConfig) -> Tokenizer | None:
    """Return the tokenizer of `meta.pkl` or of `data.tokenizer_file`; None: there is neither."""
    path = folder / "meta.pkl"
    if not path.exists():
        return None if config.tokenizer_file is None else load_tokenizer(config.tokenizer_file, "gpt2", "data.tokenizer_file")
    if config.tokenizer_file is not None:
        raise ConfigError(f"data.tokenizer_file has no effect: {path} defines the tokens; remove one of them")
    meta = load_plain_pickle(path)
    letters = meta.get("itos") if isinstance(meta, dict) else None
    size = len(letters) if isinstance(letters, dict) else 0
    alphabet: list[Any] = [letters.get(i) for i in range(size)] if isinstance(letters, dict) else []
    if not size or not all(isinstance(letter, str) and len(letter) == 1 for letter in alphabet) or len(set(alphabet)) < size:
        raise ConfigError(f"data.path: {path} has no itos that maps each id to a different character; remove the file or make it again")
    surrogate = next((i for i, letter in enumerate(alphabet) if "\ud800" <= letter <= "\udfff"), None)
    if surrogate is not None:
        raise ConfigError(f"data.path: {path} maps id {surrogate} to {alphabet[surrogate]!a}, which is not a character; make it again")
    if meta.get("vocab_size", size) != size:
        raise ConfigError(f"data.path: {path} has vocab_size {meta['vocab_size']} and {size} characters; make it again")
    return CharacterTokenizer("".join(alphabet), with_end=False)


def vocabulary_size(tokenizer: Tokenizer | None, config: TokensConfig) -> int:
    """Return the number of tokens: the tokenizer's, else `data.vocabulary`, else GPT-2's 50257."""
    if tokenizer is None:
        return 50257 if config.vocabulary is None else config.vocabulary
    if config.vocabulary is not None:
        raise ConfigError(f"data.vocabulary={config.vocabulary} has no effect: the tokenizer is {identity(tokenizer)}; remove it")
    return tokenizer.size


def check_token_file(path: Path, size: int) -> dict[str, Any]:
    """Return the number of tokens and the SHA-256 of a file. Raise `ConfigError` if it has ids of `size` or above, or half a token at its
    end."""
    length = path.stat().st_size
    if length % 2:
        raise ConfigError(f"data.path: {path} has {length} bytes, which is not a whole number of tokens of 2 bytes")
    try:
        tokens, digest = TokenArray(path, DTYPE, length // 2).tokens, file_digest(path)
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None
    largest = int(tokens.argmax()) if len(tokens) else 0
    if len(tokens) and tokens[largest] >= size:
        raise ConfigError(f"data.path: {path} has token {tokens[largest]} at {largest}, but the vocabulary size is {size}")
    return {"tokens": len(tokens), "sha256": digest}
