"""Display the progress of a run: a live panel on a terminal, otherwise one line per report.

The training process itself redraws the panel, at the end of steps and between batches of a validation pass, at most every `REDRAW` seconds.
No thread is used. The package rich is imported when a panel is drawn.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from linnaeus.reporting.formatting import format_duration, format_loss, pass_words
from linnaeus.reporting.terminal.brief_report import brief_report
from linnaeus.reporting.terminal.console import CONSOLE_ONLY, is_terminal
from linnaeus.reporting.terminal.live import REDRAW, start_live
from linnaeus.reporting.terminal.progress_report import ReportData

log = logging.getLogger("linnaeus")

ALARM_REPORTS = 5  # reports that show an alarm in the panel
MOST_VALUES = 1000  # reports whose values are drawn
LONG_PASS = 60.0  # seconds between two lines about a validation pass without a panel


@dataclass
class View:
    """Content of the panel of a run.

    left: estimated seconds until the end of the run; None before there is an estimate.
    left_without_validation: True if `left` excludes the remaining validation passes, because no pass has been timed yet.
    running: validation pass in progress: (name in words, batches done, all batches, seconds left or None); None without a pass.
    report: the last progress report.
    accuracy: task -> newest top-1 accuracy on the validation data, 0 to 1.
    notice: a line for the reader, such as that a request to stop was received.
    validated: (step, text such as `loss 0.9100`) of the newest validation; None before the first one.
    curves: name in a row, such as `train/loss` -> values in the last `MOST_VALUES` reports of this launch, the oldest first.
    alarm: text of the newest alarm; "" if more than `ALARM_REPORTS` reports have followed it."""

    total_steps: int
    step: int = 0
    left: float | None = None
    left_without_validation: bool = False
    running: tuple[str, int, int, float | None] | None = None
    report: ReportData | None = None
    accuracy: Mapping[str, float] = field(default_factory=dict)
    notice: str = ""
    validated: tuple[int, str] | None = None
    curves: dict[str, list[float]] = field(default_factory=dict)
    alarm: str = ""


class ProgressDisplay:
    """Display of the progress of a run, a context manager. Within `with`, a live panel is shown on rank 0 if `style` (`logger.console`) is
    auto or live and stdout is a terminal.

    `due` is cheap enough to be called at every step: without a panel it returns at once, otherwise it reads a clock."""

    def __init__(self, total_steps: int, style: str = "auto", is_master: bool = True) -> None:
        terminal = is_terminal()
        self.is_master = is_master
        self.live = is_master and style in ("auto", "live") and terminal
        self.prints = is_master and style != "quiet"  # a line takes 0.06 ms
        if is_master and style == "live" and not terminal:
            log.warning("logger.console=live: the output is not a terminal, so there is a line for each report instead")
        self._live: Any = None
        self._view = View(total_steps)
        self._next_redraw = 0.0
        self._report: ReportData | None = None
        self._news = 0  # further reports for which the newest alarm is shown

    def __enter__(self) -> ProgressDisplay:
        if not self.live:
            return self
        stdout, stderr = sys.stdout, sys.stderr
        self._live = start_live(self._render)

        def bypass() -> None:  # in a forked process: another thread may have held the display's lock at the fork
            sys.stdout, sys.stderr = stdout, stderr

        os.register_at_fork(after_in_child=bypass)
        self._redraw()  # the first update may take long
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None

    # -- training --------------------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Return True if there is a panel and it is time to redraw it. The caller then calls `update`."""
        return self._live is not None and time.monotonic() >= self._next_redraw

    def update(self, step: int, left: float | None, validation_included: bool) -> None:
        """Redraw the panel with `step` updates done and `left` seconds until the end of the run; `left` is None without an estimate.

        validation_included: True if the estimate includes the remaining validation passes."""
        self._view.step, self._view.left, self._view.left_without_validation = step, left, not validation_included
        self._redraw()

    def report(self, data: ReportData) -> None:
        """Put a progress report into the panel, which shows it at the next redraw.

        Without a panel, log the report in short (`brief_report`): one line, and a second line if settings have changed since the last
        report. With `logger.console=quiet` log nothing."""
        previous, self._report = self._report, data
        if not self.live:
            if self.prints:
                log.info(brief_report(data, previous), extra=CONSOLE_ONLY)
            return
        self._view.report, self._view.step = data, data.step
        self._news -= 1
        if self._news < 0:
            self._view.alarm = ""
        for name in ("train/loss", "train/grad_norm", "train/alarms", *(f"train/{task}/loss" for task in data.tasks)):
            if name in data.row:
                self._view.curves.setdefault(name, []).append(data.row[name])
                del self._view.curves[name][:-MOST_VALUES]

    def alarm(self, text: str) -> None:
        """Show the alarm `text` in the panel instead of the numbers of the report, until `ALARM_REPORTS` more reports have been made."""
        self._view.alarm, self._news = text, ALARM_REPORTS

    def start(self, step: int) -> None:
        """Set the step that the panel shows at the start. step: number of updates that earlier launches have made."""
        self._view.step = step

    def results(self, step: int, results: Mapping[str, float], tasks: tuple[str, ...]) -> None:
        """Put the loss and the top-1 accuracies of a validation at `step` into the panel; without a panel do nothing.

        results: metric key -> value, of any validation passes; only the pass without masked metadata (`val`, otherwise `val_ema`) is
        shown."""
        if self.live:
            loss = next((results[key] for key in ("val/loss", "val_ema/loss") if key in results), None)
            if loss is not None:
                self._view.validated = (step, f"loss {format_loss(loss)}")
            keys = {task: next((key for key in (f"val/{task}/top1", f"val_ema/{task}/top1") if key in results), None) for task in tasks}
            self._view.accuracy = {**self._view.accuracy, **{task: results[key] for task, key in keys.items() if key is not None}}

    # -- validation ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def validation(self, step: int, key: str, total: int, left_after: float | None) -> Iterator[Callable[[int], None]]:
        """Show a validation pass of `total` batches at `step` while the `with` block runs. Yield a function to call with the number of
        batches done.

        Without a panel, log a line every `LONG_PASS` seconds. key: name of the pass, such as `val_mask_meta`. left_after: estimated seconds
        from the end of this pass to the end of the run; None if unknown."""
        self._view.step = step
        words, start = pass_words(key), time.monotonic()
        next_line = start + LONG_PASS

        def update(done: int) -> None:
            nonlocal next_line
            now = time.monotonic()
            left = (now - start) * (total - done) / done if done else None
            if self.due():
                self._view.running = (words, done, total, left)
                if left_after is not None and left is not None:
                    self._view.left = left_after + left
                self._redraw()
            elif self._live is None and self.is_master and now >= next_line and left is not None:
                next_line = now + LONG_PASS
                log.info("%s: batch %d of %d, %s left", words, done, total, format_duration(left), extra=CONSOLE_ONLY)

        update(0)
        try:
            yield update
        finally:
            self._view.running = None

    # -- notices ---------------------------------------------------------------------------------------------------------

    def notice(self, text: str) -> None:
        """Show the line `text` at once; on ranks other than 0 do nothing.

        A signal handler may call this: `text` is written without the locks of rich and logging. With a panel, `text` replaces the panel's
        last row, so that the next redraw finds the cursor at its place. Without a panel, it is written to stderr."""
        if not self.is_master:
            return
        self._view.notice = text
        columns = shutil.get_terminal_size().columns
        line = f"\r\x1b[2K{text[: columns - 1]}" if self._live is not None else f"{text}\n"
        with contextlib.suppress(OSError):
            os.write(1 if self._live is not None else 2, line.encode())

    # -- drawing ---------------------------------------------------------------------------------------------------------

    def _render(self, width: int) -> Any:
        from linnaeus.reporting.terminal.panel import render

        return render(self._view, width)

    def _redraw(self) -> None:
        self._next_redraw = time.monotonic() + REDRAW
        try:
            self._live.refresh()
        except OSError:  # the terminal is gone
            self._live = None
