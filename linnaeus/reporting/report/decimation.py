"""Read the rows of a JSONL file as curves of at most 2,000 points each, so that a large file needs little memory.

The rows are divided into at most 1,000 blocks of equal length. A curve keeps the lowest and the highest value of each block, so that spikes
remain visible, and the mean, for a smoothed line. Of a file of at most 1,000 rows, all values are kept.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from linnaeus.reporting.rows import complete_lines, parse_row

BLOCKS = 1000

Points = list[tuple[float, float]]  # (global_step, value)


@dataclass
class Curve:
    """Values of one key over steps, as (step, value) pairs.

    `points`: lowest and highest value of each block, in the order of steps, at most 2 x BLOCKS. `means`: (mean step, mean value) of each
    block. `first`, `last`: first and last finite value. `count`: number of finite values. `not_finite`: number of values that are NaN,
    infinite or null."""

    points: Points = field(default_factory=list)
    means: Points = field(default_factory=list)
    count: int = 0
    not_finite: int = 0
    first: tuple[float, float] = (0.0, math.nan)
    last: tuple[float, float] = (0.0, math.nan)

    @classmethod
    def of(cls, points: Points) -> "Curve":
        """Return a curve with all of `points`."""
        curve = cls()
        for step, value in points:
            curve.add([(value, step)])
        return curve

    def add(self, block: list[tuple[float, float]]) -> None:
        """Add a block, not empty, of finite (value, step) pairs in the order of steps."""
        (low, low_step), (high, high_step) = min(block), max(block)
        ends = [(low_step, low), (high_step, high)] if low_step <= high_step else [(high_step, high), (low_step, low)]
        self.points += ends if low_step != high_step else ends[:1]
        size = len(block)
        self.means.append((sum(step for _, step in block) / size, sum(value for value, _ in block) / size))
        self.first = (block[0][1], block[0][0]) if not self.count else self.first
        self.last = (block[-1][1], block[-1][0])
        self.count += size

    def smooth(self, span: float = 0.04) -> Points:
        """Return the centred moving average of `means`. `span`: fraction of the blocks in the window, which is narrower near both ends."""
        found = self.means
        half, sums, means = max(1, round(span * len(found) / 2)), [0.0, *accumulate(y for _, y in found)], []
        for i, (x, _) in enumerate(found):
            reach = min(half, i, len(found) - 1 - i)
            means.append((x, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)))
        return means


def read_curves(path: Path) -> dict[str, Curve]:
    """Return key -> curve for the keys of a JSONL file that have a number in some row, in the order of their first appearance; {} without
    the file. Damaged lines are ignored."""
    curves: dict[str, Curve] = {}
    lines = sum(1 for _ in complete_lines(path)) if path.is_file() else 0
    width = max(1, -(-lines // BLOCKS))
    rows = _rows(path) if lines else iter(())
    while block := list(islice(rows, width)):
        values: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in block:
            step = row["global_step"]
            for name, value in row.items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    values[name].append((value, step))
                elif not isinstance(value, str):
                    curves.setdefault(name, Curve()).not_finite += 1
        values.pop("global_step", None)
        for name, found in values.items():
            curves.setdefault(name, Curve()).add(found)
    return curves


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in complete_lines(path):
        row = parse_row(line)
        if row is not None:
            yield row
