"""Let a destination of metric rows fail without ending the run: its first error is logged as one line, and it gets no more rows."""

from collections.abc import Iterator
from contextlib import contextmanager

from linnaeus.reporting.terminal.console import LOGGER


class SoftFailure:
    """State of a destination of metric rows whose failure must not end the run.

    name: key of the destination, such as `logger.csv`. lost: consequence of a failure, for the warning, such as "no more messages are
    sent". failed: True after the first error; the next launch tries again."""

    def __init__(self, name: str, lost: str) -> None:
        self.name, self.lost, self.failed = name, lost, False

    def fail(self, reason: object) -> None:
        """Set `failed`. Log the reason as a warning, the first time only."""
        first, self.failed = not self.failed, True
        if first:
            LOGGER.warning(f"{self.name}: {self.lost}, training continues ({reason})")

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Return a context manager: if its block raises `ImportError`, `OSError` or `UnicodeEncodeError`, it calls `fail`, and nothing is
        raised."""
        try:
            yield
        except (ImportError, OSError, UnicodeEncodeError) as error:  # the last: a path that is not UTF-8
            self.fail(error)
