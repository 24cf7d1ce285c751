"""Convert tokenizers to `tokenizer.json` of the tokenizers library, which transformers reads, and back.

A character tokenizer becomes a word tokenizer whose words are single characters, a byte tokenizer becomes a byte-level BPE without merges,
and a BPE is written unchanged. One difference remains: the library recognises the end marker in a text, while this program encodes it as
ordinary text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError, one_line
from linnaeus.workloads.language.tokenizers import (
    END,
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    load_tokenizer,
    tokenizer_from,
    tokenizers_library,
)

FILE = "tokenizer.json"
GPT2_SIZE = 50257


def byte_letters() -> list[str]:
    """Return the character that a byte-level BPE uses for each byte: the byte's own character if it is visible, otherwise the next unused
    character from U+0100 on (Radford et al. 2019)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def library_json(tokenizer: Tokenizer) -> str:
    """Return the content of tokenizer.json for a tokenizer. Raise `ConfigError` if the tokenizers library is not installed."""
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.content
    library = tokenizers_library()
    if isinstance(tokenizer, CharacterTokenizer):
        words = {character: number for number, character in enumerate(tokenizer.alphabet)}
        written = library.Tokenizer(library.models.WordLevel(words, unk_token=END))
        written.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(r"[\s\S]"), "isolated")
        written.decoder = library.decoders.Fuse()
    else:
        written = library.Tokenizer(library.models.BPE({letter: byte for byte, letter in enumerate(byte_letters())}, []))
        written.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        written.decoder = library.decoders.ByteLevel()
    if tokenizer.end is not None:
        written.add_special_tokens([library.AddedToken(END, special=True, normalized=False)])
    return str(written.to_str())


def read_library_tokenizer(path: Path, key: str = "MODEL") -> Tokenizer:
    """Return the tokenizer of `path`: a tokenizer.json, or a folder with a tokenizer.json or with vocab.json and merges.txt.

    Raise `ConfigError`, naming the option `key`, if the files are missing, and for a tokenizer of another kind than characters, bytes or
    byte-level BPE."""
    file = path / FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        return load_tokenizer(path, "gpt2", key)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if "kind" in content:  # the file is of a run
            return tokenizer_from(content)
        return _characters(content) or _bytes(content) or _bpe(content)
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read ({error.strerror})") from None
    except ConfigError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigError(f"{key}: {file} is not a tokenizer of characters, bytes or byte-level BPE ({one_line(error)})") from None


def _characters(content: Mapping[str, Any]) -> Tokenizer | None:
    """Return the character tokenizer of a tokenizer.json whose words are single characters; None if the tokenizer.json has another type of
    model.

    Raise `ValueError` for longer words, a normalizer, or ids with gaps."""
    if content["model"]["type"] != "WordLevel":
        return None
    words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    if [len(word) for word in words] != [1] * len(words) or content["normalizer"] is not None:
        raise ValueError("its words are longer than a character")
    _check_numbers(content, words)
    return CharacterTokenizer("".join(words), with_end=bool(content["added_tokens"]))


def _bytes(content: Mapping[str, Any]) -> Tokenizer | None:
    """Return a `ByteTokenizer` for a tokenizer.json whose tokens are the 256 bytes in order, without merges and normalizer; None for
    another BPE.

    `content`: the tokenizer.json. Raise `ValueError` if its ids have gaps or if it has further tokens besides the end marker."""
    vocabulary = content["model"]["vocab"]
    if content["model"]["merges"] or sorted(vocabulary, key=vocabulary.get) != byte_letters() or content["normalizer"] is not None:
        return None
    _check_numbers(content, byte_letters())
    return ByteTokenizer(with_end=bool(content["added_tokens"]))


def _check_numbers(content: Mapping[str, Any], words: list[str]) -> None:
    """Raise `ValueError` if the ids of `words`, in this order, are not 0, 1, 2, ..., or if the next id does not belong to the end marker,
    the only further token."""
    numbers = [content["model"]["vocab"][word] for word in words]
    added = [(token["content"], token["id"]) for token in content["added_tokens"]]
    if numbers != list(range(len(words))) or added not in ([], [(END, len(words))]):
        raise ValueError("its numbers have gaps, or it has further tokens")


def _bpe(content: Mapping[str, Any]) -> Tokenizer:
    found = BPETokenizer(json.dumps(content, ensure_ascii=False), "bpe")
    return BPETokenizer(found.content, "gpt2") if found.size == GPT2_SIZE else found
