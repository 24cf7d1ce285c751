"""Write and read bundles: folders with a trained classifier and everything that predictions need, but without code and pickles.

    config.json          format, version, the description of the network and of its input, SHA-256 of the other files
    model.safetensors    the weights
    taxonomy.json        the tree of taxa (`TaxonomyTree.to_dict`)
    calibration.json     temperatures and thresholds, if the model is calibrated
    prior.safetensors    the weights of the `PlacePrior` (likely taxa at a place and in a season), if the model was calibrated with one
    class_counts.csv     number of training photographs of each class
    metrics.json         validation results of the run
    README.md            the model card

`load_bundle` reads only files in the folder. It compares the SHA-256 of each file that it reads, except config.json, with config.json."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.initial_weights import InitialWeights, read_safetensors
from linnaeus.checkpoint.weight_files import write_weights
from linnaeus.errors import ConfigError, one_line, quoted
from linnaeus.files import commit_directory, file_digest, to_json, write_atomic
from linnaeus.workloads.taxonomy.trained.classifier.description import Description
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration
from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PlacePrior, load_prior
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.trained_models import own_file, own_json

FORMAT, WORKLOAD = "linnaeus-model", "taxonomy"
VERSION = 4  # 1: without center_crop; 2: without `PlaceQuantiles`; both are still read; 3: another network if it reads SPATIAL
CONFIG, WEIGHTS, TREE, CALIBRATION = "config.json", "model.safetensors", "taxonomy.json", "calibration.json"
PRIOR = "prior.safetensors"
METRICS, CARD, COUNTS = "metrics.json", "README.md", "class_counts.csv"
REQUIRED = (WEIGHTS, TREE)


def is_bundle(path: Path) -> bool:
    """Return True if a folder contains a bundle, of any format version."""
    return _config(path).get("format") == FORMAT


def write_bundle(
    folder: Path,
    description: Description,
    tree: TaxonomyTree,
    weights: InitialWeights,
    texts: Mapping[str, str],
    copied: Mapping[str, Path] | None = None,
) -> None:
    """Write a bundle to `folder`, completely or not at all. The folder must not exist.

    `texts`: file name -> content of an additional file. `copied`: file name -> path of an additional file to copy. Raise `ConfigError` if
    the folder exists or cannot be written."""
    if folder.exists():
        raise ConfigError(f"OUT: {folder} exists; choose another folder, or remove it")
    temporary = folder.with_name(f".tmp-{folder.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # of an earlier attempt; its files would be in the bundle
        temporary.mkdir(parents=True)
        write_weights(temporary / WEIGHTS, weights.state)
        for name, text in {TREE: to_json(tree.to_dict(), indent=None), **texts}.items():
            write_atomic(temporary / name, text)
        for name, source_file in (copied or {}).items():
            shutil.copyfile(source_file, temporary / name)
        files = {name: file_digest(temporary / name) for name in sorted([WEIGHTS, TREE, *texts, *(copied or {})])}
        source = {"weights": weights.source.rpartition("/checkpoints/")[2], "sha256": weights.digest}
        config = {"format": FORMAT, "version": VERSION, "workload": WORKLOAD, "source": source}
        write_atomic(temporary / CONFIG, to_json(config | {"description": description.plain(), "files": files}))
        commit_directory(temporary, folder)
    except OSError as error:
        raise ConfigError(f"OUT: {folder} cannot be written ({error.strerror}); choose another folder") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_bundle(
    folder: Path, plugins: Sequence[str] = ()
) -> tuple[Description, TaxonomyTree, InitialWeights, Calibration | None, PlacePrior | None]:
    """Return the description of the network, tree, weights, calibration and prior of a bundle; None for a calibration or prior that the
    bundle does not have.

    `plugins`: packages that may be imported if the model needs them. Raise `ConfigError` for a bundle that is damaged or of another version
    or workload, and for a file that is missing, cannot be read or differs from its checksum."""
    config = _config(folder)
    try:
        if config.get("version") not in range(1, VERSION + 1):
            raise ConfigError(f"it is of version {config.get('version')!r}; this program reads versions 1 to {VERSION}")
        if config.get("workload") != WORKLOAD:
            raise ConfigError(f"it is of workload={quoted(config.get('workload'))}; this needs one of workload={WORKLOAD}")
        digests = {name: _checked(folder, name, config["files"]) for name in REQUIRED}
        description = Description.from_plain(config["description"], plugins)
        tree = TaxonomyTree.from_dict(json.loads((folder / TREE).read_text(encoding="utf-8")))
        state, calibration, prior = read_safetensors(folder / WEIGHTS), None, None
        if CALIBRATION in config["files"]:
            _checked(folder, CALIBRATION, config["files"])
            calibration = Calibration.from_plain(json.loads((folder / CALIBRATION).read_text(encoding="utf-8")), len(tree.ranks))
        if calibration is not None and calibration.prior is not None:
            _checked(folder, PRIOR, config["files"])
            prior = load_prior(folder / PRIOR, calibration.prior, tree)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {str(error).replace(f'{folder}{os.sep}', '')}") from None
    except OSError as error:
        raise ConfigError(f"{folder}: {Path(error.filename or '').name} cannot be read ({error.strerror})") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ConfigError(f"{folder}: the bundle is damaged ({type(error).__name__}: {one_line(error)}); export it again") from None
    return description, tree, InitialWeights(str(folder / WEIGHTS), digests[WEIGHTS], state), calibration, prior


def checked_file(folder: Path, name: str) -> Path | None:
    """Return the path of the optional file `name` of a bundle; None if config.json does not list the file.

    Raise `ConfigError` if the file cannot be read or its SHA-256 differs from config.json."""
    files = _config(folder).get("files")
    if not isinstance(files, dict) or name not in files:
        return None
    try:
        _checked(folder, name, files)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {str(error).replace(f'{folder}{os.sep}', '')}") from None
    except OSError as error:
        raise ConfigError(f"{folder}: {name} cannot be read ({error.strerror})") from None
    return folder / name


def _config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json; {} if the file is missing, cannot be read, or is not a JSON object.

    Raise `ConfigError` if config.json is a link out of the folder, or a pipe (`own_file`)."""
    try:
        return own_json(folder, CONFIG) or {}
    except OSError:
        return {}


def _checked(folder: Path, name: str, files: Mapping[str, str]) -> str:
    """Return the SHA-256 of the file `name`. `files`: file name -> SHA-256 in config.json.

    Raise `ConfigError` if the two SHA-256 differ, and as `own_file` does for a link out of the folder; raise `OSError` for a missing
    file."""
    found = file_digest(own_file(folder, name))
    if found != files[name]:
        raise ConfigError(f"{name} is not the file that was written (SHA-256 {found[:12]}, not {str(files[name])[:12]}); export it again")
    return found
