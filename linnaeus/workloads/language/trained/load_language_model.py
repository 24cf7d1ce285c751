"""Load a trained language model and its tokenizer from a run directory, or from a folder of transformers (`transformers_folder.py`).

In a run directory, config.yaml contains the architecture, tokenizer.json the tokens, and dimensions.json the weights of the dimensions
(named adapters, if the model has any). The weights are read from a checkpoint whose hashes are verified. If the run validated averaged
weights, these are read, otherwise the raw weights."""

from __future__ import annotations

from pathlib import Path

import torch

from linnaeus.checkpoint.weight_matching import load_all
from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.workloads.language.model.gpt import build_gpt
from linnaeus.workloads.language.tokenizers import Tokenizer, tokenizer_from
from linnaeus.workloads.language.trained.language_model import LanguageModel
from linnaeus.workloads.language.trained.library_tokenizers import read_library_tokenizer
from linnaeus.workloads.language.trained.transformers_folder import is_transformers_folder, read_transformers_folder
from linnaeus.workloads.run_weights import chosen_weights, find_run, read_run_file, run_configuration

TOKENIZER, DIMENSIONS = "tokenizer.json", "dimensions.json"


def load_model(
    path: str | Path, *, checkpoint: str | None = None, device: str = "cpu", tokenizer: str | Path | None = None
) -> LanguageModel:
    """Return the model of a run directory, of one of its checkpoints, or of a folder of transformers.

    `checkpoint`: choice in a run directory: best (the default if a checkpoint was validated), newest (otherwise), or a step. `tokenizer`: a
    tokenizer.json or its folder, for a run that was trained on tokens of another program and therefore has no tokenizer. Raise
    `ConfigError` for any other path, a run of another workload or without a tokenizer, and weights that are damaged, do not fit or are not
    finite."""
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
    config = run_configuration(run, "language")
    tokenizer = _tokenizer(run, given)
    network = build_gpt(config.model, config.seed, tokenizer.size, config.data.block)
    if network.dimensions:
        network.set_dimension_weights(read_run_file(run / DIMENSIONS, lambda saved: [float(saved[name]) for name in network.dimensions]))
    if config.trainer.precision == "float64":
        network = network.double()
    weights = chosen_weights(path, checkpoint)
    load_all(weights, network)
    return LanguageModel(network, tokenizer, weights.source, weights.notes, validation_batch_size(config))


def _tokenizer(run: Path, given: str | Path | None) -> Tokenizer:
    """Return the tokenizer of a run, or the tokenizer at the path `given` if the run has none. Raise `ConfigError` if the tokenizer has
    another number of tokens than the run."""
    if (run / TOKENIZER).is_file():
        _check_tokenizer_unset(run, given)
        return read_run_file(run / TOKENIZER, tokenizer_from)
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
