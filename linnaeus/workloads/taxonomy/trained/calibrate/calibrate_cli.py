"""Run the command `linnaeus calibrate`: fit temperatures and thresholds on labelled photographs that were not used for training.

    linnaeus calibrate RUN --split test
    linnaeus calibrate RUN --manifest others.csv --setting data.group_column=observation
    linnaeus calibrate RUN --prior      also learn which taxa are likely at a place and in a season, from the training photographs

The command writes RUN/calibration.json and, with a prior, RUN/prior-*.safetensors. `linnaeus predict`, `load_model` and `linnaeus export`
use these files when they load the weights that were calibrated.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.model_options import add_model, add_model_options
from linnaeus.config.run_command import run_command
from linnaeus.errors import ConfigError, counted
from linnaeus.files import refuse_read_only, to_json, write_atomic
from linnaeus.workloads.taxonomy.trained.photographs.photograph_options import LABELS, check_settings

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
    from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration
    from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PlacePrior


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 130 after Ctrl-C. Exit with status 2 and one line on stderr after a user's mistake."""
    return run_command(arguments, _parse, calibrate)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import CONFIDENCE, KEPT, PRECISIONS

    parser = OneLineParser(prog="linnaeus calibrate", description="Fit thresholds with a stated precision.")
    add = parser.add_argument
    add_model(parser, "run")
    add("--split", choices=("validation", "test"), help="rows of the run's data (validation)")
    add("--manifest", metavar="FILE", help="CSV or Parquet table of labelled photographs, in place of rows of the run's data")
    add("--setting", action="append", default=[], metavar="KEY=VALUE", help="of the manifest, such as data.group_column=observation")
    add("--precision", type=float, nargs="+", default=list(PRECISIONS), metavar="P", help="stated precisions (0.9 0.95 0.99)")
    add("--confidence", type=float, default=CONFIDENCE, metavar="C", help="share of calibrations that reach them (%(default)s)")
    kept = "share of the photographs of the model's taxa that may get an answer (%(default)s)"
    add("--keep", type=float, default=KEPT, metavar="K", help=kept)
    add("--prior", action="store_true", help="learn a prior over place and season, for a network that does not read them")
    add_model_options(parser, "checkpoint", "device")
    options = parser.parse_args(arguments)
    for name, values in (("precision", options.precision), ("confidence", [options.confidence]), ("keep", [options.keep])):
        if wrong := [value for value in values if not 0 < value < 1]:
            raise ConfigError(f"--{name} is {wrong[0]:g}; it must be above 0 and below 1")
    if options.manifest and options.split:
        raise ConfigError("--split has no effect with --manifest; leave it out")
    if options.setting and not options.manifest:
        raise ConfigError(f"--setting {options.setting[0]} has no effect without --manifest; leave it out")
    check_settings(options.setting, LABELS)
    return options


def calibrate(options: argparse.Namespace) -> list[str]:
    """Fit the calibration that the options describe, and write it to the run directory. Return the lines to print.

    Raise `ConfigError` for a user's mistake."""
    from linnaeus.workloads.taxonomy.trained.calibrate import labelled
    from linnaeus.workloads.taxonomy.trained.calibrate.fit import fit
    from linnaeus.workloads.taxonomy.trained.classifier import bundle
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_parts
    from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier

    if bundle.is_bundle(options.run):
        raise ConfigError(f"RUN: {options.run} is a bundle; calibrate the run and export it again")
    refuse_read_only(options.run, "RUN", "copy the run to a folder that you may write to")
    parts = load_parts(options.run, options.checkpoint, calibrated=False)
    model = TrainedClassifier(*parts, device=options.device or "cpu")
    model.use_prior(_trained_prior(options.run, model) if options.prior else None)
    if options.manifest:
        decode = lambda files, row: files.decode(row, model.short_side, model.description.max_image_pixels)
        data = labelled.of_manifest(options.manifest, options.setting, model.tree, model.components, decode, options.run)
        place, name = options.manifest, f"the manifest {Path(options.manifest).name}"  # a bundle has no paths of this machine
    else:
        split = options.split or "validation"
        data, place = labelled.of_run(options.run, split, model.tree, model.components), f"the {split} rows of {options.run}"
        name = f"the {split} rows of the run"
    try:
        found, notes = fit(model, data, options.precision, options.confidence, options.keep)
    except ConfigError as error:  # too few photographs: the notes say which are not used
        raise ConfigError("; ".join([str(error), *data.unused])) from None
    path = options.run / bundle.CALIBRATION
    try:
        found = dataclasses.replace(_write_prior(options.run, model, found), data=name)
        write_atomic(path, to_json(found.plain()))
        _remove_priors(options.run, found)
    except OSError as error:
        raise ConfigError(f"RUN: {path} cannot be written ({error.strerror})") from None
    if not options.manifest and not options.split:
        notes = (*notes, "the best checkpoint was chosen by these rows; --split=test or --manifest use others")
    return [*data.notes, *notes, f"calibrated on {place}", "", *table(model, found, data.group is not None), "", str(path)]


def _trained_prior(run: Path, model: TrainedClassifier) -> PlacePrior:
    """Return a prior trained on the training photographs of the run `run`.

    Raise `ConfigError` if the network reads place and date itself, if the data cannot be read or have other taxa than the model, or if too
    few photographs have a place or date."""
    from linnaeus.workloads.taxonomy.trained.calibrate import labelled
    from linnaeus.workloads.taxonomy.trained.calibrate.prior_fit import train_prior
    from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import usable_components

    components = usable_components(model.description.components)
    if not components:
        raise ConfigError("--prior has no effect: the network reads place and date itself; leave it out")
    data = labelled.of_run(run, "training", model.tree, components)
    return train_prior(model.tree, data.labels, data.metadata, data.group, components)


def _write_prior(run: Path, model: TrainedClassifier, found: Calibration) -> Calibration:
    """Write the prior of the model to the run directory `run`. Return the calibration `found` with the record of the file added.

    If the model has no prior, write nothing and return `found` unchanged."""
    from safetensors.torch import save

    from linnaeus.files import file_digest
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import prior_path
    from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PriorRecord

    prior = model.prior
    if prior is None:
        return found
    new = run / ".tmp-prior.safetensors"
    write_atomic(new, save({name: tensor.cpu().contiguous() for name, tensor in prior.state_dict().items()}))
    record = PriorRecord(file_digest(new), prior.components, prior.width, prior.floor)
    new.rename(prior_path(run, record))
    return dataclasses.replace(found, prior=record)


def _remove_priors(run: Path, found: Calibration) -> None:
    """Delete the prior files in the run directory `run`. Keep the file to which the new calibration `found` refers, if it has a prior."""
    from linnaeus.workloads.taxonomy.trained.classifier.load_parts import prior_path

    for path in run.glob("prior-*.safetensors"):
        if found.prior is None or path != prior_path(run, found.prior):
            path.unlink()


def table(model: TrainedClassifier, found: Calibration, grouped: bool) -> list[str]:
    """Return lines of text with the thresholds and temperatures, for a terminal. `grouped`: True if the observation of each photograph is
    known."""
    ranks_of = [f"{rank:>{max(8, len(rank))}}" for rank in reversed(model.tree.ranks)]
    head = f"{'precision':>9}  {'threshold':>9}  {'on average':>10}  {'answered':>8}  {'  '.join(ranks_of)}"
    rows = [
        f"{one.precision:9.3g}  {_shown(one.threshold):>9}  {_shown(one.on_average):>10}  {100 * one.answered:6.1f} %"
        + "".join(f"  {100 * share:{len(rank) - 2}.1f} %" for share, rank in zip(reversed(one.answered_at), ranks_of, strict=False))
        for one in found.precisions
    ]
    ranks = ", ".join(f"{rank} {t:.2f}" for rank, t in zip(model.tree.ranks, found.temperature, strict=True))
    never = any(one.threshold > 1 for one in found.precisions)
    unit = "observation" if grouped else "photograph"
    about = f"{counted(found.photographs, unit)}; each precision is reached by {100 * found.confidence:g} % of such calibrations"
    return [
        head,
        *rows,
        *(["none: no threshold can be shown to reach this precision; use more photographs"] if never else []),
        about,
        _none_of_these(found),
        f"temperatures: {ranks}",
    ]


def _none_of_these(found: Calibration) -> str:
    if not found.familiar or not found.kept:
        return 'no photograph is "none of these": too few photographs for its threshold'
    return f'"none of these": familiarity below {found.familiar:.4f}; {100 * found.kept:g} % of such photographs have at least that'


def _shown(threshold: float) -> str:
    return f"{threshold:.4f}" if threshold <= 1 else "none"


if __name__ == "__main__":
    raise SystemExit(main())
