"""Load a trained classifier from a run directory or a bundle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from linnaeus.checkpoint.initial_weights import InitialWeights, read_initial_weights
from linnaeus.config.schema import Config
from linnaeus.config.typed_config import typed_config
from linnaeus.errors import ConfigError, one_line, quoted
from linnaeus.files import read_json
from linnaeus.workloads.taxonomy.observations.components import PARTS
from linnaeus.workloads.taxonomy.trained.classifier.bundle import CALIBRATION, is_bundle, load_bundle
from linnaeus.workloads.taxonomy.trained.classifier.description import VIEWS, Description
from linnaeus.workloads.taxonomy.trained.classifier.possible_taxa import restrict
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration
from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PlacePrior, PriorRecord, load_prior
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.trained_models import workload_of


class Parts(NamedTuple):
    """Parts of a trained classifier, as read from disk. Calibration and prior are None if the model has none."""

    description: Description
    tree: TaxonomyTree
    weights: InitialWeights
    calibration: Calibration | None = None
    prior: PlacePrior | None = None


def load_model(
    path: str | Path,
    *,
    checkpoint: str | None = None,
    device: str = "cpu",
    plugins: Sequence[str] = (),
    region: str | None = None,
    tta: str | None = None,
) -> TrainedClassifier:
    """Return the trained classifier of a run directory or a bundle (the folder that `linnaeus export` writes).

    `checkpoint`: best (the default), newest, or a step; only for a run directory. `plugins`: packages that may be imported if the model of
    a bundle needs them. `region`: NAME=FILE; predictions are restricted to the taxa that FILE lists for the region NAME. `tta`: test-time
    augmentation, none or flip; None: that of the validation of the run.

    Raise `ConfigError` for a path that is neither a run directory nor a bundle, a run of another workload, damaged files, and a checkpoint,
    a device, a region or a test-time augmentation that does not exist."""
    parts = load_parts(Path(path), checkpoint, plugins)
    if tta is not None:
        parts = _with_views(parts, tta)
    return restrict(TrainedClassifier(*parts, device=device), region=region)[0]


def _with_views(parts: Parts, tta: str) -> Parts:
    """Return the parts of the classifier with another test-time augmentation, and with a note about it if it differs from that of the
    run. Raise `ConfigError` if it does not exist."""
    if tta not in VIEWS:
        raise ConfigError(f"tta is {quoted(str(tta))}; it must be {' or '.join(VIEWS)}")
    own = parts.description.tta
    if tta == own:
        return parts
    fitted = "" if parts.calibration is None else "; the calibration was fitted with the latter, and its precision is not promised here"
    weights = replace(parts.weights, notes=[*parts.weights.notes, f"test-time augmentation {tta}, in place of {own} of the run{fitted}"])
    return parts._replace(description=replace(parts.description, tta=tta), weights=weights)


def load_parts(path: Path, checkpoint: str | None = None, plugins: Sequence[str] = (), calibrated: bool = True) -> Parts:
    """Return the parts of the classifier in a run directory or a bundle.

    `checkpoint`: best, newest or a step; None: the best. It must be None for a bundle. `plugins`: packages that may be imported if the
    model of a bundle needs them. `calibrated`: False: load neither the calibration nor the prior of a run, which may be damaged; no effect
    for a bundle. Raise `ConfigError` if `path` is neither a run directory of this workload nor a bundle, for damaged files, and for a
    checkpoint that does not exist."""
    if is_bundle(path):
        if checkpoint is not None:
            raise ConfigError(f"checkpoint is {checkpoint!r}, but {path} is a bundle, which has one set of weights; leave it out")
        return Parts(*load_bundle(path, plugins))
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"{path} is of workload={workload_of(path)}; this needs one of workload=taxonomy")
    config = configuration_of(path)
    if config.workload.name != "taxonomy":
        raise ConfigError(f"{path} is a run of workload={config.workload.name}; this needs one of workload=taxonomy")
    weights = read_initial_weights(str(path), "checkpoint", checkpoint or "best")
    tree = _tree_of(path)
    calibration = run_calibration(path, weights.digest, len(tree.ranks)) if calibrated else None
    if calibrated and calibration is None and (path / CALIBRATION).exists():
        note = f"{path / CALIBRATION} was fitted for other weights and is not used; calibrate again with this checkpoint"
        weights = replace(weights, notes=[*weights.notes, note])
    description = Description.of_run(config, _untrained_metadata(path, config))
    return Parts(description, tree, weights, calibration, _run_prior(path, calibration, tree))


def _untrained_metadata(run: Path, config: Config) -> tuple[str, ...]:
    """Return the metadata components and the quantities of `PARTS` that no training photograph of the run had; () if the run started from
    the weights of another one, which may have learnt them."""
    if config.run.init_from is not None:
        return ()
    shares = (read_json(run / "dataset.json") or {}).get("metadata") or {}
    return tuple(name for name in (*config.data.components, *PARTS) if name in shares and shares[name]["training"] == 0)


def prior_path(run: Path, record: PriorRecord) -> Path:
    """Return the path of the prior's file in the run directory `run`.

    The name contains the SHA-256 of the file, so an interrupted calibration does not overwrite the prior in use."""
    return run / f"prior-{record.sha256[:12]}.safetensors"


def _run_prior(run: Path, calibration: Calibration | None, tree: TaxonomyTree) -> PlacePrior | None:
    if calibration is None or calibration.prior is None:
        return None
    path = prior_path(run, calibration.prior)
    try:
        return load_prior(path, calibration.prior, tree)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); calibrate again") from None


def run_calibration(run: Path, weights: str, ranks: int) -> Calibration | None:
    """Return the calibration of a run; None if the run is not calibrated, or if its calibration is for other weights than `weights`.

    `weights`: SHA-256 of the weights in use. `ranks`: number of ranks of the model. Raise `ConfigError` if calibration.json is damaged."""
    content = read_json(run / CALIBRATION)
    if content is None and (run / CALIBRATION).exists():
        raise ConfigError(f"{run / CALIBRATION}: the calibration is damaged (not a JSON object); calibrate again")
    if content is None or content.get("weights") != weights:
        return None
    try:
        return Calibration.from_plain(content, ranks)
    except ConfigError as error:
        raise ConfigError(f"{run / CALIBRATION}: {error}") from None


def configuration_of(run: Path) -> Config:
    """Return the configuration of a run directory. Raise `ConfigError` if it cannot be read."""
    from linnaeus.rundir.saved_config import fill_defaults  # import omegaconf, which a bundle does not need
    from linnaeus.rundir.saved_run import read_configuration

    return typed_config(fill_defaults(read_configuration(run)[0])[0])


def _tree_of(run: Path) -> TaxonomyTree:
    try:
        return TaxonomyTree.from_dict(json.loads((run / "taxonomy.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise ConfigError(f"{run / 'taxonomy.json'} cannot be read ({reason}); continue the run to write it again") from None
