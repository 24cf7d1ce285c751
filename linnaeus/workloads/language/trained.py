"""A trained model with its tokenizer, from the directory of its run: what it takes to ask it for text.

The run's config.yaml says what to build, tokenizer.json beside it what the tokens mean, dimensions.json how much each dimension counts
where there are any, and the newest checkpoint that verifies has the weights: the averaged ones where those were validated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from linnaeus.config.schema import Config
    from linnaeus.workloads.language.model.gpt import GPT
    from linnaeus.workloads.language.tokenizers import Tokenizer

CONFIG, TOKENIZER, DIMENSIONS = "config.yaml", "tokenizer.json", "dimensions.json"


@dataclass(frozen=True)
class Trained:
    """`model` on the CPU, in the mode for validation; `source` is the file of its weights, `notes` what else to know."""

    model: GPT
    tokenizer: Tokenizer
    source: str
    notes: list[str]


def load_trained(path: str) -> Trained:
    """PATH is a run directory, or one of its checkpoints. ConfigError, one line, for anything else, for a run of another workload or
    without a tokenizer, and for a checkpoint that is damaged or not of this run."""
    run = run_of(Path(path))
    config, tokenizer = _config_of(run), _tokenizer_of(run)
    weights = _weights_of(run, config.model.dimensions) if config.model.dimensions else None
    try:
        return _load(path, config, tokenizer, weights)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix('run.init_from: ')}") from None


def run_of(path: Path) -> Path:
    """The run directory that PATH is or is a checkpoint of."""
    if not path.exists():
        raise ConfigError(f"RUN: {path} is not there; give the directory of a run, or one of its checkpoints")
    run = next((folder for folder in (path, *path.resolve().parents[:3]) if (folder / CONFIG).is_file()), None)
    if run is None:
        raise ConfigError(f"RUN: {path} is no run, for it has no {CONFIG}; give the directory of a run, or one of its checkpoints")
    return run


def _config_of(run: Path) -> Config:
    from linnaeus.config.load import typed_config
    from linnaeus.rundir.repeat import read_saved
    from linnaeus.rundir.saved import filled

    tree = read_saved(run / CONFIG)
    if tree["workload"].get("name") != "language":
        raise ConfigError(f"RUN: {run} is a run of workload={tree['workload'].get('name')}; text takes one of workload=language")
    return typed_config(filled(tree)[0])


def _tokenizer_of(run: Path) -> Tokenizer:
    from linnaeus.workloads.language.tokenizers import tokenizer_from

    file = run / TOKENIZER
    if not file.is_file():
        raise ConfigError(f"RUN: {run} has no {TOKENIZER}: its data did not say what the tokens mean, so there is no text to be had of it")
    try:
        return tokenizer_from(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"RUN: {file} is damaged ({' '.join(str(error).split())}); any run on the same data has the same one") from None


def _weights_of(run: Path, names: Sequence[str]) -> list[float]:
    """Of the dimensions in the last update of the run, which depend on its length."""
    file = run / DIMENSIONS
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return [float(kept[name]) for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"RUN: {file} does not say what the dimensions weigh ({line}); it is {{name: weight}} for {names}") from None


def _load(path: str, config: Config, tokenizer: Tokenizer, final_weights: Sequence[float] | None) -> Trained:
    from linnaeus.checkpoint.fitting import check_fit, load_into
    from linnaeus.checkpoint.initial_weights import read_initial
    from linnaeus.workloads.language.model import build_gpt

    weights = read_initial(path)
    model = build_gpt(config.model, config.seed, tokenizer.size, config.data.block)
    if final_weights is not None:
        model.weigh(final_weights)
    if config.trainer.precision == "float64":
        model = model.double()
    load_into(weights, check_fit(weights, model), model)
    return Trained(model.eval(), tokenizer, weights.source, weights.notes)
