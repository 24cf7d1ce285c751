"""The two errors that end the program with one line and no traceback, and the one-line form of other errors."""

from __future__ import annotations


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
