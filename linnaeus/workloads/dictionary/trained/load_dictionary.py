"""Load trained dictionaries from a run directory or one of its checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.weight_matching import load_all
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.files import read_json
from linnaeus.workloads.dictionary.config import ReadRunConfig
from linnaeus.workloads.dictionary.model.dictionary_set import DictionarySet, members
from linnaeus.workloads.dictionary.model.variants import VARIANTS
from linnaeus.workloads.dictionary.trained.trained_dictionary import RECORD, Place, TrainedDictionary
from linnaeus.workloads.run_weights import chosen_weights, find_run, run_configuration


def load_model(path: str | Path, *, checkpoint: str | None = None, device: str = "cpu", dictionary: str | None = None) -> TrainedDictionary:
    """Return one trained dictionary of a run, on `device`.

    path: run directory or one of its checkpoints. checkpoint: best, newest or a step; None: the best checkpoint if the run was validated,
    otherwise the newest. dictionary: name such as k16, for a run of several dictionaries; None: the first one. Raise `ConfigError` if the
    run has no dictionary of this name, and for the errors of `load_dictionaries`."""
    found = load_dictionaries(path, checkpoint=checkpoint, device=device)
    if dictionary is not None and dictionary not in found:
        raise ConfigError(f"dictionary {dictionary!r} does not exist; the run has {', '.join(found)}")
    return found[dictionary or next(iter(found))]


def load_dictionaries(path: str | Path, *, checkpoint: str | None = None, device: str = "cpu") -> dict[str, TrainedDictionary]:
    """Return {name: dictionary} for all dictionaries of a run. If a run has only one dictionary, its name is `dictionary`.

    path, checkpoint, device: as in `load_model`. Raise `ConfigError` if `path` is not a run of this workload, and if the weights are
    damaged, not finite or of another shape."""
    run = find_run(Path(path))
    config: Any = run_configuration(run, "dictionary")
    weights = chosen_weights(Path(path), checkpoint)
    dictionaries = _build(config, weights)
    load_all(weights, dictionaries)
    dictionaries = dictionaries.to(device)
    place = None if config.dictionary.run is None else _place(config.dictionary, run / RECORD)
    names = members(config.model)
    return {name: TrainedDictionary(dictionaries[i], place, weights.source, weights.notes) for i, name in enumerate(names)}


def _place(read: ReadRunConfig, file: Path) -> Place:
    """Return the source of the activations: run, module and checkpoint. Raise `ConfigError` if `file` has a value of another type.

    read: the configured source. file: `RECORD` of the run, which has precedence. It may be missing."""
    assert read.run is not None and read.module is not None
    record = {"run": read.run, "weights": "", "weights_digest": ""} | (read_json(file) or {})
    run, weights, digest = values = [record[name] for name in ("run", "weights", "weights_digest")]
    if not all(isinstance(value, str) for value in values):
        raise ConfigError(f"RUN: {file} is damaged; remove it, and the source of the activations is read from config.yaml")
    step = re.search(r"step-(\d+)", Path(weights).parent.name)
    checkpoint = read.checkpoint if step is None else str(int(step[1]))
    return Place(Path(run), read.module, checkpoint, digest or None, read.channels)


def _build(config: Config, weights: InitialWeights) -> DictionarySet:
    """Return untrained dictionaries with the sizes of the tensors in `weights`; the weights are loaded later.

    Raise `ConfigError` if `weights` has no decoder for one of the dictionaries."""
    found = []
    for number, member in enumerate(members(config.model).values()):
        decoder = weights.state.get(f"dictionaries.{number}.decoder")
        if decoder is None or decoder.dim() != 2:
            raise ConfigError(f"RUN: {weights.source} has no dictionary {number}; use a checkpoint of a run of workload=dictionary")
        features, width = decoder.shape
        found.append(VARIANTS[member.name](member, width, features))
    dictionaries = DictionarySet(found)
    return dictionaries.double() if config.trainer.precision == "float64" else dictionaries
