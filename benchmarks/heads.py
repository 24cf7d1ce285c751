"""Compare hierarchical heads and losses with per-rank linear cross-entropy (the baseline), in real runs paired by seed.

    python -m benchmarks.heads biota                                                about 80 minutes on one core, 2 trials at once 45
    python -m benchmarks.heads plants480 data.path=FOLDER/plants480/manifest.csv    seeds also choose the split; no difference is a result
    python -m benchmarks.heads biota --variants marginal "conditional, HXE" --choose 0 --confirm 1 trainer.length=2epochs      a short trial

Every variant is trained on the seeds of `--choose`. Of those that lose at most half a point of species top-1 on average, the one with the
smallest hierarchical distance (HD@1) is trained again, with the baseline, on the seeds of `--confirm`, which the choice did not use. It is
confirmed if the paired 95 % interval of its HD@1 (Student's t over seeds) lies below 0 and it loses at most half a point there too. Mistake
severity is shown but proves nothing: it falls when easy samples are lost. Rows with CRM are the same trained models under another decision
rule, conditional risk minimisation.

Each trial is `python main.py` in its own process with one thread. If the command is stopped, the same command continues.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, write_numbers
from linnaeus.metrics.student import t_quantile

ROOT = Path(__file__).resolve().parents[1]
BASELINE = "linear"
VARIANTS = {
    BASELINE: [],
    "linear, label smoothing": ["loss=label_smoothing"],
    "linear, taxonomic smoothing": ["loss=taxonomic_smoothing"],
    "linear, soft labels": ["loss=soft_labels"],
    "conditional": ["head=conditional"],
    "conditional, HXE": ["head=conditional", "loss=conditional"],
    "conditional, finer ranks first": ["head=conditional", "loss=conditional", "loss.alpha=-0.1"],
    "hierarchical softmax": ["head=hierarchical_softmax"],
    "hierarchical softmax, gumbel": ["head=hierarchical_softmax", "head.routing=gumbel"],
    "marginal": ["head=marginal"],
    "marginal, finest label only": ["head=marginal", "loss=marginal"],
    "marginal, HXE": ["head=marginal", "loss=conditional"],
    "marginal, finer ranks first": ["head=marginal", "loss=conditional", "loss.alpha=-0.1"],
    "marginal, label smoothing": ["head=marginal", "loss=label_smoothing"],
    "marginal, taxonomic smoothing": ["head=marginal", "loss=taxonomic_smoothing"],
    "marginal, soft labels": ["head=marginal", "loss=soft_labels"],
}
EXPERIMENTS = {"biota": "biota_hard", "plants480": "plants480"}
MEASURES = {
    "HD@1": "hd1",
    "species top-1": "species/top1",
    "species macro": "species/macro_top1",
    "HD@5": "hd5",
    "HD@20": "hd20",
    "severity": "severity",
    "inconsistent": "inconsistent",
    "ECE": "species/ece",
}
CRM = {"hd1": "crm_hd1", "species/top1": "crm_top1", "hd5": "crm_hd5", "hd20": "crm_hd20", "severity": "crm_severity"}
TOP1_LOST = 0.005  # at most
Results = dict[str, list[dict[str, float]]]  # variant -> measures by name in `final`, one entry per seed


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of variant minus baseline, and its 95 % interval; the ends are NaN for a single seed."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Difference:
        d = np.array(ours) - np.array(theirs)
        if len(d) < 2:
            return cls(float(d.mean()), float("nan"), float("nan"))
        half = t_quantile(len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))
        return cls(float(d.mean()), float(d.mean() - half), float(d.mean() + half))


class Study:
    """Trials of one experiment with each of `variants` (name -> settings), in run directories below `root`."""

    def __init__(
        self, data: str, overrides: Sequence[str], root: Path, parallel: int, variants: Mapping[str, Sequence[str]] = VARIANTS
    ) -> None:
        self.data, self.overrides, self.root, self.parallel = data, list(overrides), root, parallel
        self.variants = variants

    def run(self, variants: Sequence[str], seeds: Sequence[int]) -> Results:
        """Train every variant with every seed and return the results. Trials that finished earlier are read, not trained again."""
        pairs = [(variant, seed) for seed in seeds for variant in variants]
        with ThreadPoolExecutor(self.parallel) as pool:
            found = dict(zip(pairs, pool.map(lambda pair: self._trial(*pair), pairs), strict=True))
        return {variant: [found[variant, seed] for seed in seeds] for variant in variants}

    def folder(self, variant: str, seed: int) -> Path:
        """Return the run directory of the trial of a variant with a seed."""
        return self.root / EXPERIMENTS[self.data] / f"{re.sub('[^a-z]+', '-', variant.lower())}-{seed}"

    def _trial(self, variant: str, seed: int) -> dict[str, float]:
        folder = self.folder(variant, seed)
        summary = folder / "summary.json"
        if not summary.exists() or json.loads(summary.read_text())["status"] != "finished":
            self._train(folder.name, [*self.variants[variant], f"seed={seed}", *self._split(seed)])
        content = json.loads(summary.read_text())
        final = {key.removeprefix("val/"): value for key, value in content["final"].items() if key.startswith("val/")}
        return {key: float("nan") if value is None else value for key, value in final.items()} | {
            "ms_per_step": content["timings"]["time/ms_per_step"]
        }

    def _split(self, seed: int) -> list[str]:
        return [f"data.split_seed={seed}"] if self.data == "plants480" else []

    def _train(self, name: str, overrides: Sequence[str]) -> None:
        """Train a run with the name `name`. Raise `SystemExit` with the end of its output if it fails."""
        fixed = [
            f"experiment={EXPERIMENTS[self.data]}",
            f"run.root={self.root}",
            f"run.name={name}",
            "trainer.threads=1",
            "logger.report=false",
        ]
        command = [sys.executable, "main.py", *fixed, *self.overrides, *overrides]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
        print(f"{name}: exit status {done.returncode}", file=sys.stderr, flush=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")


def under_crm(row: dict[str, float]) -> dict[str, float]:
    """Return the measures of the same model under conditional risk minimisation (CRM); NaN for measures that do not exist there."""
    return {key: row[CRM[key]] if key in CRM else float("nan") for key in MEASURES.values()}


def with_crm(results: Results) -> Results:
    return {
        name: rows
        for variant, own in results.items()
        for name, rows in ((variant, own), (f"{variant} + CRM", [under_crm(row) for row in own]))
    }


def choose(results: Results) -> str | None:
    """Return the variant with the smallest mean HD@1 among those that lose little top-1 accuracy; None if none is better than the
    baseline."""
    kept = [v for v in results if v != BASELINE and difference(results, v, "species/top1").mean >= -TOP1_LOST]
    best = min(kept, key=lambda v: difference(results, v, "hd1").mean, default=None)
    return best if best is not None and difference(results, best, "hd1").mean < 0 else None


def confirmed(results: Results, variant: str) -> bool:
    return difference(results, variant, "hd1").high < 0 and difference(results, variant, "species/top1").mean >= -TOP1_LOST


def difference(results: Results, variant: str, key: str) -> Difference:
    return Difference.of([row[key] for row in results[variant]], [row[key] for row in results[BASELINE]])


def markdown(results: Results) -> str:
    """Return a table of means over the seeds, and of the differences to the baseline in HD@1 and top-1 with their intervals."""
    lines = [f"| | {' | '.join(MEASURES)} | HD@1 - linear's | top-1 - linear's, points |", f"|---|{'---:|' * (len(MEASURES) + 2)}"]
    for variant, rows in with_crm(results).items():
        means = [float(np.mean([row[key] for row in rows])) for key in MEASURES.values()]
        both = {BASELINE: results[BASELINE], variant: rows}
        cells = [_shown(key, mean) for key, mean in zip(MEASURES.values(), means, strict=True)]
        differences = [_interval(difference(both, variant, "hd1"), 1), _interval(difference(both, variant, "species/top1"), 100)]
        lines.append(f"| {variant} | {' | '.join([*cells, *(['', ''] if variant == BASELINE else differences)])} |")
    return "\n".join(lines)


def _shown(key: str, value: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{100 * value:.2f}" if key.endswith(("top1", "inconsistent", "ece")) else f"{value:.4f}"


def _interval(d: Difference, factor: float) -> str:
    digits = 2 if factor == 100 else 4
    return f"{factor * d.mean:+.{digits}f} ({factor * d.low:+.{digits}f} to {factor * d.high:+.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=EXPERIMENTS)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--choose", type=int, nargs="+", default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--confirm", type=int, nargs="+", default=[3, 4, 5, 6, 7], metavar="SEED")
    parser.add_argument("--parallel", type=int, default=1, help="trials at once, a core each")
    parser.add_argument("--root", type=Path, default=ROOT / "outputs" / "heads", help="where the runs are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options, overrides = parser.parse_known_args()
    study = Study(options.data, overrides, options.root.resolve(), options.parallel)
    variants = [BASELINE, *(v for v in options.variants if v != BASELINE)]
    first = study.run(variants, options.choose)
    print(f"\n{options.data}, seeds {options.choose}\n\n{markdown(first)}")
    chosen = choose(first)
    second = study.run([BASELINE, chosen], options.confirm) if chosen else {}
    if chosen:
        print(f"\nchosen: {chosen}; seeds {options.confirm}\n\n{markdown(second)}")
    held = chosen is not None and confirmed(second, chosen)
    print(f"\n{chosen or 'nothing'} {'is confirmed' if held else 'is not confirmed' if chosen else 'beats the baseline'}")
    found: dict[str, Any] = {
        "machine": describe_machine(),
        "overrides": overrides,
        "choose": first,
        "chosen": chosen,
        "confirm": second,
        "confirmed": held,
    }
    if options.json:
        write_numbers(options.json, found)
    return int(not held and options.data == "biota")


if __name__ == "__main__":
    sys.exit(main())
