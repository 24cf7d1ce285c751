"""Recognise the layout of a token file: with llm.c's header, as numpy's .npy, or without a header.

The header of llm.c and modded-nanogpt is 256 numbers of type int32: a magic number, a version, the number of tokens, and zeros. The tokens
follow. A file without a header consists of integers of type `data.dtype`.
"""

from pathlib import Path
from tokenize import TokenError

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.language.token_array import TokenFile

HEADER = 1024  # bytes
VERSIONS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # magic number -> version and type of the tokens: GPT-2's and Llama 3's
DTYPES = {"uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8"}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
SAMPLE = 1 << 20  # number of tokens of a file without a header that are checked for a wrong type


def find_layout(path: Path, dtype: str, vocabulary: int) -> TokenFile:
    """Return the layout of a file. `dtype`: value of `data.dtype`, the type of the tokens; for a file without a header, `auto` is uint16
    for a `vocabulary` of up to 65,536 tokens, else uint32.

    Raise `ConfigError` for a damaged header, a header with another type, and a length or values that do not fit the type."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEADER)
        found = _npy(path) if head.startswith(b"\x93NUMPY") else _headed(path, head)
        if found is None:
            return _without_header(path, dtype, vocabulary)
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error.strerror or error})") from None
    if dtype != "auto" and DTYPES[dtype] != found.dtype:
        name = NAMES.get(found.dtype, found.dtype)
        raise ConfigError(f"data.dtype={dtype}: the header of {path} has the type {name}; use data.dtype=auto")
    return found


def _npy(path: Path) -> TokenFile:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, TokenError) as error:  # TokenError: a header that numpy cannot parse
        raise ConfigError(f"data.path: {path} is damaged ({error}); write it again with numpy.save") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigError(f"data.path: {path} is an array {array.dtype}{list(array.shape)}; it must have one dimension of integers")
    return TokenFile(path, array.dtype.str, array.offset, array.size)


def _headed(path: Path, head: bytes) -> TokenFile | None:
    """Return the layout of a file with llm.c's header; None if the file has no such header. `head`: the first bytes of the file.

    Raise `ConfigError` if the version in the header, or the length of the file, is not the expected one."""
    numbers = np.frombuffer(head, "<u4") if len(head) == HEADER else np.zeros(3, "<u4")
    magic, version, tokens = numbers[:3].tolist()
    if magic not in VERSIONS:
        return None
    known, dtype = VERSIONS[magic]
    length, size = path.stat().st_size - HEADER, tokens * np.dtype(dtype).itemsize
    if version != known or length != size:
        expected = f"version {known} and {size} bytes after the header"
        raise ConfigError(f"data.path: {path} has version {version} and {length} bytes after its header; expected {expected}")
    return TokenFile(path, dtype, HEADER, tokens)


def _without_header(path: Path, dtype: str, vocabulary: int) -> TokenFile:
    name = dtype if dtype != "auto" else "uint16" if vocabulary <= 1 << 16 else "uint32"
    length, width = path.stat().st_size, np.dtype(DTYPES[name]).itemsize
    if length % width:
        raise ConfigError(f"data.path: {path} has {length} bytes, which is not a whole number of tokens of {width} bytes (data.dtype)")
    found = TokenFile(path, DTYPES[name], 0, length // width)
    if dtype == "auto" and _upper_halves(found.map()[:SAMPLE]):
        wide = f"uint{16 * width}"
        raise ConfigError(
            f"data.dtype: as {name}, every second token of {path} is 0, so its tokens are probably {wide}; set data.dtype={wide}, or "
            f"data.dtype={name} if that is right"
        )
    return found


def _upper_halves(tokens: np.ndarray) -> bool:
    """Return True if the tokens look like the halves of numbers of twice the width: every second token is 0, most others are not."""
    low, high = tokens[::2], tokens[1::2]
    return len(tokens) >= 16 and not bool(high.any()) and int(np.count_nonzero(low)) > len(low) // 2
