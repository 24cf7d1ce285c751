"""Find a process that is slower than the others of its group, and the section of the update in which it is.

Each report has the seconds that each process needs for an update in three sections, without waiting for the others: `data` (waiting for its
loader), `forward and backward`, and `host` (checks of the batch, the optimizer, everything else). A process is slow if the sum is more than
`RATIO` times the median of the others in two successive reports. With noise of 5 % the ratio stays below 1.05 / 0.95 = 1.11, and that of a
process that is 25 % slower above 1.25 x 0.95 / 1.05 = 1.13.

A slow computation stays with its machine or GPU. A wait for data that moves from process to process comes from the data: a few slow files
or a slow disk that all share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from linnaeus.reporting.formatting import format_seconds

SECTIONS = DATA, COMPUTE, HOST = ("data", "forward and backward", "host")
RATIO = 1.12
LEAST = 0.0005  # seconds an update by which a slow process is slower


@dataclass(frozen=True)
class Slow:
    """A process that is slower than the others in one report.

    `ratio`: its seconds over the median of the others. `seconds`: by which its `section` takes longer in an update."""

    rank: int
    section: str
    ratio: float
    seconds: float


def slowest(table: Sequence[Sequence[float]]) -> Slow | None:
    """Return the process that is slower than the others; None if there is none. `table`: seconds of each of `SECTIONS` for each rank."""
    totals = [sum(row) for row in table]
    if len(totals) < 2:
        return None
    rank = max(range(len(totals)), key=totals.__getitem__)
    usual = median(total for other, total in enumerate(totals) if other != rank)
    if usual <= 0 or totals[rank] <= RATIO * usual or totals[rank] - usual < LEAST:
        return None
    excess = [table[rank][i] - median(row[i] for other, row in enumerate(table) if other != rank) for i in range(len(SECTIONS))]
    section = max(range(len(SECTIONS)), key=excess.__getitem__)
    return Slow(rank, SECTIONS[section], totals[rank] / usual, excess[section])


class SlowRank:
    """Watch over the reports of a launch.

    Each slow process is named once for each section, and again after it was as fast as the others."""

    def __init__(self) -> None:
        self._before: Slow | None = None
        self._said: Slow | None = None
        self._ranks: list[int] = []  # that have waited for data

    def report(self, step: int, table: Sequence[Sequence[float]]) -> str | None:
        """Return a line for the log if it is due. `table`: seconds of each of `SECTIONS` for each rank, since the last report."""
        found, before = slowest(table), self._before
        self._before = found
        if found is None:
            ended, self._said = self._said if before is None else None, self._said if before is not None else None
            return f"process rank {ended.rank} is as fast as the others again at step {step:,}" if ended is not None else None
        if before is None or before.section != found.section or (before.rank != found.rank and found.section != DATA):
            return None
        if found.section == DATA:
            self._ranks = list(dict.fromkeys([*self._ranks, before.rank, found.rank]))
        said = self._said
        moved = said is not None and said.section == DATA and said.rank != found.rank
        if said is not None and said.section == found.section and not moved:
            return None
        self._said = found
        return self._line(step, found)

    def _line(self, step: int, found: Slow) -> str:
        line = (
            f"process rank {found.rank} is {found.ratio:.2f} x as slow as the others at step {step:,}: "
            f"{format_seconds(found.seconds)} more an update in {found.section}, and all wait for it"
        )
        if found.section != DATA:
            return f"{line}. Its machine or GPU is slow, or other programs use it"
        if len(self._ranks) > 1:
            ranks = ", ".join(map(str, self._ranks))
            return f"{line}. The slowest rank changes ({ranks}): the data or a shared disk are slow, not a machine"
        return f"{line}. If it stays with this rank, its machine or disk is slow; if it moves to others, the data are"
