"""Tokenize a corpus in constant memory: make the tokenizer, and write the tokens of both splits (training and validation).

A text is read in pieces. Pieces are cut only where the tokenizer allows this (`Tokenizer.boundary`), so the ids of the pieces, joined, are
the ids of the whole text. Pieces are collected into batches; a BPE encodes each batch on all cores."""

import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.language.corpus import Corpus, held_out
from linnaeus.workloads.language.text_pieces import halves, recut
from linnaeus.workloads.language.tokenizers import (
    BEFORE_WORD,
    PIECE_SIZE,
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    fetch_gpt2,
    identity,
    load_tokenizer,
    train_bpe,
)

SPLITS = {"train": "train.bin", "validation": "val.bin"}
COUNTS = ("documents", "characters", "bytes", "tokens")
BATCH = 1 << 20  # characters that are encoded together; a BPE needs about 60 bytes of memory for each


class Part(NamedTuple):
    """Text for one of the two splits: a document, or the beginning or end of a document. `pieces` must be read before the next part."""

    split: str
    source: int
    file: str
    pieces: Iterator[str]
    end_marker: bool  # True if an end marker follows the text


def make_tokenizer(corpus: Corpus) -> Tokenizer:
    """Return the tokenizer that `corpus.config` selects. A BPE is trained on the training text only. The alphabet of a `character`
    tokenizer is made from the whole text, training and validation."""
    config, several = corpus.config, len(corpus.digests) > 1
    if config.tokenizer_file is not None:
        return load_tokenizer(config.tokenizer_file, config.tokenizer, "data.tokenizer_file")
    if config.tokenizer == "character":
        return CharacterTokenizer(_alphabet(corpus), with_end=several)
    if config.tokenizer == "byte":
        return ByteTokenizer(with_end=several)
    if config.tokenizer == "gpt2":
        return fetch_gpt2()
    assert config.vocabulary is not None
    training = (part.pieces for part in _parts(corpus, "training the tokenizer") if part.split == "train")
    return train_bpe((piece for pieces in training for piece in recut(pieces, BEFORE_WORD, PIECE_SIZE)), config.vocabulary)


def _alphabet(corpus: Corpus) -> str:
    """Return the distinct characters of the text, sorted by code point."""
    found = np.zeros(0x110000, bool)
    for _, pieces in corpus.documents("collecting the characters"):
        for piece in pieces:
            found[np.frombuffer(piece.encode("utf-32-le"), "<u4")] = True
    return "".join(map(chr, np.flatnonzero(found)))


def _parts(corpus: Corpus, activity: str) -> Iterator[Part]:
    """Yield a part for each document (its whole text, for one split). If a source has a single document, cut the document into two parts,
    one for each split."""
    several = len(corpus.digests) > 1
    alone = np.bincount(corpus.document_sources)[corpus.document_sources] == 1
    facts = zip(corpus.documents(activity), corpus.document_sources, alone, held_out(corpus), corpus.lengths, strict=True)
    for (file, pieces), source, single, validates, length in facts:
        if not single:
            yield Part("validation" if validates else "train", int(source), file, pieces, True)
            continue
        for validates, half in halves(pieces, int(int(length) * (1 - corpus.config.validation_fraction))):
            yield Part("validation" if validates else "train", int(source), file, half, validates and several)


def write_splits(folder: Path, corpus: Corpus, tokenizer: Tokenizer, dtype: str) -> dict[str, np.ndarray]:
    """Write the tokens of both splits to files in `folder`, as integers of `dtype`. Return for each split the numbers of documents,
    characters, bytes and tokens (`COUNTS`) of each source, int64 [sources, 4]. Raise `ConfigError` if the tokens of a piece have fewer or
    more bytes than its text, and for a text that the tokenizer normalizes."""
    counts = {split: np.zeros((max(1, len(corpus.sources)), len(COUNTS)), np.int64) for split in SPLITS}
    lengths = tokenizer.byte_lengths()
    with open(folder / SPLITS["train"], "wb") as train, open(folder / SPLITS["validation"], "wb") as validation:
        files = {"train": train, "validation": validation}
        for batch in _batches(_parts(corpus, "tokenizing"), tokenizer):
            for (part, text, last), ids in zip(batch, _encoded(batch, tokenizer), strict=True):
                size = len(text.encode())
                changed = _change(tokenizer, part.file, text, int(lengths[ids].sum()))
                if changed is not None:
                    raise ConfigError(f"data.tokenizer_file: {identity(tokenizer)} does not preserve the text: {changed}")
                if last and part.end_marker:
                    assert tokenizer.end is not None
                    ids = np.append(ids, tokenizer.end)
                files[part.split].write(ids.astype(dtype).tobytes())
                counts[part.split][part.source] += (last, len(text), size, len(ids))
    return counts


def _change(tokenizer: Tokenizer, file: str, text: str, token_bytes: int) -> str | None:
    """Return how the tokens of a text differ from it; None if they do not. `token_bytes`: number of bytes of the tokens."""
    size = len(text.encode())
    if isinstance(tokenizer, BPETokenizer) and tokenizer.normalizes and not unicodedata.is_normalized("NFC", text):
        return f"{file} is not in the normal form NFC of Unicode; convert it"
    return None if token_bytes == size else f"{size} bytes of {file} became tokens of {token_bytes} bytes"


class Piece(NamedTuple):
    part: Part
    text: str
    last: bool  # True for the last piece of its part


def _batches(parts: Iterable[Part], tokenizer: Tokenizer) -> Iterator[list[Piece]]:
    """Yield lists of pieces in the order of the text. The pieces of a list have about `BATCH` characters in total."""
    batch, size = [], 0
    for part in parts:
        for text in recut(part.pieces, tokenizer.boundary, PIECE_SIZE):
            batch.append(Piece(part, text, False))
            size += len(text)
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        batch.append(Piece(part, "", True))
    yield batch


def _encoded(batch: list[Piece], tokenizer: Tokenizer) -> list[np.ndarray]:
    try:
        return tokenizer.encode_batch([piece.text for piece in batch])
    except ConfigError:
        for piece in batch:
            try:
                tokenizer.encode(piece.text)
            except ConfigError as error:
                raise ConfigError(f"data.tokenizer_file: in {piece.part.file}, {error}") from None
        raise
