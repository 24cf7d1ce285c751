"""Measure the cost of heads, losses and metrics for trees of a thousand to a million leaves, compared with a plain softmax over the leaves.

    python -m benchmarks.tree_scale                    about 40 minutes, one core, 7 GB of memory at a million leaves
    python -m benchmarks.tree_scale --quick            1,000 and 10,000 leaves, two rounds: a short trial, no verdict
    python -m benchmarks.tree_scale --leaves 100000 --heads marginal --losses cross_entropy

Every head is measured with every loss (the two sampling routings only with cross-entropy), with one thread, batch 64, width 384.
`tree_step.py` defines a step and how its memory is counted, `big_trees.py` makes the trees. Each head at each size runs in its own process,
in which rounds interleave its losses and the plain softmax. Bars at 100,000 leaves: the best combination of a hierarchical head and a loss
takes at most 1.2 of the plain softmax, every other one at most 2, training metrics at most 0.1. Time and memory over the last two decades
grow with an exponent of at most 1.1. `mixed` has two labels per sample where the plain softmax has one, and has no bar. Exits with status 1
if a bar is missed beyond doubt.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.interleaved import ROUNDS, Bar, Ratio, arguments, conclude, ratio, verdict

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BAR_AT = 100_000  # leaves at which ratios have bars
BEST, OTHER, METRICS, EXPONENT = 1.2, 2.0, 0.1, 1.1
ONE_LOSS = ("hierarchical_softmax hard", "hierarchical_softmax gumbel")  # they differ from soft in the head alone
NOT_HIERARCHICAL = "linear"
# Of glibc: freed memory is kept. Else large tensors are mapped and zeroed again, every one of more than 32 MB: up to a third of all time,
# the plain softmax's too, and a step in the growth that is no head's.
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 30)}
Found = dict[tuple[int, str], dict[str, Any]]  # (leaves, head) -> what `measure_head` returns


@dataclass(frozen=True)
class Exponent:
    """Least-squares slope of log cost over log leaves, with a 95 % bootstrap interval over the rounds of each size."""

    median: float
    low: float
    high: float


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--leaves", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--heads", nargs="+", metavar="HEAD", help="some of the heads")
    parser.add_argument("--losses", nargs="+", metavar="LOSS", help="some of the losses: files of conf/loss")
    parser.add_argument("--holes", type=float, default=0.0, help="share of the inner taxa that lineages lack")
    parser.add_argument("--quick", action="store_true", help="1,000 and 10,000 leaves, two rounds")
    options = parser.parse_args()
    if options.quick:
        options.leaves, options.rounds = list(SIZES[:2]), 2
    os.environ |= {"OMP_NUM_THREADS": "1"} | KEEP  # of the processes that measure
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    found = measured(sorted(options.leaves), options.holes, options.heads, options.losses, options.rounds)
    tables = [table_of(leaves, {head: rest for (n, head), rest in found.items() if n == leaves}) for leaves in sorted(options.leaves)]
    if len(options.leaves) > 1:
        tables.append(growth(found, sorted(options.leaves)))
    return conclude(tables, options.json)


def measured(sizes: Sequence[int], holes: float, heads: Sequence[str] | None, losses: Sequence[str] | None, rounds: int) -> Found:
    """Measure every head at every size, one process after the other. Return the results of `measure_head`."""
    from benchmarks.tree_step import HEADS, LOSSES, measure_head

    found: Found = {}
    for leaves, head in itertools.product(sizes, heads or HEADS):
        chosen = tuple(losses or (LOSSES[:1] if head in ONE_LOSS else LOSSES))
        fewer = rounds if leaves <= BAR_AT else max(2, rounds // 3)
        repeats = max(1, 20_000 // leaves)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found[leaves, head] = process.submit(measure_head, leaves, holes, head, chosen, fewer, repeats).result()
        print(f"measured {head} at {leaves:,} leaves", file=sys.stderr, flush=True)
    return found


# -- one size ------------------------------------------------------------------------------------------------------------


def table_of(leaves: int, heads: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Print the costs at one size and return the table, with bars if the size has any."""
    plain = [second for head in heads.values() for second in head["variants"]["plain"]["seconds"]]
    title = f"{leaves:,} leaves: CPU time of head, loss and training metrics, over the plain leaf softmax alone"
    print(f"\n{title} ({1000 * statistics.median(plain):.1f} ms)")
    print(f"{'head':30}{'loss':21}{'ms':>9}{'wall':>9}{'ratio':>8}{'95 % interval':>17}{'metrics':>9}{'MiB':>8}")
    ratios: dict[tuple[str, str], Ratio] = {}
    metrics: dict[tuple[str, str], Ratio] = {}
    for name, head in heads.items():
        for loss, variant in head["variants"].items():
            if loss != "validation":
                row = ratios[name, loss] = over_plain(head, variant["seconds"])
                share = metrics[name, loss] = over_plain(head, variant["metrics"] or [0.0] * len(variant["seconds"]))
                print(_line(name, loss, variant, row, share))
    _validation(heads)
    bars = (
        _bars(ratios, metrics, min(len(v["seconds"]) for h in heads.values() for v in h["variants"].values())) if leaves == BAR_AT else []
    )
    return {"title": title, "leaves": leaves, "heads": heads, "bars": bars}


def over_plain(head: dict[str, Any], seconds: list[float]) -> Ratio:
    return ratio({"ours": seconds, "plain": head["variants"]["plain"]["seconds"]}, "ours", "plain")


def _line(head: str, loss: str, variant: dict[str, Any], found: Ratio, metrics: Ratio) -> str:
    return (
        f"{head:30}{loss:21}{1000 * statistics.median(variant['seconds']):9.2f}{1000 * statistics.median(variant['wall']):9.2f}"
        f"{found.median:8.3f}{f'{found.low:.3f} to {found.high:.3f}':>17}{metrics.median:9.3f}{variant['bytes'] / 2**20:8.1f}"
    )


def _validation(heads: dict[str, dict[str, Any]]) -> None:
    print("  all metrics of a validation batch of 64 (no bar), over the plain leaf softmax:")
    for name, head in heads.items():
        found = over_plain(head, head["variants"]["validation"]["seconds"])
        print(_line(name, "validation", head["variants"]["validation"], found, Ratio(0, 0, 0)))


def _bars(ratios: dict[tuple[str, str], Ratio], metrics: dict[tuple[str, str], Ratio], rounds: int) -> list[dict[str, Any]]:
    ours = {key: found for key, found in ratios.items() if key[1] not in ("plain", "mixed")}
    hierarchical = {key: found for key, found in ours.items() if key[0] != NOT_HIERARCHICAL}
    best = min(hierarchical, key=lambda key: hierarchical[key].median, default=None)
    checked = [_checked(key, found, BEST if key == best else OTHER, rounds, "plain") for key, found in ours.items()]
    checked += [_checked((head, f"metrics with {loss}"), metrics[head, loss], METRICS, rounds, "plain") for head, loss in ours]
    return checked


def _checked(key: tuple[str, ...], found: Ratio | Exponent, at_most: float, rounds: int, peer: str) -> dict[str, Any]:
    """Return the result of one bar. Print it if it is missed, undecided, or the bar of the best combination."""
    name = " + ".join(key)
    said = verdict(Ratio(**asdict(found)), Bar(name, peer, at_most), rounds)
    if said.startswith(("MISSED", "open")) or at_most == BEST:
        print(f"  {name} / {peer}: {found.median:.3f} ({found.low:.3f} to {found.high:.3f}), bar {at_most:.2f}: {said}")
    return {"variant": name, "peer": peer, "at_most": at_most, **asdict(found), "verdict": said}


# -- growth --------------------------------------------------------------------------------------------------------------


def growth(found: Found, sizes: Sequence[int]) -> dict[str, Any]:
    """Print the exponents of time and memory over the last two decades, and return the table with its bars."""
    title = "growth with the leaves over the last two decades: exponents of CPU time and of peak memory"
    print(f"\n{title}\n{'head':30}{'loss':21}{'time':>8}{'95 % interval':>17}{'memory':>9}")
    last = [size for size in sizes if size >= max(sizes) / 100]
    bars, rows = [], []
    for name in dict.fromkeys(head for _, head in found):
        for loss in found[last[0], name]["variants"]:
            variants = [found[size, name]["variants"][loss] for size in last]
            time = exponent(last, [variant["seconds"] for variant in variants])
            memory = exponent(last, [[variant["bytes"]] for variant in variants])
            print(f"{name:30}{loss:21}{time.median:8.3f}{f'{time.low:.3f} to {time.high:.3f}':>17}{memory.median:9.3f}")
            rows.append({"head": name, "loss": loss, "time": asdict(time), "memory": asdict(memory)})
            if loss not in ("plain", "validation") and len(last) > 2:
                rounds = ROUNDS if len(variants[0]["seconds"]) >= ROUNDS else 0
                bars += [_checked((name, loss, what), x, EXPONENT, rounds, "leaves") for what, x in (("time", time), ("memory", memory))]
    return {"title": title, "leaves": last, "rows": rows, "bars": bars}


def exponent(leaves: Sequence[int], costs: Sequence[Sequence[float]], resamples: int = 10_000) -> Exponent:
    """Return the exponent of the growth of the medians over the rounds. `costs`: for each size, the cost in each round."""
    logs = np.log(np.array(leaves, dtype=float))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    generator = np.random.default_rng(0)
    medians = [np.median(np.array(c)[generator.integers(0, len(c), (resamples, len(c)))], axis=1) for c in costs]
    slopes = weights @ np.log(medians)
    low, high = np.quantile(slopes, [0.025, 0.975])
    return Exponent(float(weights @ np.log([np.median(c) for c in costs])), float(low), float(high))


if __name__ == "__main__":
    sys.exit(main())
