"""Load a trained language model and its tokenizer from a run directory, or from a folder of transformers (`transformers_folder.py`).

In a run directory, config.yaml contains the architecture, tokenizer.json the tokens, and dimensions.json the weights of the dimensions (if
the model has any). The weights are read from a checkpoint whose hashes are verified: the averaged weights if the run validated those.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from linnaeus.checkpoint.choice import BEST, NEWEST, is_validated
from linnaeus.checkpoint.initial_weights import InitialWeights, read_initial_weights
from linnaeus.checkpoint.resume import checkpoints_under
from linnaeus.checkpoint.weight_matching import load_all
from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.workloads.language.model.gpt import build_gpt
from linnaeus.workloads.language.tokenizers import Tokenizer, tokenizer_from
from linnaeus.workloads.language.trained.language_model import LanguageModel
from linnaeus.workloads.language.trained.library_tokenizers import read_library_tokenizer
from linnaeus.workloads.language.trained.transformers_folder import is_transformers_folder, read_transformers_folder

if TYPE_CHECKING:
    from linnaeus.config.schema import Config

T = TypeVar("T")
CONFIG, TOKENIZER, DIMENSIONS = "config.yaml", "tokenizer.json", "dimensions.json"


def load_model(
    path: str | Path, *, checkpoint: str | None = None, device: str = "cpu", tokenizer: str | Path | None = None
) -> LanguageModel:
    """Return the model of a run directory, of one of its checkpoints, or of a folder of transformers.

    `checkpoint`: choice in a run directory: best (the default if a checkpoint was validated), newest (otherwise), or a step. `tokenizer`: a
    tokenizer.json or its folder, for a run that has no tokenizer because it was trained on tokens of another program. Raise `ConfigError`
    for any other path, a run of another workload or without a tokenizer, and weights that are damaged, do not fit or are not finite."""
    if is_transformers_folder(Path(path)):
        if checkpoint is not None:
            raise ConfigError(f"checkpoint is {checkpoint!r}, but {path} has one set of weights; leave it out")
        _check_tokenizer_unset(Path(path), tokenizer)
        published = read_transformers_folder(Path(path))
        network = build_gpt(published.model, 0, published.vocabulary, published.block)
        if published.weights.state["token.weight"].dtype == torch.float64:
            network = network.double()
        load_all(published.weights, network)
        return LanguageModel(network, published.tokenizer, published.weights.source).to(device)
    return _of_run(Path(path), checkpoint, tokenizer).to(device)


def _of_run(path: Path, checkpoint: str | None, given: str | Path | None) -> LanguageModel:
    from linnaeus.schedule.length import validation_batch_size

    run = find_run(path)
    config = _configuration(run)
    tokenizer = _tokenizer(run, given)
    network = build_gpt(config.model, config.seed, tokenizer.size, config.data.block)
    if network.dimensions:
        network.set_dimension_weights(_read(run / DIMENSIONS, lambda saved: [float(saved[name]) for name in network.dimensions]))
    if config.trainer.precision == "float64":
        network = network.double()
    weights = _weights(path, checkpoint)
    load_all(weights, network)
    return LanguageModel(network, tokenizer, weights.source, weights.notes, validation_batch_size(config))


def _tokenizer(run: Path, given: str | Path | None) -> Tokenizer:
    """Return the tokenizer of a run, or the tokenizer at the path `given` if the run has none. Raise `ConfigError` if its number of tokens
    is not that of the run."""
    if (run / TOKENIZER).is_file():
        _check_tokenizer_unset(run, given)
        return _read(run / TOKENIZER, tokenizer_from)
    if given is None:
        raise ConfigError(
            f"RUN: {run} has no {TOKENIZER}: its data had no tokenizer; give the tokenizer of its tokens with --tokenizer FOLDER"
        )
    found = read_library_tokenizer(Path(given), "--tokenizer")
    trained = str((read_json(run / "dataset.json") or {}).get("identity", ""))  # such as unknown-50257
    if trained.split("-")[1:2] != [str(found.size)]:
        raise ConfigError(
            f"--tokenizer: {given} has {found.size} tokens, but {run} was trained on the tokens {trained}; give the tokenizer of these"
        )
    return found


def _check_tokenizer_unset(path: Path, given: str | Path | None) -> None:
    if given is not None:
        raise ConfigError(f"--tokenizer has no effect with {path}, which has its own; leave it out")


def _configuration(run: Path) -> Config:
    """Return the configuration of a run. Raise `ConfigError` for a run of another workload."""
    from linnaeus.config.load import typed_config
    from linnaeus.rundir.repeat import read_saved  # imports Hydra, which a folder of transformers does not need
    from linnaeus.rundir.saved_config import fill_defaults

    tree = read_saved(run / CONFIG)
    if tree["workload"].get("name") != "language":
        raise ConfigError(f"RUN: {run} is a run of workload={tree['workload'].get('name')}; it must be a run of workload=language")
    return typed_config(fill_defaults(tree)[0])


def _weights(path: Path, checkpoint: str | None) -> InitialWeights:
    if checkpoint is None and path.is_dir() and checkpoints_under(path):
        checkpoint = BEST if is_validated(path) else NEWEST
    try:
        return read_initial_weights(str(path), "RUN", checkpoint)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("RUN: ")) from None


def find_run(path: Path) -> Path:
    """Return the run directory that is `path` or contains it. Raise `ConfigError` if there is none."""
    if not path.exists():
        raise ConfigError(f"RUN: {path} does not exist; use the directory of a run, or one of its checkpoints")
    run = next((folder for folder in (path, *path.resolve().parents[:3]) if (folder / CONFIG).is_file()), None)
    if run is None:
        raise ConfigError(f"RUN: {path} is not a run: it has no {CONFIG}; use the directory of a run, or one of its checkpoints")
    return run


def _read(file: Path, convert: Callable[[Any], T]) -> T:
    """Return the content of a JSON file, converted by `convert`. Raise `ConfigError` if the file is damaged."""
    try:
        return convert(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"RUN: {file} is damaged ({line}); copy it from another run with the same data and model") from None
