"""Measure variants in interleaved rounds: ratios within a round, and a bootstrap interval of the median ratio. All benchmarks use this.

A round runs every variant once, or in several slices that alternate with those of the other variants. The order is rotated by one each
time, so that a busy machine or a warm cache affects all variants alike. A ratio is taken within a round, and its median over the rounds;
medians of different rounds are never divided. With slices, the ratio is taken within each slice; its median over the rounds is computed for
each place in a round, since a rare task may always fall into the same slice, and the mean over the places is reported. A bar is missed only
if the whole 95 % interval of this ratio lies above it, after at least `ROUNDS` rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, write_numbers

ROUNDS = 15
LONG = 20.0  # seconds
Seconds = dict[str, list[float]]  # variant -> seconds of each round, or of each slice of each round


@dataclass(frozen=True)
class Bar:
    """A claim: the median ratio of `variant` to `peer` is at most `at_most`."""

    variant: str
    peer: str
    at_most: float


@dataclass(frozen=True)
class Ratio:
    """Median over rounds of a ratio taken within each round, with slices the mean of these medians over the places in a round, and its
    bootstrap interval (percentile, 95 %) over rounds."""

    median: float
    low: float
    high: float


def measure(variants: Mapping[str, Callable[[int], float]], rounds: int, slices: int = 1) -> Seconds:
    """Run every variant in every round and return the seconds of each slice. `variants`: name -> function that runs one slice and returns
    its seconds. The argument of the function is the number of the slice, counted over all rounds. `slices`: number of slices in a round;
    short ones that alternate cancel changes of the machine's speed.

    Round 0 is a warm-up, whose seconds are discarded. The end of a round that takes more than `LONG` is printed to stderr."""
    names, seconds = list(variants), {name: list[float]() for name in variants}
    start = time.monotonic()
    for number in range((rounds + 1) * slices):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(variants[name](number))
        if (number + 1) % slices == 0:
            start, before = time.monotonic(), start
            if start - before > LONG:
                print(f"round {number // slices} of {rounds}: {start - before:.0f} s", file=sys.stderr, flush=True)
    return {name: taken[slices:] for name, taken in seconds.items()}


def ratio(seconds: Seconds, variant: str, peer: str, resamples: int = 10_000, slices: int = 1) -> Ratio:
    """Return the ratio of `variant` to `peer`. The bootstrap uses a fixed seed, so the same seconds give the same interval.

    `slices`: number of slices in a round."""
    ratios = (np.array(seconds[variant]) / np.array(seconds[peer])).reshape(-1, slices)
    draws = np.random.default_rng(0).integers(0, len(ratios), (resamples, len(ratios)))
    medians = np.mean([np.median(place[draws], axis=1) for place in ratios.T], axis=0)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Ratio(float(np.median(ratios, axis=0).mean()), float(low), float(high))


def verdict(found: Ratio, bar: Bar, rounds: int) -> str:
    """Return "held" or "MISSED" for a bar, or the reason why neither can be decided."""
    if rounds < ROUNDS:
        return f"no verdict under {ROUNDS} rounds"
    if found.high <= bar.at_most:
        return "held"
    return "MISSED" if found.low > bar.at_most else "open: the interval covers the bar"


def report(
    title: str, seconds: Seconds, base: str, bars: Sequence[Bar], unit: tuple[float, str], notes: Mapping[str, str], slices: int = 1
) -> dict[str, Any]:
    """Print the table of one comparison and return it for `--json`. Medians and lowest seconds are of slices if a round has several.

    `base`: the variant to which ratios are computed. `unit`: (factor on seconds, name). `notes`: variant -> text at the end of its row.
    `slices`: number of slices in a round."""
    factor, name = unit
    print(f"\n{title}\n{'':34}{'median ' + name:>14}{'lowest':>10}{'over ' + base:>16}{'95 % interval':>18}")
    rows = {}
    for variant, times in seconds.items():
        found = ratio(seconds, variant, base, slices=slices)
        print(
            f"{variant:34}{statistics.median(times) * factor:14.3f}{min(times) * factor:10.3f}{found.median:16.3f}"
            f"{f'{found.low:.3f} to {found.high:.3f}':>18}  {notes.get(variant, '')}".rstrip()
        )
        rows[variant] = {"seconds": times, "ratio": asdict(found), "note": notes.get(variant, "")}
    checked = [_check(seconds, bar, slices) for bar in bars]
    return {"title": title, "base": base, "variants": rows, "bars": checked}


def _check(seconds: Seconds, bar: Bar, slices: int) -> dict[str, Any]:
    found = ratio(seconds, bar.variant, bar.peer, slices=slices)
    said = verdict(found, bar, len(seconds[bar.variant]) // slices)
    print(f"  {bar.variant} / {bar.peer}: {found.median:.3f} ({found.low:.3f} to {found.high:.3f}), bar {bar.at_most:.2f}: {said}")
    return {**asdict(bar), **asdict(found), "verdict": said}


def arguments(description: str) -> argparse.ArgumentParser:
    """Return an argument parser with the options of every benchmark. `description` is the text of its `--help`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"interleaved rounds; fewer than {ROUNDS} give no verdict")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


def conclude(tables: Sequence[dict[str, Any]], file: Path | None) -> int:
    """Print the machine and write the tables to `file`, if given. Return the exit status: 1 if a bar was missed."""
    machine = describe_machine()
    print("\n" + ", ".join(f"{key} {value}" for key, value in machine.items()))
    if file is not None:
        write_numbers(file, {"machine": machine, "tables": list(tables)})
    return int(any(bar["verdict"] == "MISSED" for table in tables for bar in table["bars"]))
