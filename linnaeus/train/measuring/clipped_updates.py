"""Log a line that proposes another `trainer.max_grad_norm` if the gradients are clipped in most updates."""

from __future__ import annotations

import logging
import math
import statistics

log = logging.getLogger("linnaeus")

ROWS = 20  # number of log rows before the notice
MOST = 0.5  # share of clipped updates above which it is logged
OUTLIER = 4.0  # proposed limit over the median norm


class ClippedUpdates:
    """Collector of gradient norms, for the line described in the module docstring. The line is logged at most once, after `ROWS` norms."""

    def __init__(self) -> None:
        self._norms: list[float] = []

    def add(self, norm: float, limit: float | None) -> None:
        """Add `norm`, a gradient norm before clipping. Call this once per row of metrics, with the norm of the newest update.

        The call number `ROWS` logs the proposal if more than the fraction `MOST` of all norms is above `limit`. Later calls do nothing.
        `limit`: `trainer.max_grad_norm`. With None or 0, and for the norm of a skipped update, which is not finite, the call does
        nothing."""
        if not limit or not math.isfinite(norm) or len(self._norms) == ROWS:
            return
        self._norms.append(norm)
        share = sum(norm > limit for norm in self._norms) / len(self._norms)
        if len(self._norms) == ROWS and share > MOST:
            middle = statistics.median(self._norms)
            log.info(
                "%.0f %% of the logged updates are clipped: the norm of the gradient is %.3g in the median, and trainer.max_grad_norm=%g; "
                "trainer.max_grad_norm=%.2g clips only outliers", 100 * share, middle, limit, OUTLIER * middle,
            )  # fmt: skip
