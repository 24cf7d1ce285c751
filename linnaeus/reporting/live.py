"""Show rows at the bottom of the terminal that are redrawn in place, while the lines of the logger appear above them. No thread is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.live import Live

REDRAW = 0.25  # seconds between two redraws


def start_live(render: Callable[[int], Any]) -> Live:
    """Start a live display of rich and return it; its `refresh` redraws the rows and its `stop` removes them. `render(columns)` returns the
    rows for a terminal of that width.

    Lines that are printed meanwhile are not wrapped, so that a path in them can be copied."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, soft_wrap=True)
    live = Live(console=console, auto_refresh=False, transient=True, get_renderable=lambda: render(console.width))
    live.start()
    console.show_cursor(True)  # a killed process could not show it again
    return live
