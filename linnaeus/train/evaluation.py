"""The command `linnaeus evaluate`: score the model of a run on its validation or test rows, without training.

    linnaeus evaluate RUN [--split test] [--checkpoint best|newest|STEP] [KEY=VALUE ...]

The passes and metrics are those of the run's validation. Results go to RUN/evaluations/<split>-step-<N>/: metrics.json, and classes.csv
with a row for each class. No other file of the run is changed.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError
from linnaeus.files import to_json, write_atomic

if TYPE_CHECKING:
    from linnaeus.checkpoint.initial_weights import InitialWeights
    from linnaeus.train.state import Training

FIXED = ["trainer.compile=false", "debug.profile_steps=[]"]  # keys that only matter in training


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of results and the paths of the two files. Return 0, or exit with status 2 and one line on stderr for a user's
    mistake."""
    with user_errors(2):
        options = _parse(arguments)
        lines = evaluate(options.run, options.split, options.checkpoint, options.overrides, options.output)
        print("\n".join(lines))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="linnaeus evaluate", description="Score the model of a run on its validation or test rows.")
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="directory of a run, such as outputs/biota/1a2b3c4d5e")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings that differ from those of the run, such as trainer.device=cpu")
    add("--split", choices=("validation", "test"), default="validation", help="rows to score (%(default)s)")
    add("--checkpoint", default="best", metavar="WHICH", help="best, newest or a step (%(default)s)")
    add("--output", type=Path, metavar="FOLDER", help="folder of the results (RUN/evaluations/<split>-step-<N>)")
    return parser.parse_intermixed_args(arguments)


def evaluate(run: Path, split: str, checkpoint: str, overrides: Sequence[str], output: Path | None) -> list[str]:
    """Score the model of a run and write the results. Return the lines to print. Raise `ConfigError` for a path that is not a run, and for
    data, settings or a checkpoint that do not fit it."""
    from linnaeus.checkpoint.initial_weights import read_initial_weights
    from linnaeus.reporting.results import strict

    if not (run / "config.yaml").is_file():
        raise ConfigError(f"RUN: {run} is not a run directory: it has no config.yaml; give a folder such as outputs/biota/1a2b3c4d5e")
    weights = read_initial_weights(str(run), "--checkpoint", checkpoint)
    found = re.search(r"step-(\d+)", weights.source)
    step = int(found[1]) if found else 0
    with tempfile.TemporaryDirectory() as scratch:  # photographs that cannot be decoded are recorded here, not in the run
        for file in run.glob("quarantine.jsonl"):
            shutil.copy(file, scratch)
        training = _build(run, split, overrides, weights, Path(scratch))
        results, classes = _score(training)
    folder = output or run / "evaluations" / f"{split}-step-{step:08d}"
    record = {"run": str(run), "split": split, "checkpoint": weights.source, "global_step": step, "overrides": list(overrides)}
    rows = len(training.workload.validation_set)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "metrics.json", to_json(strict(record | {"rows": rows, "metrics": results})))
        write_atomic(folder / "classes.csv", _table(classes))
    except OSError as error:
        raise ConfigError(f"--output: {folder} cannot be written ({error.strerror}); choose another folder") from None
    heading = f"{rows} {split} rows, weights of {weights.source}"
    table = training.workload.summary(results) or [f"{name}  {value:.5g}" for name, value in results.items() if not math.isnan(value)]
    return [*weights.notes, heading, "", *table, "", str(folder / "metrics.json"), *([str(folder / "classes.csv")] if classes else [])]


def _build(run: Path, split: str, overrides: Sequence[str], weights: InitialWeights, scratch: Path) -> Training:
    """Return the parts of the run, with the weights loaded and the rows of `split` in place of its validation rows. `scratch`: an empty
    folder in place of the run directory."""
    from linnaeus import train, workloads
    from linnaeus.checkpoint.weight_matching import load_matched, match_weights
    from linnaeus.config.load import typed_config
    from linnaeus.rundir.repeat import read_saved, with_values
    from linnaeus.rundir.saved_config import fill_defaults

    tree = fill_defaults(read_saved(run / "config.yaml"))[0]
    config = typed_config(with_values(tree, [*FIXED, *overrides], None))
    context = train.join_group(config)
    train.apply_process_settings(config)
    workload = workloads.build_workload(config)
    workload.prepare_evaluation(run, split)
    plan = train.resolve_schedule(config, workload, context)
    training = train.build_training(config, context, workload, plan, scratch)
    weights = workload.adapt_initial_weights(weights, training.model)
    load_matched(weights, match_weights(weights, training.model), training.model)
    if training.ema is not None:
        training.ema.load_averaged(training.model.state_dict())
    return training


def _score(training: Training) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the metrics of all passes, and the rows by class of the first pass, in which nothing is masked."""
    from linnaeus.train.validation import measure_pass

    results: dict[str, float] = {}
    classes: list[dict[str, Any]] = []
    for pass_ in training.passes:
        totals = measure_pass(training, pass_)
        if totals is None:
            raise ConfigError(f"data: the rows cannot be read at present ({training.run.reason}); try again later")
        results |= totals.results(at_end=True)
        classes = classes or totals.metrics.class_rows(totals.counts)
    return results, classes


def _table(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV; "" for none."""
    text = io.StringIO()
    if rows:
        table = csv.DictWriter(text, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
