"""Propose another gradient limit to a run whose gradients are clipped in most updates."""

from __future__ import annotations

import logging
import statistics

log = logging.getLogger("linnaeus")

ROWS = 20  # of metrics before the notice
MOST = 0.5  # share of clipped updates above which it is logged
OUTLIER = 4.0  # proposed limit over the median norm


class ClippedUpdates:
    """Gradient norms of the rows of this launch, until the notice is due. The notice is logged once."""

    def __init__(self) -> None:
        self._norms: list[float] = []

    def add(self, norm: float, limit: float | None) -> None:
        """Add the norm before clipping of a logged update. Log the notice at row `ROWS` if most norms are above `limit`."""
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
