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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.model_options import add_model, add_model_options
from linnaeus.config.run_command import run_command
from linnaeus.errors import ConfigError, counted
from linnaeus.files import refuse_read_only, to_json, write_atomic

if TYPE_CHECKING:
    import numpy as np

    from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import Evidence
    from linnaeus.workloads.taxonomy.trained.calibrate.labelled import Labelled
    from linnaeus.workloads.taxonomy.trained.calibration import Calibration
    from linnaeus.workloads.taxonomy.trained.place_prior import PlacePrior
    from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier

BATCH = 32  # photographs per forward pass
WORKSPACE = 1 << 27  # most log-probabilities in memory while temperatures are fitted: 0.5 GB


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
    return options


def calibrate(options: argparse.Namespace) -> list[str]:
    """Fit the calibration that the options describe, and write it to the run directory. Return the lines to print.

    Raise `ConfigError` for a user's mistake."""
    from linnaeus.workloads.taxonomy.trained import bundle
    from linnaeus.workloads.taxonomy.trained.calibrate import labelled
    from linnaeus.workloads.taxonomy.trained.load_parts import load_parts
    from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier

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
    found, notes = fit(model, data, options.precision, options.confidence, options.keep)
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
    from linnaeus.workloads.taxonomy.trained.place_prior import usable_components

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
    from linnaeus.workloads.taxonomy.trained.load_parts import prior_path
    from linnaeus.workloads.taxonomy.trained.place_prior import PriorRecord

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
    from linnaeus.workloads.taxonomy.trained.load_parts import prior_path

    for path in run.glob("prior-*.safetensors"):
        if found.prior is None or path != prior_path(run, found.prior):
            path.unlink()


def fit(
    model: TrainedClassifier, data: Labelled, precisions: Sequence[float], confidence: float, kept: float
) -> tuple[Calibration, tuple[str, ...]]:
    """Return the calibration fitted on labelled photographs, and lines of text about the prior and about photographs that could not be
    read.

    `precisions`, `confidence` and `kept`: as in `fit_thresholds`."""
    import numpy as np

    from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import fit_thresholds, is_tuning, one_of_each

    known = np.flatnonzero(~data.unknown & (data.labels >= 0).any(axis=1))
    group = None if data.group is None else data.group[known]
    data = data.take(known[one_of_each(group, len(known))])
    tuning = is_tuning(len(data))
    weighed = _choose_floor(model, data.take(np.flatnonzero(tuning))) if model.prior is not None else []
    temperature = _temperatures(model, data.take(np.flatnonzero(tuning)))
    evidence, read = _evidence(model, data, temperature)
    notes = (*weighed, *((f"{counted(int((~read).sum()), 'photograph')} could not be read",) if not read.all() else ()))
    usable, digest = evidence.take(np.flatnonzero(read)), model.weights.digest
    return fit_thresholds(usable, tuning[read], digest, temperature, precisions, confidence, kept), notes


def _choose_floor(model: TrainedClassifier, data: Labelled) -> list[str]:
    """Set the floor of the model's prior (the least weight of a taxon) to the value under which the labels are most likely. Remove the
    prior from the model if the labels are most likely without a prior.

    Return one line of text about the choice."""
    import torch

    from linnaeus.workloads.taxonomy.trained.calibrate.prior_fit import LEAST_GAIN, floor_likelihoods

    prior = model.prior
    assert prior is not None
    parts = (
        (model.network_scores(prepared), model.prior_inputs(prepared), torch.from_numpy(data.labels[rows]).to(model.device))
        for _, rows, prepared in _batches(model, data)
    )
    found = floor_likelihoods(prior, parts)
    best = max(found, key=lambda floor: found[floor])
    if found[best] - found[1.0] < LEAST_GAIN:
        model.use_prior(None)
        return [
            f"the prior over place and season is not used: the labels of {counted(len(data), 'photograph')} are not more likely with it"
        ]
    prior.floor = best
    gain = f"mean log-likelihood of the labels {found[best]:.3f}, without it {found[1.0]:.3f}"
    return [f"prior over {' and '.join(prior.components)} with floor {best:g}: {gain}"]


def _temperatures(model: TrainedClassifier, data: Labelled) -> list[float]:
    """Return the temperature of each rank under which the labels are most likely; 1.0 without labels or readable photographs. With many
    taxa only the first photographs are used, as many as fit into the memory limit `WORKSPACE`."""
    import numpy as np
    import torch

    from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import fit_temperature

    sizes = model.tree.sizes
    data = data.take(np.arange(min(len(data), max(1, WORKSPACE // sum(sizes)))))
    parts: list[list[Any]] = [[] for _ in sizes]
    for _, rows, prepared in _batches(model, data):
        scores = model.scores(prepared)
        label = torch.from_numpy(data.labels[rows]).to(model.device)
        for rank, part in enumerate(parts):
            part.append([found.cpu() for found in scores.choices(rank, label)])
    return [fit_temperature(*map(torch.cat, zip(*part, strict=True))) if part else 1.0 for part in parts]


def _evidence(model: TrainedClassifier, data: Labelled, temperature: Sequence[float]) -> tuple[Evidence, np.ndarray]:
    """Return the results of the network for N photographs, and a mask, bool [N], that is False for photographs that cannot be read.

    `temperature`: one value per rank, as in `Scores.tempered`."""
    import numpy as np

    from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import Evidence
    from linnaeus.workloads.taxonomy.trained.class_probabilities import class_log_probs
    from linnaeus.workloads.taxonomy.trained.familiarity import familiarity
    from linnaeus.workloads.taxonomy.trained.rollup import Paths, confident_paths

    shape = data.labels.shape
    path, confidence, true = np.full(shape, -1), np.zeros(shape), np.full(shape, np.nan)
    read, familiar = np.zeros(len(data), dtype=bool), np.zeros(len(data))
    for _, rows, prepared in _batches(model, data):
        scores = model.scores(prepared)
        log_probs = scores.tempered(temperature).log_probs()
        found = [class_log_probs(log_p, size).exp() for log_p, size in zip(log_probs, model.tree.sizes, strict=True)]
        familiar[rows], probabilities = familiarity(found).cpu().numpy(), tuple(p.cpu().numpy() for p in found)
        own = confident_paths(probabilities, scores.path().cpu().numpy())
        path[rows], confidence[rows], read[rows] = own.path, own.confidence, True
        for r, probability in enumerate(probabilities):
            label = data.labels[rows, r]
            known = np.flatnonzero(label >= 0)
            true[rows[known], r] = probability[known, label[known]]
    return Evidence(Paths(path, confidence), true, data.labels, familiar), read


def _batches(model: TrainedClassifier, data: Labelled) -> Iterator[tuple[int, np.ndarray, Any]]:
    """Yield (first, rows, batch) for each batch. Photographs that cannot be read are left out.

    `first`: position in `data` of the first photograph. `rows`: positions in `data` of the readable photographs, int64 [B]. `batch`: these
    B photographs, normalised."""
    import numpy as np
    import torch

    from linnaeus.reporting.preparation_progress import PreparationProgress
    from linnaeus.workloads.taxonomy.components import encode
    from linnaeus.workloads.taxonomy.manifest.integrity import NotAnImage

    with PreparationProgress("calibrating", len(data), counted(len(data), "photograph")) as progress, torch.inference_mode():
        for first in range(0, len(data), BATCH):
            images, good = [], []
            for row in range(first, min(first + BATCH, len(data))):
                try:
                    images.append(data.read(row))
                    good.append(row)
                except (NotAnImage, OSError):
                    continue
            if good:
                rows = np.array(good)
                yield first, rows, model.preparation(model.batch(images, *encode(data.metadata.take(rows), model.components)))
            progress.add(min(BATCH, len(data) - first))


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
