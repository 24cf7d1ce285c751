"""Define the two errors that end the program with one line and no traceback, and format errors, names and numbers for messages."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(ValueError):
    """A user's mistake. The message is one line that names the key, the value and the fix. The exit status is 2."""


class RunFailed(RuntimeError):
    """The run cannot continue, although the command and the program are correct. The message is one line. The exit status is 1."""


def system_reason(error: Exception) -> str:
    """Return the system's text of an `OSError` with its file, or the message of another exception."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"


def one_line(error: Exception) -> str:
    """Return the message of an exception on one line of at most 160 characters, or the name of its type if it has no message."""
    return " ".join(str(error).split())[:160] or type(error).__name__


def escaped(text: str) -> str:
    """Return `text` with control characters as escapes such as `\\x1b`: names of files and taxa must not reach the terminal as commands."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str, most: int = 60) -> str:
    """Return a text for a message. The middle of one longer than `most` characters is replaced by `...`, control characters by escapes."""
    text = escaped(text)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[3 - (most - most // 2) :]}"


def quoted(value: object, most: int = 60) -> str:
    """Return the repr of a value for a message, shortened to `most` characters."""
    return shorten(repr(shorten(value, 4 * most) if isinstance(value, str) else value), most)


def list_some(values: Sequence[str], most: int = 12) -> str:
    """Return the first `most` values for a message, each shortened, and the number of the others."""
    return ", ".join(map(shorten, values[:most])) + (f", and {len(values) - most} more" if len(values) > most else "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 file", "2,000 files" or "2 taxa"."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun.removesuffix('taxon')}taxa" if noun.endswith("taxon") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {plural}"
