"""Draw the schedule of a run as rows of text for a terminal: the learning rate, ramps, validations and checkpoints over the steps.

A row has a column of the picture for each equal part of the run. A curve shows the value at the first step of that part, from 0 up to the
largest value (ramps: up to 1)."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Sequence

from linnaeus.reporting.formatting import ASCII_BARS, BARS, sparkline
from linnaeus.schedule.resolved import ResolvedSchedule

LEAST_COLUMNS = 80
MARK = "|"


def schedule_rows(
    resolved: ResolvedSchedule, lr_at: Callable[[int], float], columns: int | None = None, ascii_only: bool | None = None
) -> str:
    """Return the picture, as wide as the terminal, but at least `LEAST_COLUMNS` columns. Values that are always 0 and events that never
    occur are left out.

    lr_at: step -> learning rate of the update made at this step. columns: width; None: that of the terminal. ascii_only: True to use only
    ASCII characters; None: if stdout cannot encode others."""
    if ascii_only is None:
        ascii_only = not _encodes(BARS)
    columns = max(LEAST_COLUMNS, columns or shutil.get_terminal_size((LEAST_COLUMNS, 24)).columns)
    total, bars = resolved.total_steps, ASCII_BARS if ascii_only else BARS
    ramps = {name: ramp for name, ramp in resolved.ramps().items() if ramp.start or ramp.end}
    events = {name: every.steps() for name, every in resolved.events().items() if name.startswith("validate") or name == "checkpoint"}
    events = {name: steps for name, steps in events.items() if steps}
    largest = max([lr_at(step) for step in first_steps(total, columns)], default=0.0)
    notes = {"learning rate": f"up to {largest:.3g}"}
    notes |= {name: f"{ramp.start:g}" if ramp.is_constant else f"{ramp.start:g} to {ramp.end:g}" for name, ramp in ramps.items()}
    notes |= {name: f"{len(steps):,} x" for name, steps in events.items()}
    names = 2 + max(map(len, notes))
    width = columns - 2 - names - 2 - max(map(len, notes.values()))
    steps = first_steps(total, width)
    rows = {"learning rate": sparkline([lr_at(step) for step in steps], width, (0.0, largest), bars)}
    rows |= {name: sparkline([ramp.at(step) for step in steps], width, (0.0, 1.0), bars) for name, ramp in ramps.items()}
    rows |= {name: marks(found, total, width, "." if ascii_only else "·") for name, found in events.items()}
    lines = [f"  {name:<{names}}{row}  {notes[name]}" for name, row in rows.items()]
    middle = f"{total // 2:,}" if total >= 10 else ""
    axis = f"0{middle:^{width - 1}}"[: width - len(f"{total:,}")] + f"{total:,}"
    return "\n".join(["picture", *lines, f"  {'step':<{names}}{axis}"])


def first_steps(total: int, width: int) -> list[int]:
    """Return the first step of each of `width` equal parts of a run of `total` steps. In a run of fewer steps, steps repeat."""
    return [column * total // width for column in range(width)]


def marks(steps: Sequence[int], total: int, width: int, background: str) -> str:
    """Return a row with a mark in the column of each of `steps`, which are counted after an update (1 after the first)."""
    marked = {math.ceil(step * width / total) - 1 for step in steps}
    return "".join(MARK if column in marked else background for column in range(width))


def _encodes(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
