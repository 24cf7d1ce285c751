"""The two errors that end the program with one line and no traceback."""

from __future__ import annotations


class ConfigError(ValueError):
    """A user's mistake. The text is one line that names the key, the value and the fix. The exit status is 2."""


class RunFailed(RuntimeError):
    """The run cannot continue, although neither the command nor the program is wrong. The text is one line. The exit status is 1."""
