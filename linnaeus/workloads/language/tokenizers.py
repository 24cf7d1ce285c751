"""Tokenizers: a text to token ids and back. Characters, bytes, and byte-pair encoding (BPE: GPT-2's own, or one trained on the text).

A tokenizer knows how many bytes of UTF-8 each token stands for, which makes losses of different tokenizers comparable as bits per byte.
The end marker, a token that follows a document, stands for none. `identity` is a hash of everything that decides what an id means: it
goes into token stores and run directories, and tells whether tokens and a model belong together. BPE is the `tokenizers` library's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from linnaeus.errors import ConfigError

END = "<|endoftext|>"  # GPT-2's end marker, and that of a BPE trained here
AT_ONCE = 1 << 22  # characters encoded at once


class Tokenizer(Protocol):
    """Ids are below `size`. `end` is the id of the end marker; None: there is none."""

    kind: str
    size: int
    end: int | None

    def encode(self, text: str) -> np.ndarray:
        """int64 [N] ids. Raises ConfigError for what has no id."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text; an end marker is nothing, and bytes that are no UTF-8 become U+FFFD."""
        ...

    def byte_lengths(self) -> np.ndarray:
        """int64 [size]: bytes of UTF-8 that each token stands for, 0 for the end marker."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `tokenizer_from` makes the same tokenizer of."""
        ...


def identity(tokenizer: Tokenizer) -> str:
    """Kind, size and a hash of what every id means, such as `character-65-5d0f4a6e21b7`."""
    meaning = tokenizer.meaning() if isinstance(tokenizer, BPETokenizer) else tokenizer.to_dict()
    content = json.dumps(meaning, sort_keys=True, ensure_ascii=True)
    return f"{tokenizer.kind}-{tokenizer.size}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


class CharacterTokenizer:
    """One token per character of an alphabet, in its order."""

    kind = "character"

    def __init__(self, alphabet: str, with_end: bool) -> None:
        self.alphabet = alphabet
        self.end = len(alphabet) if with_end else None
        self.size = len(alphabet) + with_end
        codes = np.frombuffer(alphabet.encode("utf-32-le"), dtype="<u4")
        self._ids = np.full(int(codes.max(initial=0)) + 1, -1, dtype=np.int64)  # by code point: at most 1,114,112
        self._ids[codes] = np.arange(len(codes))

    def encode(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        ids = self._ids[np.minimum(codes, len(self._ids) - 1)]
        unknown = np.flatnonzero((ids < 0) | (codes >= len(self._ids)))
        if len(unknown):
            raise ConfigError(f"the character {text[unknown[0]]!r} at character {unknown[0]} has no token: the alphabet has {self.size}")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.alphabet[i] for i in ids if i != self.end)

    def byte_lengths(self) -> np.ndarray:
        lengths = [len(character.encode()) for character in self.alphabet]
        return np.array(lengths + [0] * (self.end is not None), dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "alphabet": self.alphabet, "end": self.end is not None}


class ByteTokenizer:
    """One token per byte of UTF-8."""

    kind = "byte"

    def __init__(self, with_end: bool) -> None:
        self.end = 256 if with_end else None
        self.size = 256 + with_end

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i != self.end).decode(errors="replace")

    def byte_lengths(self) -> np.ndarray:
        return (np.arange(self.size) < 256).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "end": self.end is not None}


class BPETokenizer:
    """Byte-level BPE of the `tokenizers` library from its own JSON; `kind` is bpe or gpt2. What looks like the end marker in a text is
    text."""

    def __init__(self, content: str, kind: str) -> None:
        """Raises ValueError for another kind of tokenizer, and for one that changes a text before it is cut."""
        self.content, self.kind = content, kind
        self._bpe = _library().Tokenizer.from_str(content)
        self._parts = json.loads(self._bpe.to_str())
        _check_byte_level(self._parts)
        self._bpe.encode_special_tokens = True
        self._bpe.no_truncation()
        self._bpe.no_padding()
        self.size = 1 + max(self._bpe.get_vocab(with_added_tokens=True).values(), default=-1)  # there may be ids that no token has
        self.end = cast("int | None", self._bpe.token_to_id(END))

    def encode(self, text: str) -> np.ndarray:
        pieces = list(_pieces(text, AT_ONCE))
        encoded = self._bpe.encode_batch_fast(pieces, add_special_tokens=False)
        return np.concatenate([np.zeros(0, np.int64), *(np.array(piece.ids, dtype=np.int64) for piece in encoded)])

    def decode(self, ids: Sequence[int]) -> str:
        return self._bpe.decode([int(i) for i in ids if i != self.end], skip_special_tokens=False)

    @cached_property
    def _lengths(self) -> np.ndarray:
        """A byte-level token is written with one character for each of its bytes."""
        lengths = np.zeros(self.size, dtype=np.int64)
        for token, number in self._bpe.get_vocab(with_added_tokens=True).items():
            lengths[number] = len(token)
        for number, added in self._bpe.get_added_tokens_decoder().items():
            lengths[number] = len(added.content.encode())
        if self.end is not None:
            lengths[self.end] = 0
        return lengths

    def byte_lengths(self) -> np.ndarray:
        return self._lengths

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "bpe": json.loads(self.content)}

    def meaning(self) -> dict[str, Any]:
        """What decides an id, however the file tells it: GPT-2's vocabulary is the same from vocab.json as from tokenizer.json."""
        cut = {name: value for name, value in self._parts["pre_tokenizer"].items() if name != "trim_offsets"}
        vocabulary = self._bpe.get_vocab(with_added_tokens=True)
        return {"kind": self.kind, "vocabulary": vocabulary, "merges": self._parts["model"]["merges"], "cut": cut}


def _check_byte_level(parts: dict[str, Any]) -> None:
    """`parts`: the JSON of a tokenizer. What is not seen here is found when tokens are counted in bytes; see `store.py`."""
    if parts["model"]["type"] != "BPE":
        raise ValueError(f"it is {parts['model']['type']}, not byte-level BPE")
    for name in ("pre_tokenizer", "decoder"):
        if '"ByteLevel"' not in json.dumps(parts[name]):
            raise ValueError(f"its {name} is not byte-level: text would not come back as it was")
    if parts["normalizer"] is not None:
        raise ValueError("it has a normalizer, which changes the text before it is cut")


def _pieces(text: str, size: int) -> Iterator[str]:
    """`text` cut where no byte-level BPE joins what it parts: behind a line break that stands between two characters that are no white
    space. Pieces are about `size` characters; a text without such a place is not cut."""
    start = 0
    while len(text) - start > size:
        cut = start + size
        while (cut := text.find("\n", cut)) >= 0 and not _cuttable(text, cut):
            cut += 1
        if cut < 0:
            break
        yield text[start : cut + 1]
        start = cut + 1
    if start < len(text):
        yield text[start:]


def _cuttable(text: str, line_break: int) -> bool:
    around = text[line_break - 1 : line_break] + text[line_break + 1 : line_break + 2]
    return len(around) == 2 and not around[0].isspace() and not around[1].isspace()


def tokenizer_from(content: dict[str, Any]) -> Tokenizer:
    """The tokenizer of `to_dict`. Raises ValueError or KeyError for anything else."""
    kind = content["kind"]
    if kind == "character":
        return CharacterTokenizer(content["alphabet"], content["end"])
    if kind == "byte":
        return ByteTokenizer(content["end"])
    if kind in ("bpe", "gpt2"):
        return BPETokenizer(json.dumps(content["bpe"], ensure_ascii=False), kind)
    raise ValueError(f"a tokenizer of kind {kind!r} is not known")


def load_tokenizer(path: Path | str, kind: str, key: str) -> Tokenizer:
    """The tokenizer of a file: `tokenizer.json` of a run or of the `tokenizers` library, or GPT-2's folder with vocab.json and merges.txt.
    Raises ConfigError naming the configuration's `key` where it cannot be read, or is not of the `kind` wanted."""
    path = Path(path)
    if path.is_dir() and not (path / "tokenizer.json").exists():
        return _from_merges(path, kind, key)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = tokenizer_from(content if "kind" in content else {"kind": kind, "bpe": content})
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error.strerror}); give a tokenizer.json, or GPT-2's folder") from None
    except ConfigError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigError(f"{key}: {path} is no tokenizer ({error}); give a tokenizer.json, or GPT-2's folder") from None
    if found.kind != kind:
        raise ConfigError(f"{key}: {path} holds the tokenizer {identity(found)}, not one of data.tokenizer={kind}")
    return found


def _from_merges(folder: Path, kind: str, key: str) -> Tokenizer:
    if kind != "gpt2" or not ((folder / "vocab.json").exists() and (folder / "merges.txt").exists()):
        raise ConfigError(f"{key}: {folder} has no tokenizer.json{', nor vocab.json and merges.txt' * (kind == 'gpt2')}")
    library = _library()
    try:
        bpe = library.Tokenizer(library.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigError(f"{key}: the BPE of {folder} cannot be read ({error})") from None
    return BPETokenizer(_byte_level(bpe).to_str(), kind)


def fetch_gpt2() -> Tokenizer:
    """GPT-2's BPE of 50,257 tokens, from the cache of the Hugging Face hub or from the hub itself. Raises ConfigError where neither has
    it."""
    _library()
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download("openai-community/gpt2", "tokenizer.json")
    except (OSError, ValueError) as error:  # the hub's own errors are OSErrors
        raise ConfigError(
            f"data.tokenizer=gpt2: GPT-2's vocabulary is not here and cannot be fetched ({type(error).__name__}); give the folder with its "
            "vocab.json and merges.txt as data.tokenizer_file, or train one: data.tokenizer=bpe data.vocabulary=4096"
        ) from None
    return load_tokenizer(path, "gpt2", "data.tokenizer")


def train_bpe(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE of `vocabulary` tokens, the end marker among them, that makes `texts` short. Every text can be encoded."""
    library = _library()
    bpe = _byte_level(library.Tokenizer(library.models.BPE()))
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=sorted(alphabet), show_progress=False
    )
    bpe.train_from_iterator((piece for text in texts for piece in _pieces(text, AT_ONCE)), trainer)
    found = BPETokenizer(bpe.to_str(), "bpe")
    if found.size < vocabulary:
        raise ConfigError(f"data.vocabulary={vocabulary}: the text has pairs for {found.size} tokens only; ask for no more than that")
    return found


def _byte_level(bpe: Any) -> Any:
    """Cut into words and written in bytes as GPT-2 does."""
    library = _library()
    bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = library.decoders.ByteLevel()
    return bpe


def library_version() -> str:
    return _library().__version__


def _library() -> Any:
    try:
        import tokenizers  # ours is linnaeus.workloads.language.tokenizers
    except ModuleNotFoundError:
        raise ConfigError("data.tokenizer: BPE takes the tokenizers library; install it with pip install 'linnaeus[bpe]'") from None
    return tokenizers
