"""Write the sparse dictionaries of a run for `linnaeus export RUN OUT`: folders that SAELens can load.

    cfg.json                    architecture and sizes (`saelens_layout.py`)
    sae_weights.safetensors     weights, with the scale of the activations folded in

A run of one dictionary gives these files in OUT. A run of several dictionaries (`model.frontier`) gives one such folder per dictionary,
such as OUT/k16.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from linnaeus.checkpoint.weight_files import write_weights
from linnaeus.errors import ConfigError
from linnaeus.files import TEMPORARY, commit_directory, delete, to_json, write_atomic
from linnaeus.workloads.dictionary.trained.load_dictionary import load_dictionaries
from linnaeus.workloads.dictionary.trained.saelens_layout import ARCHITECTURES, to_saelens
from linnaeus.workloads.dictionary.trained.trained_dictionary import TrainedDictionary

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
REFUSED = ("form", "tokenizer", "plugins")  # options of `linnaeus export` without an effect here


def export_model(options: argparse.Namespace) -> list[str]:
    """Write all dictionaries of the run `options.run` to the new folder `options.out`, in the layout of SAELens. Return the lines to print.

    options: options of `linnaeus export`: `run`, `out`, `checkpoint`, and the options in `REFUSED`, which must not be set. Raise
    `ConfigError` if an option in `REFUSED` is set, if the run cannot be loaded, and if the folder exists or cannot be written."""
    for name in REFUSED:
        if getattr(options, name):
            raise ConfigError(f"--{name} has no effect with a dictionary, which is written for SAELens; leave it out")
    if options.out.exists():
        raise ConfigError(f"OUT: {options.out} exists; choose another folder, or remove it")
    found = load_dictionaries(options.run, checkpoint=options.checkpoint)
    folders = write_folders(found, options.out)
    lines = []
    for folder, trained in zip(folders, found.values(), strict=True):
        architecture = ARCHITECTURES[trained.dictionary.config.name]
        lines.append(f"{folder}: architecture {architecture} of SAELens, {trained.features} features of {trained.dictionary.width} numbers")
    return [*next(iter(found.values())).notes, *lines, f'from sae_lens import SAE; SAE.load_from_disk("{folders[0]}")']


def write_folders(found: Mapping[str, TrainedDictionary], out: Path) -> list[Path]:
    """Write all dictionaries; after a failure, none. Return the folder of each dictionary.

    found: name -> dictionary. A single dictionary is written to `out` itself, several are written to `out`/NAME. Raise `ConfigError` if
    `out` cannot be written."""
    temporary = out.with_name(f"{TEMPORARY}{out.name}")
    parts = [Path(name) if len(found) > 1 else Path() for name in found]
    try:
        if temporary.exists():
            delete(temporary)
        for part, trained in zip(parts, found.values(), strict=True):
            (temporary / part).mkdir(parents=True)
            write_folder(trained, temporary / part)
        commit_directory(temporary, out)
    except OSError as error:
        raise ConfigError(f"OUT: {out} cannot be written ({error.strerror}); choose another folder") from None
    finally:
        if temporary.exists():
            delete(temporary)
    return [out / part for part in parts]


def write_folder(trained: TrainedDictionary, folder: Path) -> None:
    """Write cfg.json and sae_weights.safetensors of a dictionary into `folder`, which must exist."""
    place = trained.place
    config, weights = to_saelens(trained.dictionary, {} if place is None else {"model_name": place.run.name, "hook_name": place.module})
    write_atomic(folder / CONFIG, to_json(config))
    write_weights(folder / WEIGHTS, weights)
