"""Rows at the bottom of the terminal that are redrawn, with the lines of the logger above them. There is no thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.live import Live

REDRAW = 0.25  # seconds between two redraws


def start_live(render: Callable[[int], Any]) -> Live:
    """Return rows that `refresh` redraws and `stop` removes. `render` returns them for a terminal of that many columns.

    Lines that are printed meanwhile are not broken: a path in them can be copied."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, soft_wrap=True)
    live = Live(console=console, auto_refresh=False, transient=True, get_renderable=lambda: render(console.width))
    live.start()
    console.show_cursor(True)  # a killed process could not show it again
    return live
