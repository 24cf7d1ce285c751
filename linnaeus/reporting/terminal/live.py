"""Show rows at the bottom of the terminal and redraw them in place, while the lines of the logger appear above them. No thread is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.live import Live

REDRAW = 0.25  # seconds between two redraws


def start_live(render: Callable[[int], Any]) -> Live:
    """Start a live display of the package rich and return it: `refresh()` redraws the rows, `stop()` removes them.

    render: function that returns the rows for a terminal of that many columns. Lines that are printed meanwhile are not wrapped, so that a
    path in them can be copied."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, soft_wrap=True)
    live = Live(console=console, auto_refresh=False, transient=True, get_renderable=lambda: render(console.width))
    live.start()
    console.show_cursor(True)  # a killed process could not show it again
    return live
