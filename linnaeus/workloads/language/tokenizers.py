"""Tokenizers, which convert text to ids and back: characters, bytes, and byte-pair encoding (BPE: GPT-2's, or one trained on the text).

`byte_lengths` contains the number of UTF-8 bytes of each token, which makes losses of different tokenizers comparable as bits per byte. The
end marker, a token that follows a document, has 0 bytes. `identity` is a hash of everything that determines the meaning of an id. The
identity is stored with tokens and runs, to check that tokens and a model belong together. BPE uses the `tokenizers` library."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.hub import offline_if_unreachable
from linnaeus.workloads.language.text_pieces import recut

END = "<|endoftext|>"  # the end marker of GPT-2 and of every BPE trained here
PIECE_SIZE = 1 << 16  # characters that a BPE encodes at once; one core encodes a piece
MAX_GAPS = 16  # largest allowed ratio of ids to tokens; every id costs a row of the embedding
NFC = {"type": "NFC"}  # the normalizer of GPT-NeoX; few texts are not in this normal form already
ANYWHERE = re.compile("")
NOWHERE = re.compile(r"(?!)")
# The common pre-tokenizers of a byte-level BPE never merge across such a line break; that of GPT-4o merges line breaks and slashes.
AFTER_LINE = re.compile(r"(?<=\S)\n(?=[^\s/])")
BEFORE_WORD = re.compile(r"(?<=\S)\n(?=\S)|(?<=\S)(?= \S)")  # GPT-2's pre-tokenizer never merges across these
UNCUT = re.compile(r"\S*|  +")  # an added token that no boundary cuts; those of GPT-NeoX are runs of spaces


class Tokenizer(Protocol):
    """Tokenizer with ids 0 to `size` - 1. `end` is the id of the end marker; None if the tokenizer has no end marker. `boundary` matches
    where a text may be cut without changing its ids."""

    kind: str
    size: int
    end: int | None
    boundary: re.Pattern[str]

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int64 [N]. Raise `ConfigError` for a character without an id."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, as `encode` does. A BPE uses all cores."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids. End markers are dropped; bytes that are not UTF-8 become U+FFFD."""

    def byte_lengths(self) -> np.ndarray:
        """Return the UTF-8 bytes of each token, int64 [size]; 0 for the end marker."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values from which `tokenizer_from` builds the same tokenizer."""


def identity(tokenizer: Tokenizer) -> str:
    """Return the identity of a tokenizer, such as `character-65-5d0f4a6e21b7`: its kind, its size and a hash of the meaning of all its
    ids."""
    meaning = tokenizer.meaning() if isinstance(tokenizer, BPETokenizer) else tokenizer.to_dict()
    content = json.dumps(meaning, sort_keys=True, ensure_ascii=True)
    return f"{tokenizer.kind}-{tokenizer.size}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


class CharacterTokenizer:
    """Tokenizer with one token per character. Ids follow the order of `alphabet`."""

    kind, boundary = "character", ANYWHERE

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
            raise ConfigError(f"the character {text[unknown[0]]!r} is not one of the tokenizer's {self.size} tokens")
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.alphabet[i] for i in ids if i != self.end)

    def byte_lengths(self) -> np.ndarray:
        lengths = [len(character.encode()) for character in self.alphabet]
        return np.array(lengths + [0] * (self.end is not None), dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "alphabet": self.alphabet, "end": self.end is not None}


class ByteTokenizer:
    """Tokenizer with one token per UTF-8 byte."""

    kind, boundary = "byte", ANYWHERE

    def __init__(self, with_end: bool) -> None:
        self.end = 256 if with_end else None
        self.size = 256 + with_end

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i != self.end).decode(errors="replace")

    def byte_lengths(self) -> np.ndarray:
        return (np.arange(self.size) < 256).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "end": self.end is not None}


class BPETokenizer:
    """Byte-level BPE, built from the JSON of the `tokenizers` library. `kind` is bpe or gpt2. A string in a text that looks like the end
    marker is encoded as ordinary text. `normalizes`: True if a text is encoded in the normal form NFC of Unicode, as by GPT-NeoX; a text in
    another form is then not restored by decoding."""

    def __init__(self, content: str, kind: str) -> None:
        """Raise `ValueError` for a tokenizer that is not a byte-level BPE, that changes the text (a normalizer other than NFC), or whose
        ids have large gaps."""
        self.content, self.kind = content, kind
        self._bpe = tokenizers_library().Tokenizer.from_str(content)
        self._json = json.loads(self._bpe.to_str())
        _check_byte_level(self._json)
        self.boundary = _boundary(self._json)
        self.normalizes = self._json["normalizer"] is not None
        self._bpe.encode_special_tokens = True
        self._bpe.no_truncation()
        self._bpe.no_padding()
        numbers = self._bpe.get_vocab(with_added_tokens=True).values()
        self.size = 1 + max(numbers, default=-1)  # ids may have gaps
        if self.size > MAX_GAPS * len(numbers) + 256:
            raise ValueError(f"its largest id is {self.size - 1}, but it has {len(numbers)} tokens")
        self.end = cast("int | None", self._bpe.token_to_id(END))

    def encode(self, text: str) -> np.ndarray:
        text.encode()  # raise UnicodeEncodeError for a surrogate, as the other tokenizers do; the library raises TypeError
        return np.concatenate([np.zeros(0, np.int64), *self.encode_batch(list(recut([text], self.boundary, PIECE_SIZE)))])

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(encoded.ids, np.int64) for encoded in self._bpe.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._bpe.decode([int(i) for i in ids if i != self.end], skip_special_tokens=False)

    def byte_lengths(self) -> np.ndarray:
        # The string of a byte-level token has one character per byte.
        lengths = np.zeros(self.size, dtype=np.int64)
        for token, number in self._bpe.get_vocab(with_added_tokens=True).items():
            lengths[number] = len(token)
        for number, added in self._bpe.get_added_tokens_decoder().items():
            lengths[number] = len(added.content.encode())
        if self.end is not None:
            lengths[self.end] = 0
        return lengths

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "bpe": json.loads(self.content)}

    def meaning(self) -> dict[str, Any]:
        """Return everything that determines the ids. The result does not depend on the file format: GPT-2's vocab.json with merges.txt
        gives the same result as its tokenizer.json."""
        pre_tokenizer = {name: value for name, value in self._json["pre_tokenizer"].items() if name != "trim_offsets"}
        vocabulary = self._bpe.get_vocab(with_added_tokens=True)
        found = {"kind": self.kind, "vocabulary": vocabulary, "merges": self._json["model"]["merges"], "cut": pre_tokenizer}
        return found | ({"normalizer": self._json["normalizer"]} if self.normalizes else {})


def _check_byte_level(content: dict[str, Any]) -> None:
    """Raise `ValueError` if `content`, the JSON of a tokenizer, does not describe a byte-level BPE that restores a text.

    In addition, `tokenization.py` compares the number of bytes of every training text with the number of bytes of its tokens."""
    if content["model"]["type"] != "BPE":
        raise ValueError(f"it is {content['model']['type']}, not byte-level BPE")
    for name in ("pre_tokenizer", "decoder"):
        if '"ByteLevel"' not in json.dumps(content[name]):
            raise ValueError(f"its {name} is not byte-level, so decoding would not restore the text")
    if '"add_prefix_space": true' in json.dumps(content["pre_tokenizer"]):
        raise ValueError("it adds a blank before a text, so decoding would not restore the text")
    if content["normalizer"] not in (None, NFC):
        raise ValueError("it has a normalizer, which changes the text")


def _boundary(content: dict[str, Any]) -> re.Pattern[str]:
    """Return the pattern that matches where a text may be cut without changing its token ids. `content`: the JSON of a BPE tokenizer."""
    added = [token for token in content["added_tokens"] if not token["special"]]  # a special token in a text is encoded as text
    if any(token["lstrip"] or token["rstrip"] or not UNCUT.fullmatch(token["content"]) for token in added):
        return NOWHERE
    pre_tokenizer = content["pre_tokenizer"]
    if pre_tokenizer["type"] != "ByteLevel":
        return AFTER_LINE
    return BEFORE_WORD if pre_tokenizer.get("use_regex", True) else NOWHERE


def tokenizer_from(content: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer whose `to_dict` returned `content`. Raise `ValueError` or `KeyError` for any other content."""
    kind = content["kind"]
    if kind == "character":
        return CharacterTokenizer(content["alphabet"], content["end"])
    if kind == "byte":
        return ByteTokenizer(content["end"])
    if kind in ("bpe", "gpt2"):
        return BPETokenizer(json.dumps(content["bpe"], ensure_ascii=False), kind)
    raise ValueError(f"its kind {kind!r} is unknown")


def load_tokenizer(path: Path | str, kind: str, key: str) -> Tokenizer:
    """Return the tokenizer of a file or folder: `tokenizer.json` of a run or of the `tokenizers` library, or GPT-2's folder with vocab.json
    and merges.txt. Raise `ConfigError`, naming the configuration key `key`, if the tokenizer cannot be read or is not of `kind`."""
    path = Path(path)
    if path.is_dir() and not (path / "tokenizer.json").exists():
        return _from_merges(path, kind, key)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = tokenizer_from(content if "kind" in content else {"kind": kind, "bpe": content})
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error.strerror}); use a tokenizer.json or GPT-2's folder") from None
    except ConfigError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigError(f"{key}: {path} is not a usable tokenizer ({error}); use a tokenizer.json or GPT-2's folder") from None
    if found.kind != kind:
        raise ConfigError(f"{key}: {path} contains the tokenizer {identity(found)}, but data.tokenizer is {kind}")
    return found


def _from_merges(folder: Path, kind: str, key: str) -> Tokenizer:
    if kind != "gpt2" or not ((folder / "vocab.json").exists() and (folder / "merges.txt").exists()):
        raise ConfigError(f"{key}: {folder} has no tokenizer.json{', nor vocab.json and merges.txt' * (kind == 'gpt2')}")
    library = tokenizers_library()
    try:
        bpe = library.Tokenizer(library.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigError(f"{key}: the BPE of {folder} cannot be read ({error})") from None
    return BPETokenizer(_byte_level(bpe).to_str(), kind)


def fetch_gpt2() -> Tokenizer:
    """Return GPT-2's BPE of 50,257 tokens, from the Hugging Face cache or hub. Raise `ConfigError` if neither is available."""
    tokenizers_library()
    from huggingface_hub import hf_hub_download

    try:
        with offline_if_unreachable():
            path = hf_hub_download("openai-community/gpt2", "tokenizer.json")
    except (OSError, ValueError) as error:  # the hub's own errors are OSErrors
        raise ConfigError(
            f"data.tokenizer=gpt2: GPT-2's vocabulary is not cached and cannot be downloaded ({type(error).__name__}); set "
            "data.tokenizer_file to the folder of its vocab.json and merges.txt, or train one: data.tokenizer=bpe data.vocabulary=4096"
        ) from None
    return load_tokenizer(path, "gpt2", "data.tokenizer")


def train_bpe(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Return a byte-level BPE of `vocabulary` tokens, end marker included, trained on `texts`. The BPE can encode any text. The library
    holds 256 texts in memory at a time, so long texts should be cut at `BEFORE_WORD`. Raise `ConfigError` if the texts have too few pairs
    to merge."""
    library = tokenizers_library()
    bpe = _byte_level(library.Tokenizer(library.models.BPE()))
    letters = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    trainer = library.trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END], initial_alphabet=letters, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    found = BPETokenizer(bpe.to_str(), "bpe")
    if found.size < vocabulary:
        raise ConfigError(f"data.vocabulary={vocabulary}: the text has pairs for {found.size} tokens only; use {found.size} or fewer")
    return found


def _byte_level(bpe: Any) -> Any:
    """Set GPT-2's pre-tokenizer and decoder on the tokenizer `bpe`. Return `bpe`."""
    library = tokenizers_library()
    bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = library.decoders.ByteLevel()
    return bpe


def tokenizers_library() -> Any:
    """Return the module of the library `tokenizers`. Raise `ConfigError` if it is not installed."""
    try:
        import tokenizers  # the library, not this module
    except ModuleNotFoundError:
        raise ConfigError("data.tokenizer: BPE needs the tokenizers library; install it with pip install 'linnaeus[bpe]'") from None
    return tokenizers
