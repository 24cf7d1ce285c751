"""Compare BatchTopK dictionaries of linnaeus and of SAELens on the activations of a language model and of a classifier.

    python -m benchmarks.dictionary --saelens PYTHON                             trains the two models first; repeat it after a stop
    python -m benchmarks.dictionary --saelens PYTHON --runs LANGUAGE TAXONOMY    activations of these runs
    python -m benchmarks.dictionary --parts one_pass                             four dictionaries in one pass; without SAELens
    python -m benchmarks.dictionary --quick                                      everything without SAELens, in seconds; no verdict

PYTHON is the interpreter of an environment with `pip install sae-lens==6.54.12`. Both programs train on the same stored activations, the
same number of samples in the same batches, 8 features for each dimension, one thread, Adam, a learning rate that falls to 0 in the last
third. For each program and model the learning rate, and for SAELens also the scaling of the activations, are those with the largest
explained variance for k = 32 and a seed that is not measured. Everything else has the defaults of the program. The dictionaries of both are
evaluated by the same functions of linnaeus, with the weights and thresholds for inference. Their reconstructions of the activations of the
same held-out samples replace the activations in the model.

Times are of all updates of a training, with dead features as usual, and include reading the stored activations. Differences are paired by
seed, with the 95 % interval of Student's t. Every finished trial is a line of `--results`, and is not repeated.

Bars for each model and k: explained variance and loss recovered at least those of SAELens, L0 within 5 % of k, and at least 3 times the
samples per CPU second of SAELens. Bar of one pass, over activations that are computed on the fly: four dictionaries take at most 2 times
the time of one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.dictionary.one_pass import compare
from benchmarks.dictionary.reading import MODELS, Reading, trained_run
from benchmarks.dictionary.study import OURS, THEIRS, Size, Study
from benchmarks.heads import Difference
from benchmarks.interleaved import ROUNDS
from benchmarks.machine import describe_machine, write_numbers
from benchmarks.saelens.trials import Measures, TrialFile, at_least, difference, held, means

ROOT, RESULTS = Path("outputs/benchmark_dictionary"), Path("benchmarks/results/dictionary.jsonl")
SEEDS = 3  # fewer give no verdict
FASTER = 3.0  # times the samples per CPU second of SAELens
COLUMNS = ("l0", "explained_variance", "loss_recovered", "dead", "samples per CPU second", "samples per second")
QUICK = ["--samples", "1024", "--batch", "128", "--seeds", "0", "--k", "16", "--rates", "1e-3", "--rounds", "1", "--updates", "2"]
QUICK += ["--read", "20", "--tested", "10", "--frontier", "8", "16"]
Rows = dict[tuple[str, int], list[Measures]]  # (program, k) -> measures of each seed


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    o = read_options([*QUICK, *words] if "--quick" in words else words)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dictionary-") as temporary:
        if o.quick:
            o.root, o.results = Path(temporary), Path(temporary) / "results.jsonl"
        tables = [measured(name, number, o) for number, name in enumerate(MODELS)]
    print("\n" + ", ".join(f"{key} {value}" for key, value in describe_machine().items()))
    if o.json:
        write_numbers(o.json, {"machine": describe_machine(), "models": tables})
    return int(any("MISSED" in verdict for table in tables for _, verdict in table["bars"]))


def read_options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--saelens", metavar="PYTHON", help="python with SAELens; without it only linnaeus is measured")
    add("--runs", type=Path, nargs=2, metavar=("LANGUAGE", "TAXONOMY"), help="run directories; without them two models are trained")
    add("--modules", nargs=2, default=[model.module for model in MODELS.values()], help="modules that are read (%(default)s)")
    add("--parts", nargs="+", choices=("quality", "one_pass"), default=["quality", "one_pass"], help="what is measured (%(default)s)")
    add("--k", type=int, nargs="+", default=[16, 32, 64], help="active features (%(default)s)")
    add("--seeds", type=int, nargs="+", default=range(SEEDS), help=f"seeds (0 to {SEEDS - 1}); fewer give no verdict")
    add("--samples", type=int, default=1_536_000, help="training samples of a dictionary (%(default)s)")
    add("--batch", type=int, default=1024, help="samples of an update (%(default)s)")
    add("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 6e-3, 1e-2], help="learning rates to choose from (%(default)s)")
    add("--read", type=int, help="training samples of each run that are read (about a million activations)")
    add("--tested", type=int, default=1000, help="held-out samples of each run (%(default)s)")
    add("--frontier", type=int, nargs="+", default=[8, 16, 32, 64], help="active features in one pass (%(default)s); other than 4: no bar")
    add("--rounds", type=int, default=ROUNDS, help=f"rounds of one_pass (%(default)s); fewer than {ROUNDS} give no verdict")
    add("--updates", type=int, default=40, help="updates of a round of one_pass (%(default)s)")
    add("--root", type=Path, default=ROOT, help="folder for models and activations, which are kept (%(default)s)")
    add("--results", type=Path, default=RESULTS, help="file of the finished trials (%(default)s)")
    add("--quick", action="store_true", help="tiny models and few updates, in a temporary folder")
    add("--json", type=Path, metavar="FILE", help="write every number to this file")
    return parser.parse_args(words)


def measured(name: str, number: int, o: argparse.Namespace) -> dict[str, Any]:
    """Measure all parts for the model `name`, number `number` of the two. Print and return the tables and verdicts."""
    folder = (o.root / name).resolve()
    run = trained_run(name, folder / "model", o.quick) if o.runs is None else o.runs[number].resolve()
    reading = Reading(name, run, o.modules[number], folder, o.read or MODELS[name].samples, o.tested)
    found: dict[str, Any] = {"model": name, "bars": []}
    if "quality" in o.parts:
        size = Size(o.samples, o.batch, dead_after=100_000)
        study = Study(reading, size, o.rates, TrialFile(o.results.resolve()), o.saelens)
        making = study.making()
        rows = {pair: [with_speed(row, size.samples) for row in each] for pair, each in study.compare(o.k, o.seeds).items()}
        settings = {who: study.choose(who)._asdict() for who in dict.fromkeys(who for who, _ in rows)}
        print(f"\n{name}, {reading.source.name}: {size.samples:,} samples of {reading.rows:,} activations of width {reading.source.width}")
        print(f"chosen: {settings}; making the activations took {making['cpu_seconds']:.1f} s of CPU time\n")
        print("\n".join(table(rows)))
        found |= {"making": making, "settings": settings, "means": {f"{who} {k}": means(each) for (who, k), each in rows.items()}}
        found["bars"] += judged(rows)
        print("\n" + "\n".join(f"- {text}: {verdict}" for text, verdict in found["bars"]))
    for stored in (True, False) if "one_pass" in o.parts else ():
        timed = compare(reading, o.frontier, stored, o.rounds, o.updates, o.batch)
        found["stored" if stored else "on_the_fly"] = timed
        found["bars"] += [(bar["variant"], bar["verdict"]) for bar in timed["bars"]]
    return found


def with_speed(row: Measures, samples: int) -> Measures:
    """Return `row` with the samples per CPU second and per second of wall time. samples: number of training samples of the trial."""
    speeds = {"samples per CPU second": samples / row["cpu_seconds"], "samples per second": samples / row["wall_seconds"]}
    return {**row, **speeds}


def table(rows: Rows) -> list[str]:
    """Return the lines of the table of means over the seeds."""
    lines = [f"| | k | {' | '.join(COLUMNS)} |", f"|---|---:|{'---:|' * len(COLUMNS)}"]
    for (who, k), found in rows.items():
        mean = means(found)
        cells = [f"{mean[column]:,.0f}" if "second" in column else f"{mean[column]:.4f}" for column in COLUMNS]
        lines.append(f"| {who} | {k} | {' | '.join(cells)} |")
    return lines


def judged(rows: Mapping[tuple[str, int], list[Measures]]) -> list[tuple[str, str]]:
    """Return the bars of one model and whether each is held, as (text with the figure, verdict)."""
    verdicts = []
    for k in dict.fromkeys(k for _, k in rows):
        ours, theirs = rows[OURS, k], rows.get((THEIRS, k))
        active = means(ours)["l0"]
        verdicts.append((f"k = {k}, L0 {active:.2f}, bar 5 %", held(abs(active / k - 1) <= 0.05) if len(ours) >= SEEDS else few()))
        if theirs is None:
            continue
        for column in ("explained_variance", "loss_recovered"):
            d = difference(ours, theirs, column)
            text = f"k = {k}, {column.replace('_', ' ')} {d.mean:+.4f} ({d.low:+.4f} to {d.high:+.4f}), bar 0"
            verdicts.append((text, at_least(d, 0.0, len(ours), SEEDS)))
        speed = ratios(ours, theirs, "samples per CPU second")
        text = f"k = {k}, {speed.mean:.2f} x the samples per CPU second ({speed.low:.2f} to {speed.high:.2f}), bar {FASTER:g}"
        verdicts.append((text, at_least(speed, FASTER, len(ours), SEEDS)))
    return verdicts


def ratios(ours: Sequence[Measures], theirs: Sequence[Measures], column: str) -> Difference:
    """Return the mean over the seeds of the ratio of `column`, and its 95 % interval."""
    return Difference.of([a[column] / b[column] for a, b in zip(ours, theirs, strict=True)], [0.0] * len(ours))


def few() -> str:
    return f"no verdict under {SEEDS} seeds"


if __name__ == "__main__":
    sys.exit(main())
