"""Trying again where a file system may only be busy. What still fails is raised: the run saves and stops, nothing is dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TypeVar

WAITS = (0.1, 0.5)  # seconds before the second and the third try

Result = TypeVar("Result")


def retried(action: Callable[[], Result], final: Collection[int] = ()) -> Result:
    """The result of `action`, tried up to three times while it raises OSError; an errno in `final` is raised at once."""
    for wait in WAITS:
        try:
            return action()
        except OSError as error:
            if error.errno in final:
                raise
            time.sleep(wait)
    return action()
