"""Open tokens made by another program: a folder with `train.bin` and `val.bin`, or with several files for each split, such as *train*.bin
and *val*.npy.

`token_layout.py` describes the layouts of the files. A folder of nanoGPT has `meta.pkl` if its tokens are characters. A pickle can run any
program when it is loaded, so `meta.pkl` is read by a loader that accepts containers, strings and numbers only. Without `meta.pkl` the ids
are those of the tokenizer `data.tokenizer_file`, or else of GPT-2's tokenizer."""

import io
import json
import pickle
import re
from pathlib import Path
from typing import Any, NoReturn

from linnaeus.errors import ConfigError, counted
from linnaeus.files import file_digest, text_digest
from linnaeus.reporting.formatting import shorten
from linnaeus.workloads.language.config import TokensConfig
from linnaeus.workloads.language.text_files import printable
from linnaeus.workloads.language.token_layout import DTYPES, NAMES, find_layout
from linnaeus.workloads.language.token_store import TokenStore
from linnaeus.workloads.language.tokenization import SPLITS
from linnaeus.workloads.language.tokenizers import CharacterTokenizer, Tokenizer, identity, load_tokenizer

SUFFIXES = (".bin", ".npy")


class PlainUnpickler(pickle.Unpickler):
    """Unpickler for dicts, lists, tuples, sets, strings, bytes and numbers. It refuses a pickle that imports or calls anything."""

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
    """Read and check the token files that `config` selects. Return the content of dataset.json, from which every process can open the
    files. Called on one process."""
    folder = Path(config.path).expanduser()
    found = find_token_files(folder, config)
    tokenizer = read_tokenizer(folder, config)
    size = vocabulary_size(tokenizer, config)
    name = identity(tokenizer) if tokenizer is not None else f"unknown-{size}"
    files = {
        split: [{"name": path.relative_to(folder).as_posix(), **check_token_file(path, size, config.dtype)} for path in paths]
        for split, paths in found.items()
    }
    used = {path for paths in found.values() for path in paths}
    unused = sorted(printable(Path(path.name)) for path in folder.iterdir() if path.suffix in SUFFIXES and path not in used)
    splits = {split: _split_facts(each) for split, each in files.items()}
    return {"path": str(config.path), "identity": name, "splits": splits} | ({"unused": unused} if unused else {})


def find_token_files(folder: Path, config: TokensConfig) -> dict[str, list[Path]]:
    """Return the files of each split, sorted by the numbers in their names. Raise `ConfigError` if a split has no file, or if a file
    belongs to both splits."""
    found = {}
    for (split, file), (key, given) in zip(SPLITS.items(), _patterns(config).items(), strict=True):
        word = file.removesuffix(".bin")
        patterns = given or ([file] if (folder / file).is_file() else [f"*{word}*{suffix}" for suffix in SUFFIXES])
        try:
            found[split] = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}, key=_natural)
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(f"{key}={patterns}: {error}; use patterns such as *{word}*.bin") from None
        if not found[split]:
            missing = f"nothing matches {key}={given}" if given else f"has no {file} and no other {' or '.join(patterns)}"
            raise ConfigError(f"data.path: {folder}: {missing}; set data.path to the folder of the token files, or {key} to their names")
    unprintable = next((path for paths in found.values() for path in paths if printable(path) != path.as_posix()), None)
    if unprintable is not None:
        raise ConfigError(f"data.path: the name of {printable(unprintable)} is not UTF-8; rename it")
    both = sorted(set(found["train"]) & set(found["validation"]))
    if both:
        raise ConfigError(f"data.path: {both[0]} is a file for training and for validation; set {' and '.join(_patterns(config))}")
    return found


def _patterns(config: TokensConfig) -> dict[str, list[str] | None]:
    return {"data.train_files": config.train_files, "data.validation_files": config.validation_files}


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key under which numbers in names are compared as numbers: part2.bin precedes part10.bin."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.as_posix())]


def _split_facts(files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the entry of a split in dataset.json, from the entries of its files.

    If the split has one file in nanoGPT's layout (uint16, no header), the hash of the split is the hash of the file."""
    plain = len(files) == 1 and (files[0]["dtype"], files[0]["offset"]) == (DTYPES["uint16"], 0)
    digest = files[0]["sha256"] if plain else text_digest(json.dumps([[file["dtype"], file["sha256"]] for file in files]))
    return {"tokens": sum(file["tokens"] for file in files), "sha256": digest, "files": files}


def open_token_files(config: TokensConfig, facts: dict[str, Any]) -> TokenStore:
    """Return the token store of the token files that `config` selects. `facts`: the description of these files that `check_token_files`
    returned."""
    folder = Path(config.path).expanduser()
    tokenizer = read_tokenizer(folder, config)
    numbers = ", ".join(f"{counted(len(facts['splits'][split]['files']), 'file')} for {split}" for split in SPLITS)
    types = dict.fromkeys(NAMES.get(file["dtype"], file["dtype"]) for split in SPLITS for file in facts["splits"][split]["files"])
    notes = [f"text: token files in {config.path}: {numbers}, {' and '.join(types)}"]
    if "unused" in facts:
        notes.append(f"left out: {shorten(', '.join(facts['unused']), 200)} in {config.path}, for neither training nor validation")
    if tokenizer is None:
        notes.append("bits per byte: unknown, because data.path has no meta.pkl and data.tokenizer_file is null")
    return TokenStore(folder, facts, tokenizer, vocabulary_size(tokenizer, config), notes)


def read_tokenizer(folder: Path, config: TokensConfig) -> Tokenizer | None:
    """Return the tokenizer of `meta.pkl` in `folder`, or of `data.tokenizer_file`; None if both are missing.

    Raise `ConfigError` if both exist, or if the file does not define a tokenizer: `itos` of meta.pkl must map each id to a different
    character."""
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
    """Return the number of tokens of the tokenizer; without a tokenizer `data.vocabulary`, by default GPT-2's 50257.

    Raise `ConfigError` if both the tokenizer and `data.vocabulary` are given."""
    if tokenizer is None:
        return 50257 if config.vocabulary is None else config.vocabulary
    if config.vocabulary is not None:
        raise ConfigError(f"data.vocabulary={config.vocabulary} has no effect: the tokenizer is {identity(tokenizer)}; remove it")
    return tokenizer.size


def check_token_file(path: Path, size: int, dtype: str) -> dict[str, Any]:
    """Return the entry of a file in dataset.json: layout, number of tokens and SHA-256. `size`: number of tokens of the vocabulary. Raise
    `ConfigError` if the file contains an id below 0, or not below `size`."""
    file = find_layout(path, dtype, size)
    try:
        tokens, digest = file.map(), file_digest(path)
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror})") from None
    for index in {int(tokens.argmin()), int(tokens.argmax())} if len(tokens) else ():
        if not 0 <= tokens[index] < size:
            name = NAMES.get(file.dtype, file.dtype)
            unfit = f"{path} has token {tokens[index]} at {index}, but the vocabulary size is {size}"
            raise ConfigError(f"data.path: {unfit}; set data.vocabulary, or data.dtype if its tokens are not {name}")
    return {"dtype": file.dtype, "offset": file.offset, "tokens": file.size, "sha256": digest}
