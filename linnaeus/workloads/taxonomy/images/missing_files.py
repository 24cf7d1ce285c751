"""Explain why an image file is missing: a file whose name looks the same may be in its folder."""

import os
import unicodedata
from collections.abc import Callable
from itertools import islice

from linnaeus.errors import quoted

MOST_LISTED = 100_000  # files of the folder that are compared

# Each function removes one more difference; the text names it.
_DIFFERENCES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("the encoding of accents (NFC or NFD)", lambda name: unicodedata.normalize("NFC", name)),
    ("upper and lower case", lambda name: unicodedata.normalize("NFC", name).casefold()),
    ("spaces at the ends", lambda name: unicodedata.normalize("NFC", name).casefold().strip()),
    ("the ending", lambda name: os.path.splitext(unicodedata.normalize("NFC", name).casefold().strip())[0]),
)


def similar_file(path: str) -> str:
    """Return a text about a file in the folder of the missing file `path` whose name looks the same; "" if there is none.

    A name looks the same if it differs only in the encoding of accents, as in archives made on a Mac, in the case of letters, in spaces at
    the ends, or in the ending. Of several such files, the one with the smallest difference is named."""
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder or ".") as entries:
            there = sorted(entry.name for entry in islice(entries, MOST_LISTED))
    except OSError:
        return ""
    for difference, plain in _DIFFERENCES:
        wanted = plain(name)
        if found := [other for other in there if plain(other) == wanted]:
            return f"the folder has {quoted(found[0])}, which differs from {quoted(name)} in {difference}"
    return ""
