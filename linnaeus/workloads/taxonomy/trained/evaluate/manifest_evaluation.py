"""Run `linnaeus evaluate MODEL --manifest FILE`: score the models of runs and bundles on the labelled photographs of a manifest."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from linnaeus.config.model_options import use_threads
from linnaeus.errors import ConfigError, counted, escaped, list_some
from linnaeus.files import refuse_read_only
from linnaeus.schedule.length import validation_batch_size
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import LabelRows, group_note, read_labels
from linnaeus.workloads.taxonomy.trained.calibrate.training_photographs import used_in_training
from linnaeus.workloads.taxonomy.trained.classifier.bundle import is_bundle
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import configuration_of, load_model
from linnaeus.workloads.taxonomy.trained.classifier.possible_taxa import restrict
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.evaluate.evaluation_files import Tables, left_over, unreadable, write_comparison, write_model
from linnaeus.workloads.taxonomy.trained.evaluate.evaluation_tables import difference_lines, model_lines
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Measured, Settings, measure
from linnaeus.workloads.taxonomy.trained.evaluate.paired_differences import compare
from linnaeus.workloads.taxonomy.trained.evaluate.photograph_groups import check_clade, find_parts, part_row
from linnaeus.workloads.taxonomy.trained.evaluate.stated_precision import of_model
from linnaeus.workloads.taxonomy.trained.evaluate.training_counts import training_counts
from linnaeus.workloads.taxonomy.trained.evaluate.unfamiliar import folder_inputs, strangers, unfamiliar_rows
from linnaeus.workloads.taxonomy.trained.photographs.photograph_options import LABELS, check_settings

OF_A_BUNDLE = 32  # batch size for a bundle; a run has its own


def evaluate(options: argparse.Namespace) -> list[str]:
    """Score the models that `options` name on a manifest, and compare the models. With --output, write files. Return the lines to print.

    Raise `ConfigError` before any file is written: for an option without effect, for a model or manifest that cannot be read, and if a
    model has no taxon of the manifest. Raise `ConfigError` possibly after some files were written: for models without a common rank, and if
    a file cannot be written."""
    check_settings(options.setting or [], LABELS)
    if options.output is not None and options.output.exists() and not options.output.is_dir():
        raise ConfigError(f"--output: {options.output} is not a folder; choose another one")
    if options.output is not None:
        refuse_read_only(options.output, "--output", "choose another folder")
    threads, others = use_threads(options), None if options.outside is None else folder_inputs(options.outside)
    paths = [options.model, *(options.compare or [])]
    restricted = [restrict(_load(path, options, paths), options.checklist, region=options.region) for path in paths]
    models = [model for model, _ in restricted]
    for model in models:
        check_clade(options.clade, model.tree)
    components = list(dict.fromkeys(name for model in models for name in model.components))
    rows = read_labels(options.manifest, options.setting or [], components, [options.by] if options.by else [])
    settings = [Settings(options.batch_size or _batch_size(path), threads) for path in paths]
    measured = [
        measure(str(path), model, rows, training_counts(path, model.tree), own)
        for path, model, own in zip(paths, models, settings, strict=True)
    ]
    lines = [*rows.notes, *(f"intervals: {note}" for note in group_note(rows, options.by))]
    lines += [] if others is None else [f"--outside: {note}" for note in others.notes]
    files: list[str] = []
    for number, one in enumerate(measured, 1):
        parts = [part_row(one, rows, part) for part in find_parts(one, rows, options.clade, options.by)]
        outside = None if others is None else strangers(one.model, others, settings[number - 1])
        tables = Tables(parts, *of_model(one, rows.group), unfamiliar_rows(one, rows, outside))
        bad = [] if outside is None else [(os.path.relpath(name, options.outside), reason) for name, reason in outside.unreadable]
        lines += ["", *_head(one, rows, paths[number - 1]), *_not_read(bad, " of --outside")]
        lines += [*restricted[number - 1][1], "", *model_lines(one, tables)]
        if options.output is not None:
            folder = options.output / f"model-{number}" if len(measured) > 1 else options.output
            files += write_model(folder, options.manifest, rows, one, tables)
    compared = [compare(measured[0], other, rows) for other in measured[1:]]
    for pair in compared:
        lines += ["", *difference_lines(pair)]
    if compared and options.output is not None:
        files += write_comparison(options.output, compared)
    if options.output is not None:
        files += left_over(options.output, files)
    return [*lines, "", *(files or ["--output FOLDER writes these results, and a row for each photograph"])]


def _load(path: Path, options: argparse.Namespace, paths: Sequence[Path]) -> TrainedClassifier:
    """Return the model in `path`. --checkpoint applies only to run directories. `paths`: paths of all models.

    Raise `ConfigError` for --checkpoint if all models are bundles."""
    runs = [one for one in paths if not is_bundle(one)]
    checkpoint = options.checkpoint if path in runs or not runs else None
    return load_model(
        path, checkpoint=checkpoint, device=options.device or "cpu", plugins=options.plugins or [], tta=options.tta and options.tta[0]
    )


def _batch_size(path: Path) -> int:
    return OF_A_BUNDLE if is_bundle(path) else validation_batch_size(configuration_of(path))


def _head(measured: Measured, rows: LabelRows, path: Path) -> list[str]:
    """Return the first lines about the model in `path`: name, number of scored photographs, which photographs and metrics are left out and
    why, and how many are training photographs."""
    lines = [*measured.model.weights.notes, f"{escaped(measured.name)}: {counted(int(measured.table.real.sum()), 'photograph')}"]
    lines += [*_training_notes(path, rows), *measured.labels.notes, *_not_read(unreadable(measured, rows))]
    if measured.model.description.head.nulls != "ignore" and measured.labels.unscored.any():
        lines.append("null_recall and null_precision are left out, since a taxon that is not scored is not a null label")
    if measured.training_counts is None:
        lines.append("no metrics by training photographs: the bundle was exported without class_counts.csv; export it again")
    return lines


def _not_read(bad: Sequence[tuple[str, str]], of: str = "") -> list[str]:
    """Return a line about the photographs that could not be read, (name, reason) of each; [] without any. `of`: added to "photographs"."""
    reasons = list_some([f"{name} ({reason})" for name, reason in bad], 5)
    return [f"{counted(len(bad), 'photograph')}{of} could not be read: {reasons}"] if bad else []


def _training_notes(path: Path, rows: LabelRows) -> list[str]:
    """Return a line about the photographs of the manifest on which the run in `path` was trained, and a line if it is not known. Return []
    for a bundle, which does not have the data of its run."""
    if is_bundle(path):
        return []
    seen, notes = used_in_training(path, rows.records.files)
    if not seen.any():
        return notes
    share = f"{seen.sum():,} of {counted(len(seen), 'photograph')}"
    return [f"the run was trained on {share}, so these scores are too high; leave those photographs out of the manifest", *notes]
