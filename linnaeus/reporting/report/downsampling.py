"""Read the rows of a JSONL file as curves of at most 2,000 points each, so that a large file needs little memory.

The file is divided into at most 1,000 blocks of consecutive rows. All blocks have an equal number of rows; the last block may have fewer.
For each block, a curve keeps the lowest and the highest value, so that spikes remain visible, and the mean, for a smoothed line. If the
file has at most 1,000 rows, all values are kept.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from linnaeus.reporting.jsonl.rows import complete_lines, parse_row

BLOCKS = 1000

Points = list[tuple[float, float]]  # (global_step, value)


@dataclass
class Curve:
    """Values of one key over steps, downsampled in blocks.

    points: (step, value) of the lowest and the highest value of each block, in the order of steps. means: (mean step, mean value) of each
    block. first, last: (step, value) of the first and the last finite value; (0, NaN) without finite values. count: number of finite
    values. not_finite: number of values that are NaN, an infinity, null or a list."""

    points: Points = field(default_factory=list)
    means: Points = field(default_factory=list)
    count: int = 0
    not_finite: int = 0
    first: tuple[float, float] = (0.0, math.nan)
    last: tuple[float, float] = (0.0, math.nan)

    @classmethod
    def of(cls, points: Points) -> "Curve":
        """Return a curve that keeps all `points`, each as a block. points: (step, value) pairs with finite values, in the order of
        steps."""
        curve = cls()
        for step, value in points:
            curve.add([(value, step)])
        return curve

    def add(self, block: list[tuple[float, float]]) -> None:
        """Append a block. block: (value, step) pairs with finite values, in the order of steps; at least one pair."""
        (low, low_step), (high, high_step) = min(block), max(block)
        ends = [(low_step, low), (high_step, high)] if low_step <= high_step else [(high_step, high), (low_step, low)]
        self.points += ends if low_step != high_step else ends[:1]
        size = len(block)
        self.means.append((sum(step for _, step in block) / size, sum(value for value, _ in block) / size))
        self.first = (block[0][1], block[0][0]) if not self.count else self.first
        self.last = (block[-1][1], block[-1][0])
        self.count += size

    def smooth(self, span: float = 0.04) -> Points:
        """Return the moving average of the blocks' means: (mean step, average), one pair per block.

        span: size of the window as a fraction of the number of blocks; the window has at least 3 blocks and is centred on the block. Near
        the ends of the curve it has fewer blocks."""
        found = self.means
        half, sums, means = max(1, round(span * len(found) / 2)), [0.0, *accumulate(y for _, y in found)], []
        for i, (x, _) in enumerate(found):
            reach = min(half, i, len(found) - 1 - i)
            means.append((x, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)))
        return means


def read_curves(path: Path) -> dict[str, Curve]:
    """Return {key: curve} for the keys of a JSONL file, except `global_step`; {} if the file does not exist.

    A key whose values are all text is left out. A key whose values are all null or not finite has a curve without points. Damaged lines are
    ignored."""
    curves: dict[str, Curve] = {}
    lines = sum(1 for _ in complete_lines(path)) if path.is_file() else 0
    width = max(1, -(-lines // BLOCKS))
    rows = read_rows(path)
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


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file; none if the file does not exist. Damaged lines are left out."""
    for line in complete_lines(path) if path.is_file() else ():
        row = parse_row(line)
        if row is not None:
            yield row
