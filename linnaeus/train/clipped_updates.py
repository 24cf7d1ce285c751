"""Log a line that proposes another `trainer.max_grad_norm` if the gradients are clipped in most updates."""

from __future__ import annotations

import logging
import statistics

log = logging.getLogger("linnaeus")

ROWS = 20  # number of log rows before the notice
MOST = 0.5  # share of clipped updates above which it is logged
OUTLIER = 4.0  # proposed limit over the median norm


class ClippedUpdates:
    """Collector of the gradient norms of the first `ROWS` rows of metrics of this launch. It logs the proposal at most once."""

    def __init__(self) -> None:
        self._norms: list[float] = []

    def add(self, norm: float, limit: float | None) -> None:
        """Add `norm`, the gradient norm before clipping of the update of a row of metrics. At row number `ROWS`, log the proposal if more
        than the share `MOST` of the norms is above `limit`. Later calls do nothing.

        `limit` is `trainer.max_grad_norm`; with None nothing is done."""
        if limit is None or len(self._norms) == ROWS:
            return
        self._norms.append(norm)
        share = sum(norm > limit for norm in self._norms) / len(self._norms)
        if len(self._norms) == ROWS and share > MOST:
            middle = statistics.median(self._norms)
            log.info(
                "%.0f %% of the logged updates are clipped: the norm of the gradient is %.3g in the median, and trainer.max_grad_norm=%g; "
                "trainer.max_grad_norm=%.2g clips only outliers", 100 * share, middle, limit, OUTLIER * middle,
            )  # fmt: skip
