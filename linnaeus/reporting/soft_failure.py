"""Let a destination of rows fail without ending the run: its first error is logged as one line, and it gets no more rows."""

from collections.abc import Iterator
from contextlib import contextmanager

from linnaeus.reporting.console import LOGGER


class SoftFailure:
    """State of a destination that must not end the run. `name` is its key, such as `logger.csv`; `lost` says what is missing from now on.

    `failed` is True after the first error; the next launch tries again."""

    def __init__(self, name: str, lost: str) -> None:
        self.name, self.lost, self.failed = name, lost, False

    def fail(self, reason: object) -> None:
        """Log the reason, the first time only."""
        first, self.failed = not self.failed, True
        if first:
            LOGGER.warning(f"{self.name}: {self.lost}, training continues ({reason})")

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Run the `with` block. If a package is missing or a disk fails, log it instead of raising it."""
        try:
            yield
        except (ImportError, OSError, UnicodeEncodeError) as error:  # the last: a path that is not UTF-8
            self.fail(error)
