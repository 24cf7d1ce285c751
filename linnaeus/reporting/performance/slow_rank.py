"""Find a process that is slower than the others (a straggler), and the section of the update that takes longer in it.

Each report has the seconds of an update in three sections for each process, without the time spent waiting for other processes: `data`
(waiting for its loader), `forward and backward`, and `host` (checks of the batch, the optimizer, everything else). A process is slow in a
report if its sum over the three sections is more than `RATIO` = 1.12 times the median sum of the other processes, and at least `LEAST`
seconds longer. `SlowRank` warns after two successive reports with a slow process. With noise of 5 %, equal processes have a ratio below
1.05 / 0.95 = 1.11, and a process that takes 25 % longer has a ratio above 1.25 x 0.95 / 1.05 = 1.13.

If the same process is slow in each report, its machine or GPU is the cause. If waits for data occur in one process after another, the data
are the cause: a few slow files, or a slow disk that all processes read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from linnaeus.reporting.formatting import format_seconds

SECTIONS = DATA, COMPUTE, HOST = ("data", "forward and backward", "host")
RATIO = 1.12
LEAST = 0.0005  # least difference, in seconds per update, from the median of the others


@dataclass(frozen=True)
class Slow:
    """Process that is slower than the others in one report.

    rank: process rank. section: the section of the update, one of `SECTIONS`, in which the process exceeds the median of the others most.
    ratio: seconds of its update divided by the median of the others. seconds: seconds per update in `section`, minus the median of the
    others."""

    rank: int
    section: str
    ratio: float
    seconds: float


def slowest(table: Sequence[Sequence[float]]) -> Slow | None:
    """Return the process with the longest update if it is slow, otherwise None. Return None for a single process.

    A process is slow if its update takes more than `RATIO` times as long as the median of the others, and at least `LEAST` seconds longer.
    `table`: seconds per update, [W][3] for W ranks and the `SECTIONS`."""
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
    """Rules for the warnings about slow processes in a launch, and the state that they need.

    A process causes a warning if it is slow in the same section in two successive reports. In the section `data`, another process may be
    slow in the second report; the warning is about the process of the second report. While this process stays slow, the next warning
    follows only if its slow section changes.

    If another process becomes slow instead, there is a warning too; in the section `data`, only if this process was not slow in `data`
    before. After two successive reports without a slow process, each process can cause a warning again.

    said: the process of the newest warning; None before a warning, and once this process is as fast as the others again."""

    def __init__(self) -> None:
        self.said: Slow | None = None
        self._before: Slow | None = None
        self._ranks: list[int] = []  # ranks that have waited for data

    def report(self, step: int, table: Sequence[Sequence[float]]) -> str | None:
        """Return a warning about a slow process by the rules of the class, otherwise None.

        At the second successive report without a slow process after a warning, return a line that the process is as fast as the others
        again. table: seconds per update since the last report, [W][3] for W ranks and the `SECTIONS`."""
        found, before = slowest(table), self._before
        self._before = found
        if found is None:
            ended, self.said = self.said if before is None else None, self.said if before is not None else None
            return f"process rank {ended.rank} is as fast as the others again at step {step:,}" if ended is not None else None
        if before is None or before.section != found.section or (before.rank != found.rank and found.section != DATA):
            return None
        said, waited = self.said, found.section == DATA and found.rank in self._ranks
        if found.section == DATA:
            self._ranks = list(dict.fromkeys([*self._ranks, before.rank, found.rank]))
        if said is not None and said.section == found.section and (said.rank == found.rank or waited):
            return None
        self.said = found
        return self._line(step, found)

    def _line(self, step: int, found: Slow) -> str:
        line = (
            f"process rank {found.rank} takes {found.ratio:.2f} x as long as the others at step {step:,}: "
            f"{format_seconds(found.seconds)} more per update in {found.section}, and the others wait for it"
        )
        if found.section != DATA:
            return f"{line}. Its machine or GPU is slow, or other programs use it"
        if len(self._ranks) > 1:
            ranks = ", ".join(map(str, self._ranks))
            return f"{line}. The slowest rank changes ({ranks}): the data or a shared disk is slow, not a machine"
        return f"{line}. If later warnings name the same rank, its machine or disk is slow; if they name others, the data are slow to read"
