"""Token stores: a text as numbers on the disk, made once, mapped into memory by every process that trains on it.

A store is a folder with `train.bin` and `val.bin` (little-endian uint16, or uint32 where the vocabulary needs it, no header: what
nanoGPT reads), `store.json` (the tokenizer with its identity, hashes of the sources and of the arrays, versions, how it was split) and
it appears whole or not at all. Its name is a hash of all that decides what is in it, so another text or tokenizer makes another
store; what is inside must be what the name promises, or the store is refused.

Split by document, or where there is only one by position, the end validating. With several documents an end marker follows each. Where
sources are told apart each is split so, by itself, and lies in one piece in both arrays: store.json has how many tokens it has there.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.files import TEMPORARY, commit_directory, delete, file_digest, text_digest, write_atomic
from linnaeus.workloads.language.config import TextConfig
from linnaeus.workloads.language.sources import Corpus, counted, held_out
from linnaeus.workloads.language.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    fetch_gpt2,
    identity,
    library_version,
    load_tokenizer,
    tokenizer_from,
    train_bpe,
)

VERSION = 2
SPLITS = {"train": "train.bin", "validation": "val.bin"}
FACTS = "store.json"
COUNTED = ("documents", "characters", "bytes", "tokens")
ABANDONED = 24 * 3600.0  # seconds after which an unfinished store is nobody's


@dataclass
class TokenArray:
    """Tokens of one split, opened where they are first read: a pickled one arrives closed."""

    path: Path
    dtype: str  # "<u2" or "<u4"
    size: int
    parts: tuple[int, ...] = ()  # tokens of each source, one behind the other; () where none are told apart
    _tokens: np.ndarray | None = None

    @property
    def tokens(self) -> np.ndarray:
        """[size] read-only, mapped."""
        if self._tokens is None:
            mapped = np.memmap(self.path, dtype=self.dtype, mode="r") if self.size else np.zeros(0, self.dtype)
            self._tokens = mapped.view(np.ndarray)
        return self._tokens

    def __reduce__(self) -> tuple[type[TokenArray], tuple[Path, str, int, tuple[int, ...]]]:
        return TokenArray, (self.path, self.dtype, self.size, self.parts)


@dataclass(frozen=True)
class TokenStore:
    """A text as tokens. `tokenizer` and `lengths` (int64 [size], bytes of each token) are None where nobody knows what the ids mean;
    `sources` has the names of the parts of either array."""

    train: TokenArray
    validation: TokenArray
    size: int  # of the vocabulary
    tokenizer: Tokenizer | None
    lengths: np.ndarray | None
    facts: dict[str, Any]  # for a person: dataset.json
    fingerprint: str
    notes: tuple[str, ...]
    sources: tuple[str, ...] = ()


class Part(NamedTuple):
    """What goes into one of the two arrays at once: a document, or the beginning or end of one."""

    split: str
    source: int
    file: str
    text: str
    marked: bool  # whether an end marker follows


def text_store(config: TextConfig, corpus: Corpus, folder: Path) -> str:
    """The name of the store in `folder` that holds `corpus` as `config` wants it, made if it is not there. On one process only."""
    expected = _expected(config, corpus)
    name = f"{config.tokenizer}-{text_digest(json.dumps(expected, sort_keys=True))[:16]}"
    try:
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(folder)
            _build(folder / name, config, corpus, expected)
        verify(folder / name, expected)
    except OSError as error:
        raise ConfigError(f"run.root: the token store {folder / name} cannot be written or read ({error.strerror or error})") from None
    return name


def _expected(config: TextConfig, corpus: Corpus) -> dict[str, Any]:
    """All that decides what is in a store."""
    tokenizer: dict[str, Any] = {"kind": config.tokenizer}
    if config.tokenizer_file is not None:
        tokenizer["identity"] = identity(load_tokenizer(config.tokenizer_file, config.tokenizer, "data.tokenizer_file"))
    if config.tokenizer == "bpe" and config.tokenizer_file is None:
        if config.vocabulary is None:
            raise ConfigError("data.tokenizer=bpe needs data.vocabulary, such as 4096, to be trained; or give its data.tokenizer_file")
        tokenizer["vocabulary"] = config.vocabulary
    elif config.vocabulary is not None:
        raise ConfigError(f"data.vocabulary={config.vocabulary} has no effect: only data.tokenizer=bpe without a tokenizer_file is trained")
    if config.tokenizer in ("bpe", "gpt2"):
        tokenizer["library"] = library_version()
    return {
        "version": VERSION,
        "tokenizer": tokenizer,
        "files": [[file.name, file.bytes, file.sha256, file.source] for file in corpus.files],
        "sources": list(corpus.sources),
        "encoding": corpus.encoding,
        "separator": corpus.separator,
        "validation_fraction": config.validation_fraction,
        "split_seed": config.split_seed,
    }


def _parts(corpus: Corpus, config: TextConfig) -> Iterator[Part]:
    """Each document, or where it is the only one of its source its two parts."""
    several = len(corpus.digests) > 1
    alone = np.bincount(corpus.owners)[corpus.owners] == 1
    chosen = held_out(corpus, config.validation_fraction, config.split_seed)
    facts = zip(corpus.documents(), corpus.owners.tolist(), alone.tolist(), chosen.tolist(), strict=True)
    for (file, text), source, single, validates in facts:
        if not single:
            yield Part("validation" if validates else "train", source, file, text, True)
            continue
        where = int(len(text) * (1 - config.validation_fraction))
        yield Part("train", source, file, text[:where], False)
        yield Part("validation", source, file, text[where:], several)


def _make_tokenizer(config: TextConfig, corpus: Corpus) -> Tokenizer:
    """Only a trained BPE looks at what the text says, and at the training part alone; an alphabet is that of the whole text."""
    several = len(corpus.digests) > 1
    if config.tokenizer_file is not None:
        return load_tokenizer(config.tokenizer_file, config.tokenizer, "data.tokenizer_file")
    if config.tokenizer == "character":
        alphabet: set[str] = set()
        for _, text in corpus.documents():
            alphabet.update(text)
        return CharacterTokenizer("".join(sorted(alphabet)), with_end=several)
    if config.tokenizer == "byte":
        return ByteTokenizer(with_end=several)
    if config.tokenizer == "gpt2":
        return fetch_gpt2()
    assert config.vocabulary is not None
    return train_bpe((part.text for part in _parts(corpus, config) if part.split == "train"), config.vocabulary)


def _build(final: Path, config: TextConfig, corpus: Corpus, expected: dict[str, Any]) -> None:
    """Write the store beside its name, then give it its name, unless another run has been quicker."""
    tokenizer = _make_tokenizer(config, corpus)
    if len(corpus.digests) > 1 and tokenizer.end is None:
        raise ConfigError(f"data.tokenizer_file: {identity(tokenizer)} has no end marker for the {len(corpus.digests)} documents")
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        _fill(temporary, config, corpus, tokenizer, expected)
        if not final.exists():
            commit_directory(temporary, final)
    finally:
        if temporary.exists():
            delete(temporary)


def _fill(folder: Path, config: TextConfig, corpus: Corpus, tokenizer: Tokenizer, expected: dict[str, Any]) -> None:
    dtype = "<u2" if tokenizer.size <= 1 << 16 else "<u4"
    counts = _write_splits(folder, config, corpus, tokenizer, dtype)
    _check_parts(counts, corpus.sources)
    content = {
        "expected": expected,
        "identity": identity(tokenizer),
        "tokenizer": tokenizer.to_dict(),
        "dtype": dtype,
        "splits": {split: _facts_of(counts[i], corpus.sources, file_digest(folder / SPLITS[split])) for i, split in enumerate(SPLITS)},
    }
    write_atomic(folder / FACTS, json.dumps(content, ensure_ascii=False) + "\n")


def _write_splits(folder: Path, config: TextConfig, corpus: Corpus, tokenizer: Tokenizer, dtype: str) -> np.ndarray:
    """int64 [splits, sources, COUNTED]: how much was written."""
    counts, splits = np.zeros((len(SPLITS), max(1, len(corpus.sources)), len(COUNTED)), np.int64), list(SPLITS)
    with open(folder / SPLITS["train"], "wb") as train, open(folder / SPLITS["validation"], "wb") as validation:
        files: dict[str, BinaryIO] = {"train": train, "validation": validation}
        lengths = tokenizer.byte_lengths()
        for part in _parts(corpus, config):
            try:
                ids = tokenizer.encode(part.text)
            except ConfigError as error:
                raise ConfigError(f"data.tokenizer_file: in {part.file}, {error}") from None
            size = len(part.text.encode())
            if int(lengths[ids].sum()) != size:
                changed = f"{part.file} has {size} bytes, its tokens stand for {int(lengths[ids].sum())}"
                raise ConfigError(f"data.tokenizer_file: {identity(tokenizer)} does not keep a text as it is: {changed}")
            if part.marked:
                assert tokenizer.end is not None
                ids = np.append(ids, tokenizer.end)
            files[part.split].write(ids.astype(dtype).tobytes())
            counts[splits.index(part.split), part.source] += (1, len(part.text), size, len(ids))
    return counts


def _check_parts(counts: np.ndarray, sources: Sequence[str]) -> None:
    """Raises ConfigError for a source with nothing to predict in one of the splits."""
    for number, name in enumerate(sources):
        for tokens, verb in zip(counts[:, number, COUNTED.index("tokens")].tolist(), ("train on", "validate"), strict=True):
            if tokens < 2:
                lack = f"{counted(tokens, 'token')} to {verb}, and the first predicts the second"
                raise ConfigError(f"data.sources.{name} has {lack}; give it more text, or leave it out")


def _facts_of(counts: np.ndarray, sources: Sequence[str], digest: str) -> dict[str, Any]:
    """What store.json says of one split; `counts` [sources, COUNTED]."""
    each = {name: dict(zip(COUNTED, row, strict=True)) for name, row in zip(sources, counts.tolist())}
    return dict(zip(COUNTED, counts.sum(0).tolist(), strict=True)) | ({"sources": each} if sources else {}) | {"sha256": digest}


def verify(store: Path, expected: dict[str, Any] | None = None) -> dict[str, Any]:
    """The content of store.json. Raises ConfigError, naming the store and what is wrong, where the store is not what it says, or not of
    what is `expected`."""
    facts = _read_facts(store)
    for what, wanted in (expected or {}).items():
        if facts["expected"].get(what) != wanted:
            there, here = (json.dumps(value)[:80] for value in (facts["expected"].get(what), wanted))
            raise ConfigError(f"the token store {store} is of another {what}: {there}, where this run has {here}; delete it")
    if identity(tokenizer_from(facts["tokenizer"])) != facts["identity"]:
        raise ConfigError(f"the token store {store} was made by the tokenizer {facts['identity']}, which is not the one in it; delete it")
    for split, file in SPLITS.items():
        said = facts["splits"][split]
        parts = said.get("sources", {}).values()
        right = file_digest(store / file) == said["sha256"] and (not parts or sum(part["tokens"] for part in parts) == said["tokens"])
        if not right:
            raise ConfigError(f"the token store {store} is damaged: {file} is not what store.json says; delete it")
    return facts


def _read_facts(store: Path) -> dict[str, Any]:
    try:
        return json.loads((store / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token store {store} cannot be read ({error}); delete it, or give a disk that all nodes share") from None


def open_store(store: Path, notes: tuple[str, ...] = (), left_out: dict[str, list[str]] | None = None) -> TokenStore:
    """A verified store, on any process. `notes` and `left_out` are those of the survey, which a store has no part in."""
    facts = _read_facts(store)
    tokenizer, splits = tokenizer_from(facts["tokenizer"]), facts["splits"]
    sources = tuple(facts["expected"]["sources"])
    parts = {split: tuple(splits[split]["sources"][name]["tokens"] for name in sources) for split in SPLITS}
    arrays = {split: TokenArray(store / file, facts["dtype"], splits[split]["tokens"], parts[split]) for split, file in SPLITS.items()}
    kept = [facts["identity"], *(splits[split]["sha256"] for split in SPLITS), json.dumps([sources, parts]) if sources else ""]
    return TokenStore(
        train=arrays["train"],
        validation=arrays["validation"],
        size=tokenizer.size,
        tokenizer=tokenizer,
        lengths=tokenizer.byte_lengths(),
        facts={key: value for key, value in facts.items() if key != "tokenizer"} | ({"left_out": left_out} if left_out else {}),
        fingerprint=text_digest("".join(kept))[:32],
        notes=(*notes, *_notes(facts["identity"], splits, sources)),
        sources=sources,
    )


def _notes(name: str, splits: dict[str, Any], sources: Sequence[str]) -> list[str]:
    def said(train: dict[str, Any], validation: dict[str, Any]) -> str:
        return f"{train['tokens']:,} tokens to train on, {validation['tokens']:,} tokens to validate"

    train, validation = splits["train"], splits["validation"]
    each = [f"source {source}: {said(train['sources'][source], validation['sources'][source])}" for source in sources]
    return [f"tokens: {name}: {said(train, validation)}", *each]


def _remove_abandoned(folder: Path) -> None:
    """Half-made stores of processes that were killed."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if time.time() - max((file.stat().st_mtime for file in path.iterdir()), default=path.stat().st_mtime) > ABANDONED:
            delete(path)
