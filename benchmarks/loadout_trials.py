"""Train loadout models in several worlds and with other settings, and compare their completions: `python -m benchmarks.loadout --trials`.

A trial is `python main.py workload=loadout` in its own process with one thread. Results are lines of a file. A finished trial is not run
again, and a trial that was stopped continues from its last checkpoint, so the same command continues the study.

- `default`, in each world and with each seed: at least 97 % of the optimum at 1 and 6 removed slots, at least four standard errors above
  the best baseline, a calibration error of at most 0.02, no answer that changes given gear, and all answers legal.
- `visible targets`: the loss also counts the tokens that the partial build shows.
- `published`, `published_cli`: the networks of SplatNLP with its tokens. `cost` is the training time over that of `default`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.recipes.trials import run_child
from linnaeus.files import content_digest
from linnaeus.reporting.report.comparison.compared_runs import Compared
from linnaeus.reporting.report.run_files import RunFiles

DEFAULT = "default"
VARIANTS = {
    DEFAULT: [],
    "visible targets": ["data.visible_targets=true"],
    "published": ["model.size=published", "data.code=points"],
    "published_cli": ["model.size=published_cli", "data.code=points"],
}
METRICS = ("slots_1", "slots_6", "of_optimum_1", "of_optimum_6", "margin_1", "margin_1_error", "margin_6", "margin_6_error")
METRICS += ("ece", "changed", "legal")
FIXED = ["trainer.threads=1", "trainer.num_workers=0", "trainer.device=cpu", "logger.console=quiet", "run.name=run"]
Measures = dict[str, float]


def run_trials(results: Path, variants: Sequence[str], worlds: Sequence[int], seeds: Sequence[int], settings: Sequence[str]) -> list[str]:
    """Run the trials that `results` lacks, and append a line for each. Return the lines of a table of all of them.

    settings: further settings KEY=VALUE of every trial. The run directories are beside `results`."""
    rows = []
    for world in worlds:
        for seed in seeds:
            found = {name: _trial(results, name, world, seed, settings) for name in variants}
            rows += [_row(name, world, seed, own, found.get(DEFAULT)) for name, own in found.items()]
    heads = ["world", "seed", "variant", "1 removed", "6 removed", "% of optimum, 1", "6", "margin / error, 1", "6", "ECE", "cost", "bars"]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)]


def _trial(results: Path, name: str, world: int, seed: int, settings: Sequence[str]) -> Measures:
    """Return the measures of a trial: its line in `results`, or those of a new run."""
    words = [f"data.world={world}", f"seed={seed}", *VARIANTS[name], *settings]
    for line in results.read_text().splitlines() if results.exists() else []:
        row = json.loads(line)
        if row["words"] == words:
            return dict(row["measures"])
    folder = results.parent / f"{results.stem}-runs" / content_digest({"words": words})[:10]
    run_child([sys.executable, "main.py", "workload=loadout", *FIXED, *words, f"run.root={folder}", "run.experiment=trial"], folder)
    run = RunFiles(folder / "trial" / "run")
    measures = {metric: value for metric in METRICS if (value := run.final.get(f"val/{metric}")) is not None}
    measures |= {"seconds": Compared([run]).groups[0].seconds or float("nan")}
    with results.open("a") as file:
        file.write(json.dumps({"variant": name, "words": words, "measures": measures}) + "\n")
    return measures


def missed_bars(found: Mapping[str, float]) -> list[str]:
    """Return the bars of the module's docstring that a default model misses, by name; [] if it holds all."""
    holds = {f"optimum {k}": found[f"of_optimum_{k}"] >= 0.97 for k in (1, 6)}
    holds |= {f"margin {k}": found[f"margin_{k}"] >= 4 * found[f"margin_{k}_error"] for k in (1, 6)}
    holds |= {"ECE": found["ece"] <= 0.02, "changed": found["changed"] == 0, "legal": found["legal"] == 1}
    return [name for name, held in holds.items() if not held]


def _row(name: str, world: int, seed: int, own: Measures, default: Measures | None) -> list[str]:
    shares = [f"{100 * own[metric]:.1f}" for metric in ("slots_1", "slots_6", "of_optimum_1", "of_optimum_6")]
    margins = [f"{own[f'margin_{k}'] / own[f'margin_{k}_error']:.1f}" if own[f"margin_{k}_error"] else "-" for k in (1, 6)]
    cost = "-" if default is None else f"{own['seconds'] / default['seconds']:.1f} x"
    missed = missed_bars(own)
    bars = "" if name != DEFAULT else "held" if not missed else f"missed: {', '.join(missed)}"
    return [str(world), str(seed), name, *shares, *margins, f"{own['ece']:.4f}", cost, bars]
