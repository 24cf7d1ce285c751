"""Propose another `trainer.max_grad_norm` in the log if the gradients are clipped in most updates."""

from __future__ import annotations

import logging
import statistics

log = logging.getLogger("linnaeus")

ROWS = 20  # number of log rows before the notice
MOST = 0.5  # share of clipped updates above which it is logged
OUTLIER = 4.0  # proposed limit over the median norm


class ClippedUpdates:
    """Gradient norms of the first `ROWS` log rows of this launch. From them a notice may be logged, once."""

    def __init__(self) -> None:
        self._norms: list[float] = []

    def add(self, norm: float, limit: float | None) -> None:
        """Add the gradient norm, before clipping, of a logged update. At row `ROWS` log the notice if most norms are above `limit`.

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
