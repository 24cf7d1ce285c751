"""Write and open token stores. A token store is a tokenized text on disk, written once and memory-mapped by every process that trains on
it.

A store is a folder with `train.bin` and `val.bin` (little-endian uint16, uint32 for vocabularies above 65,536, without a header: nanoGPT's
layout) and `store.json` (tokenizer, hashes of the text files and of the token files, versions, settings of the split). The name of the
folder is a hash of all inputs. The folder gets this name only when it is complete. A store whose content does not match store.json is
refused.

Several documents are split by document, and an end marker follows each. A single document is split by position, and its end is used for
validation. Each named source is split in this way separately and is contiguous in both files; store.json contains its number of tokens."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, counted
from linnaeus.files import TEMPORARY, delete, file_digest, remove_abandoned, sync_file, text_digest, to_json, write_atomic
from linnaeus.workloads.language.corpus import Corpus
from linnaeus.workloads.language.token_array import TokenArray, TokenFile
from linnaeus.workloads.language.tokenization import COUNTS, SPLITS, make_tokenizer, write_splits
from linnaeus.workloads.language.tokenizers import Tokenizer, identity, load_tokenizer, tokenizer_from, tokenizers_library

VERSION = 2
FACTS = "store.json"


class TokenStore:
    """Tokenized text with the arrays `train` and `validation`. `facts` is the content of dataset.json. `tokenizer` and `byte_lengths`
    (int64 [vocabulary_size], bytes of each token) are None if the meaning of the ids is unknown. `sources`: names of the text sources in
    both arrays, in order; () without named sources."""

    def __init__(
        self, folder: Path, facts: dict[str, Any], tokenizer: Tokenizer | None, vocabulary_size: int, notes: Sequence[str]
    ) -> None:
        splits = facts["splits"]
        self.facts, self.tokenizer, self.vocabulary_size = facts, tokenizer, vocabulary_size
        self.byte_lengths = None if tokenizer is None else tokenizer.byte_lengths()
        self.sources = tuple(splits["train"].get("sources", ()))
        sizes = {split: tuple(splits[split]["sources"][name]["tokens"] for name in self.sources) for split in SPLITS}
        self.train, self.validation = (TokenArray(_files(folder, facts, split), sizes[split]) for split in SPLITS)
        hashed = [facts["identity"], *(splits[split]["sha256"] for split in SPLITS)]
        hashed += [json.dumps([self.sources, sizes])] if self.sources else []
        self.fingerprint = text_digest("".join(hashed))[:32]
        self.notes = (*notes, f"tokens: {facts['identity']}: {_sizes(self.train.size, self.validation.size)}")
        self.notes += tuple(f"source {name}: {_sizes(*pair)}" for name, *pair in zip(self.sources, *sizes.values()))


def _files(folder: Path, facts: dict[str, Any], split: str) -> tuple[TokenFile, ...]:
    entry = facts["splits"][split]
    files = entry.get("files") or [{"name": SPLITS[split], "dtype": facts["dtype"], "offset": 0, "tokens": entry["tokens"]}]
    return tuple(TokenFile(folder / file["name"], file["dtype"], file["offset"], file["tokens"]) for file in files)


def _sizes(train: int, validation: int) -> str:
    return f"{train:,} training tokens, {validation:,} validation tokens"


def text_store(corpus: Corpus, folder: Path) -> str:
    """Write the token store of `corpus` in `folder`, unless it exists there. Return the name of the store. Call this function on one
    process only.

    Raise `ConfigError` if the store cannot be written or read."""
    inputs = _inputs(corpus)
    name = f"{corpus.config.tokenizer}-{text_digest(json.dumps(inputs, sort_keys=True))[:16]}"
    try:
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder)
            _build(folder / name, corpus, inputs)
        verify(folder / name, inputs)
    except OSError as error:
        raise ConfigError(f"run.root: the token store {folder / name} cannot be written or read ({error.strerror or error})") from None
    return name


def _inputs(corpus: Corpus) -> dict[str, Any]:
    """Return all inputs that determine the content of the store. Raise `ConfigError` if `data.tokenizer=bpe` has neither `data.vocabulary`
    nor `data.tokenizer_file`, and for a `data.vocabulary` that has no effect."""
    config = corpus.config
    tokenizer: dict[str, Any] = {"kind": config.tokenizer}
    if config.tokenizer_file is not None:
        tokenizer["identity"] = identity(load_tokenizer(config.tokenizer_file, config.tokenizer, "data.tokenizer_file"))
    if config.tokenizer == "bpe" and config.tokenizer_file is None:
        if config.vocabulary is None:
            raise ConfigError("data.tokenizer=bpe needs data.vocabulary to be trained, for example 4096; or set data.tokenizer_file")
        tokenizer["vocabulary"] = config.vocabulary
    elif config.vocabulary is not None:
        raise ConfigError(f"data.vocabulary={config.vocabulary} has no effect: only data.tokenizer=bpe without a tokenizer_file uses it")
    if config.tokenizer in ("bpe", "gpt2"):
        tokenizer["library"] = tokenizers_library().__version__
    return {
        "version": VERSION,
        "tokenizer": tokenizer,
        "files": [[file.name, file.bytes, file.sha256, file.source] for file in corpus.files],
        "sources": list(corpus.sources),
        "encoding": config.encoding,
        "separator": config.separator,
        "validation_fraction": config.validation_fraction,
        "split_seed": config.split_seed,
    }


def _build(final: Path, corpus: Corpus, inputs: dict[str, Any]) -> None:
    """Write the store under a temporary name and rename it to `final`, unless another run has finished the same store first.

    Raise `ConfigError` if there are several documents and the tokenizer has no end marker."""
    tokenizer = make_tokenizer(corpus)
    if len(corpus.digests) > 1 and tokenizer.end is None:
        raise ConfigError(f"data.tokenizer_file: {identity(tokenizer)} has no end marker for the {len(corpus.digests)} documents")
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        _fill(temporary, corpus, tokenizer, inputs)
        _commit(temporary, final)
    finally:
        if temporary.exists():
            delete(temporary)


def _commit(temporary: Path, final: Path) -> None:
    """Flush a finished store and rename it from `temporary` to `final`. If several runs write equal stores at the same time, the store that
    is finished first is kept."""
    for path in (*sorted(temporary.iterdir()), temporary):
        sync_file(path)
    try:
        os.rename(temporary, final)
    except OSError:
        if not final.exists():
            raise
    sync_file(final.parent)


def _fill(folder: Path, corpus: Corpus, tokenizer: Tokenizer, inputs: dict[str, Any]) -> None:
    """Write the files of a store into `folder`. Raise `ConfigError` for a source with fewer than two tokens in one of the splits."""
    dtype = "<u2" if tokenizer.size <= 1 << 16 else "<u4"
    counts = write_splits(folder, corpus, tokenizer, dtype)
    for split, purpose in zip(SPLITS, ("training", "validation"), strict=True):
        for name, tokens in zip(corpus.sources, counts[split][:, COUNTS.index("tokens")].tolist()):
            if tokens < 2:
                found = counted(tokens, f"{purpose} token")
                raise ConfigError(f"data.sources.{name} has {found}; it needs at least 2, add text or remove the source")
    content = {
        "expected": inputs,
        "identity": identity(tokenizer),
        "tokenizer": tokenizer.to_dict(),
        "dtype": dtype,
        "splits": {split: _split_facts(counts[split], corpus.sources, file_digest(folder / file)) for split, file in SPLITS.items()},
    }
    write_atomic(folder / FACTS, to_json(content, None))


def _split_facts(counts: np.ndarray, sources: Sequence[str], digest: str) -> dict[str, Any]:
    """Return the entry of one split in store.json. `counts` int64 [sources, 4]: numbers of documents, characters, bytes and tokens
    (`COUNTS`) of each source."""
    by_source = {name: dict(zip(COUNTS, row, strict=True)) for name, row in zip(sources, counts.tolist())}
    return dict(zip(COUNTS, counts.sum(0).tolist(), strict=True)) | ({"sources": by_source} if sources else {}) | {"sha256": digest}


def verify(store: Path, inputs: dict[str, Any]) -> None:
    """Raise `ConfigError` if the token store is damaged or was not made from `inputs`.

    The store is damaged if store.json does not match the tokenizer, or if a token file differs from store.json in its digest or its number
    of tokens."""
    facts = _read_facts(store)
    if facts["expected"] != inputs or identity(tokenizer_from(facts["tokenizer"])) != facts["identity"]:
        raise ConfigError(f"the token store {store} is damaged: {FACTS} does not match its tokenizer and its name; delete it")
    for split, file in SPLITS.items():
        entry = facts["splits"][split]
        sources = entry.get("sources", {"": entry}).values()
        if file_digest(store / file) != entry["sha256"] or sum(source["tokens"] for source in sources) != entry["tokens"]:
            raise ConfigError(f"the token store {store} is damaged: {file} does not match {FACTS}; delete it")


def _read_facts(store: Path) -> dict[str, Any]:
    try:
        return json.loads((store / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token store {store} cannot be read ({error}); delete it, or use a disk that all nodes share") from None


def open_store(store: Path, notes: Sequence[str] = (), left_out: dict[str, list[str]] | None = None) -> TokenStore:
    """Return the token store in the folder `store`, which one process has verified. `notes` (messages for the user) and `left_out` (reason
    -> names of text files that were not read) come from the corpus, since the store does not contain them."""
    facts = _read_facts(store)
    tokenizer = tokenizer_from(facts.pop("tokenizer"))
    return TokenStore(store, facts | ({"left_out": left_out} if left_out else {}), tokenizer, tokenizer.size, notes)
