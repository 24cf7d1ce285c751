"""Load a trained language model and its tokenizer from a run directory, to generate text.

The run's config.yaml gives the architecture, tokenizer.json the tokens, dimensions.json the weights of the dimensions (if the model has
any). The newest checkpoint that verifies gives the weights: the averaged ones if the run validated those.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from linnaeus.checkpoint.initial_weights import read_initial_weights
from linnaeus.checkpoint.weight_matching import load_matched, match_weights
from linnaeus.config.load import typed_config
from linnaeus.errors import ConfigError
from linnaeus.rundir.repeat import read_saved
from linnaeus.rundir.saved_config import fill_defaults
from linnaeus.workloads.language.model.gpt import GPT, build_gpt
from linnaeus.workloads.language.tokenizers import Tokenizer, tokenizer_from

T = TypeVar("T")
CONFIG, TOKENIZER, DIMENSIONS = "config.yaml", "tokenizer.json", "dimensions.json"


@dataclass(frozen=True)
class TrainedModel:
    """A model on the CPU in evaluation mode. `source` is the file of its weights, `notes` are lines for the user."""

    model: GPT
    tokenizer: Tokenizer
    source: str
    notes: list[str]


def load_trained_model(path: str) -> TrainedModel:
    """Return the model of a run directory or of one of its checkpoints.

    Raise `ConfigError` for another path, a run of another workload or without a tokenizer, and a checkpoint that is damaged, does not
    fit the run or has values that are not finite."""
    run = find_run(Path(path))
    tree = read_saved(run / CONFIG)
    if tree["workload"].get("name") != "language":
        raise ConfigError(f"RUN: {run} is a run of workload={tree['workload'].get('name')}; it must be a run of workload=language")
    config = typed_config(fill_defaults(tree)[0])
    if not (run / TOKENIZER).is_file():
        raise ConfigError(f"RUN: {run} has no {TOKENIZER}: its data did not define the tokens, so it cannot generate text")
    tokenizer = _read(run / TOKENIZER, tokenizer_from)
    model = build_gpt(config.model, config.seed, tokenizer.size, config.data.block)
    if model.dimensions:
        model.set_dimension_weights(_read(run / DIMENSIONS, lambda saved: [float(saved[name]) for name in model.dimensions]))
    if config.trainer.precision == "float64":
        model = model.double()
    try:
        weights = read_initial_weights(path)
        load_matched(weights, match_weights(weights, model), model)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix('run.init_from: ')}") from None
    return TrainedModel(model.eval(), tokenizer, weights.source, weights.notes)


def find_run(path: Path) -> Path:
    """Return the run directory that is `path` or contains it."""
    if not path.exists():
        raise ConfigError(f"RUN: {path} does not exist; use the directory of a run, or one of its checkpoints")
    run = next((folder for folder in (path, *path.resolve().parents[:3]) if (folder / CONFIG).is_file()), None)
    if run is None:
        raise ConfigError(f"RUN: {path} is not a run: it has no {CONFIG}; use the directory of a run, or one of its checkpoints")
    return run


def _read(file: Path, convert: Callable[[Any], T]) -> T:
    """Return the converted content of a JSON file."""
    try:
        return convert(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"RUN: {file} is damaged ({line}); copy it from another run with the same data and model") from None
