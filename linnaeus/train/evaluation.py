"""Evaluate the model of a run on its validation or test samples, without training: `linnaeus evaluate RUN` without `--manifest`.

The validation passes and metrics are the same as during training. Results go to RUN/evaluations/<split>-step-<N>/: metrics.json, and the
tables of the workload as CSV, such as classes.csv with a row for each class. With further settings KEY=VALUE the name of the folder ends in
a hash of the settings, which are in metrics.json. With several values of `--image-size` or `--tta`, each combination is evaluated, and its
results go to a subfolder, such as 192px-flip. No other file of the run is changed."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from linnaeus.errors import ConfigError, counted
from linnaeus.files import refuse_read_only, text_digest, to_csv, to_json, write_atomic

if TYPE_CHECKING:
    from linnaeus.checkpoint.initial_weights import InitialWeights
    from linnaeus.train.state import Training


ONLY_TRAINING = ("optimizer", "lr_scheduler", "run", "logger", "launch", "sweep", "plan", "profile")  # keys and groups read only by it


class Variant(NamedTuple):
    """Image size and test-time augmentation (tta) of one evaluation, as typed on the command line. A field is None to use the value of the
    run."""

    image_size: str | None = None
    tta: str | None = None

    def overrides(self) -> list[str]:
        """Return the settings KEY=VALUE that change the configuration of the run to this variant."""
        keys = {"data.image_size": self.image_size, "augment.tta": self.tta}
        return [f"{key}={value}" for key, value in keys.items() if value is not None]

    def folder(self, output: Path) -> Path:
        """Return the folder for the results, such as `output`/192px-flip for size 192 and tta `flip`. A part that is None is left out of
        the name; if both are None, return `output`."""
        parts = [f"{self.image_size}px"] * (self.image_size is not None) + [str(self.tta)] * (self.tta is not None)
        return output / "-".join(parts)


class Scored(NamedTuple):
    """Results of the evaluation with one `Variant` (image size and test-time augmentation)."""

    variant: Variant
    overrides: list[str]
    tasks: Sequence[str]
    rows: int  # number of evaluated samples
    all_rows: int
    metrics: dict[str, float]
    tables: Mapping[str, Iterable[dict[str, Any]]]  # name -> rows of a CSV file, such as `classes`
    table: list[str]  # lines to print


def evaluate(
    run: Path, split: str, checkpoint: str, overrides: Sequence[str], output: Path | None, variants: Sequence[Variant] = (Variant(),)
) -> list[str]:
    """Evaluate the model of the run directory `run` with each of `variants`, and write the results. Return the lines to print.

    `split`: "validation" or "test". `checkpoint`: "best", "newest" or a step. `overrides`: further settings KEY=VALUE. `output`: folder for
    the results; None: in the run directory. Raise `ConfigError`, before anything is written, if `run` is not a run directory, if the data,
    settings or checkpoint do not fit the run, or if a setting has no effect."""
    from linnaeus.checkpoint.initial_weights import read_initial_weights
    from linnaeus.config.precedence import typed
    from linnaeus.rundir.identity import covers

    if idle := [key for key in typed(overrides) if covers(ONLY_TRAINING, key)]:
        raise ConfigError(f"{idle[0]} has no effect on an evaluation; leave it out")
    if not (run / "config.yaml").is_file():
        raise ConfigError(
            f"RUN: {run} is not a run directory: it has no config.yaml; give one, such as outputs/biota/1a2b3c, or --manifest"
        )
    weights = read_initial_weights(str(run), "--checkpoint", checkpoint)
    found = re.search(r"step-(\d+)", weights.source)
    step = int(found[1]) if found else 0
    name = f"{split}-step-{step:08d}" + (f"-{text_digest(' '.join(overrides))[:8]}" if overrides else "")
    folder = output or run / "evaluations" / name
    refuse_read_only(folder, "--output", "choose another folder")
    scored = [_score_variant(run, split, overrides, weights, variant) for variant in variants]
    record = {"run": str(run), "split": split, "checkpoint": weights.source, "global_step": step}
    files = [path for one in scored for path in _write(one, one.variant.folder(folder), record)]
    table = scored[0].table if len(scored) == 1 else compare(scored)
    return [*weights.notes, f"{_rows(scored[0], split)}, weights of {weights.source}", "", *table, "", *files]


def _score_variant(run: Path, split: str, overrides: Sequence[str], weights: InitialWeights, variant: Variant) -> Scored:
    """Build the run with the settings in `overrides` and `variant`, load `weights`, and run the validation passes on the samples of
    `split`. Return the results."""
    from linnaeus.schedule.length import validation_samples

    given = [*overrides, *variant.overrides()]
    with tempfile.TemporaryDirectory() as scratch:  # photographs that cannot be decoded are recorded here, not in the run
        for file in run.glob("quarantine.jsonl"):
            shutil.copy(file, scratch)
        training = _build(run, split, given, weights, Path(scratch))
        results, tables = _score(training)
    workload, size = training.workload, len(training.workload.validation_set)
    table = workload.summary(results) or [f"{name}  {value:.5g}" for name, value in results.items() if not math.isnan(value)]
    return Scored(variant, given, workload.tasks, validation_samples(training.config, size), size, results, tables, table)


def _rows(scored: Scored, split: str) -> str:
    """Return a phrase with the number of evaluated samples. If `trainer.limit_validation_samples` left out samples, the phrase also says
    so."""
    if scored.rows == scored.all_rows:
        return counted(scored.rows, f"{split} row")
    limit = f"trainer.limit_validation_samples={scored.rows}; =null scores all"
    return f"{scored.rows:,} of {scored.all_rows:,} {split} rows ({limit})"


def _write(scored: Scored, folder: Path, record: dict[str, Any]) -> list[str]:
    """Write metrics.json and the tables to `folder`. Return the paths of the written files. `record`: further entries of metrics.json.

    Raise `ConfigError` if the folder cannot be written."""
    from linnaeus.reporting.results import strict

    record = record | {"overrides": scored.overrides, "rows": scored.rows, "metrics": scored.metrics}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "metrics.json", to_json(strict(record)))
        for name, rows in scored.tables.items():
            write_atomic(folder / f"{name}.csv", to_csv(rows))
    except OSError as error:
        raise ConfigError(f"--output: {folder} cannot be written ({error.strerror}); choose another folder") from None
    return [str(folder / name) for name in ("metrics.json", *(f"{name}.csv" for name in scored.tables))]


def compare(scored: Sequence[Scored]) -> list[str]:
    """Return the lines of a table with the loss and top-1 accuracies of several variants, from the pass in which nothing is masked."""
    first = scored[0]
    prefix = next(iter(first.metrics)).partition("/")[0]
    names = [name for name in ("loss", *(f"{task}/top1" for task in first.tasks)) if f"{prefix}/{name}" in first.metrics]
    titles = [name for name, value in zip(Variant._fields, first.variant) if value is not None]
    ways = [[str(value) for value in one.variant if value is not None] for one in scored]
    rows = [[*titles, *names], *([*way, *(f"{one.metrics[f'{prefix}/{n}']:.4f}" for n in names)] for way, one in zip(ways, scored))]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _build(run: Path, split: str, overrides: Sequence[str], weights: InitialWeights, scratch: Path) -> Training:
    """Return the parts of the run with `weights` loaded. Samples of `split` replace the validation samples of the run.

    `scratch`: temporary folder that replaces the run directory. It may contain a copy of the file quarantine.jsonl of the run."""
    from linnaeus import train, workloads
    from linnaeus.workloads.opened_run import FIXED, load_run_weights, saved_configuration

    config = saved_configuration(run, [*FIXED, *overrides])
    context = train.join_group(config)
    train.apply_process_settings(config)
    workload = workloads.build_workload(config)
    workload.prepare_evaluation(run, split)
    plan = train.resolve_schedule(config, workload, context)
    training = train.build_training(config, context, workload, plan, scratch)
    own = dataclasses.replace(weights, state=training.shards.own_state(weights.state))
    load_run_weights(own, workload, training.model)
    if training.ema is not None:
        training.ema.load_averaged(training.model.state_dict())
    return training


def _score(training: Training) -> tuple[dict[str, float], dict[str, Iterable[dict[str, Any]]]]:
    """Return (metrics of all validation passes, tables of the first pass). In the first pass no metadata is masked.

    Raise `ConfigError` if the samples cannot be read at present."""
    from linnaeus.train.validation import measure_pass

    results: dict[str, float] = {}
    tables: dict[str, Iterable[dict[str, Any]]] = {}
    for pass_ in training.passes:
        totals = measure_pass(training, pass_)
        if totals is None:
            raise ConfigError(f"data: the rows cannot be read at present ({training.run.reason}); try again later")
        results |= totals.results(at_end=True)
        tables = tables or totals.metrics.tables(totals.sums, totals.counts)
    return results, tables
