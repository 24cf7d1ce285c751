"""Define the two exceptions that end the program with a message of one line and no traceback, and functions that format values for
messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_END = r".*?(?=::[a-z][a-z0-9+.-]*://|$)"  # to the next URL of a chain, or the end
_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_UNCLEAR = re.compile(rf"(?<=://)[^/?#\s:]+:(?!:|\d*(?:[/?#]|$))(?:(?!::)\S)*@{_END}", re.DOTALL)  # / ? or # in a password; not a port
_QUERY = re.compile(rf"\?{_END}", re.DOTALL)


class ConfigError(ValueError):
    """A mistake of the user. The message is one line that names the key, its value and the fix. The program exits with status 2."""


class RunFailed(RuntimeError):
    """A failure of a running program, such as a killed worker, that is not the user's mistake.

    The message is one line; the exit status is 1."""


def system_reason(error: Exception) -> str:
    """Return the text of an exception for a message. For an `OSError` it is the system's text and the name of the file."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"


def one_line(error: BaseException) -> str:
    """Return the message of an exception on one line of at most 160 characters, or the name of its type if it has no message. URLs in it
    are `redacted`."""
    return redacted_words(" ".join(str(error).split()))[:160] or type(error).__name__


def redacted(url: str) -> str:
    """Return a URL, or a chain such as zip://a::https://host/b, without user names, passwords and queries, which may contain secrets.

    A text without :// is returned unchanged. Of any other text, what follows a ? after the first :// is removed, too."""
    if "://" not in url:
        return url
    scheme, mark, rest = _UNCLEAR.sub("...", _USER.sub("", url)).partition("://")
    return scheme + mark + _QUERY.sub("", rest)


def redacted_words(text: str) -> str:
    """Return a text with `redacted` URLs. A URL ends at a blank."""
    return " ".join(map(redacted, text.split(" "))) if "://" in text else text


def escaped(text: str) -> str:
    """Return `text` with control characters replaced by escapes such as `\\x1b`.

    Names of files and taxa come from data; without this a terminal would execute the control sequences in them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str, most: int = 60) -> str:
    """Return `text` for a message, with control characters as escapes.

    If `text` is longer than `most` characters, its middle is replaced by `...`."""
    text = escaped(text)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[3 - (most - most // 2) :]}"


def quoted(value: object, most: int = 60) -> str:
    """Return `repr(value)` for a message, shortened to about `most` characters. A URL is `redacted`."""
    return shorten(repr(shorten(redacted(value), 4 * most) if isinstance(value, str) else value), most)


def list_some(values: Sequence[str], most: int = 12) -> str:
    """Return the first `most` values for a message, comma-separated and each shortened, followed by ", and N more" if there are more."""
    return ", ".join(map(shorten, values[:most])) + (f", and {len(values) - most} more" if len(values) > most else "")


PLURALS = (("taxon", "taxa"), ("medium", "media"), ("ry", "ries"), ("s", "ses"), ("", "s"))


def counted(number: int, noun: str) -> str:
    """Return a number and its noun in the right form, such as "1 file", "2,000 files" or "2 taxa".

    Use this only where no verb follows, because the form of the verb would depend on the number: "left out: 1 row", "1 row without an
    id"."""
    if number == 1:
        return f"1 {noun}"
    singular, plural = next(pair for pair in PLURALS if noun.endswith(pair[0]))
    return f"{number:,} {noun.removesuffix(singular)}{plural}"
