"""Load a trained loadout model from a run directory or one of its checkpoints.

config.yaml gives the architecture and the tokens, weapons.json the weapons, and dataset.json those without training builds. The weights
come from a checkpoint that passes verification; they are the averaged weights if the run validated averaged weights.
"""

from __future__ import annotations

from pathlib import Path

from linnaeus.checkpoint.weight_matching import load_all
from linnaeus.files import read_json
from linnaeus.workloads.loadout.game.token_code import CODES
from linnaeus.workloads.loadout.game.weapons import weapons_from
from linnaeus.workloads.loadout.model.set_transformer import build_set_transformer
from linnaeus.workloads.loadout.trained.loadout_model import LoadoutModel
from linnaeus.workloads.run_weights import chosen_weights, find_run, read_run_file, run_configuration

WEAPONS, RECORD = "weapons.json", "dataset.json"  # written by the workload


def load_model(path: str | Path, *, checkpoint: str | None = None, device: str = "cpu") -> LoadoutModel:
    """Return the trained model of the run directory or checkpoint `path`.

    checkpoint: "best" (the default if a best one was validated), "newest" (the default otherwise), or a step. Raise `ConfigError` for
    another path, a run of another workload, and weights that are damaged, do not fit or are not finite."""
    run = find_run(Path(path))
    config = run_configuration(run, "loadout")
    weapons = read_run_file(run / WEAPONS, weapons_from)
    code = CODES[config.data.code]()
    network = build_set_transformer(config.model, config.seed, code, len(weapons))
    if config.trainer.precision == "float64":
        network = network.double()
    weights = chosen_weights(Path(path), checkpoint)
    load_all(weights, network)
    unseen = (read_json(run / RECORD) or {}).get("unseen_weapons")  # runs of older versions do not have it
    numbers = frozenset(number for number, key in enumerate(weapons.keys) if isinstance(unseen, list) and key in unseen)
    return LoadoutModel(network.to(device), code, weapons, weights.source, weights.notes, numbers)
