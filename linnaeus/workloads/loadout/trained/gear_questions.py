"""Inputs of `linnaeus edit` for a loadout model: weapons with given gear, which the model completes."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.completion.build_decoding import complete
from linnaeus.workloads.loadout.completion.gear_requests import make_request
from linnaeus.workloads.loadout.game.gear import arrange
from linnaeus.workloads.loadout.game.token_code import PAD
from linnaeus.workloads.loadout.trained.load_loadout_model import load_model
from linnaeus.workloads.loadout.trained.loadout_model import LoadoutModel
from linnaeus.workloads.questions import Answer, Question, Questions, refuse_options


def questions(path: Path, options: argparse.Namespace) -> Questions:
    """Return a question (an input and a function that runs the model) for each weapon in `options.inputs`, with the gear `options.have`.

    Raise `ConfigError` if there is no weapon, and for gear that no legal build contains. path: run directory or checkpoint."""
    refuse_options(options, ("have",), "a loadout model")
    if not options.inputs:
        raise ConfigError("INPUT: give at least one weapon, such as splattershot")
    model = load_model(path, checkpoint=options.checkpoint, device=options.device)
    asked = [_question(model, weapon, options.have or "") for weapon in options.inputs]
    notes = model.notes_of(model.weapons.find(weapon) for weapon in options.inputs)
    return Questions(model.network, {"token": model.code.names}, asked, notes)


def _question(model: LoadoutModel, weapon: str, have: str) -> Question:
    request = make_request(model.weapons, weapon, have)
    if request.given is None:
        raise ConfigError(f"INPUT: {request.reason}")
    given, number = request.given[None], np.array([request.weapon])
    tokens = np.sort(model.code.token_sets(given)[0])  # the network sorts them

    def ask() -> Answer:
        build = complete(model.tails, given, number)[0][0].build
        lines = [f"{piece}: {main}, {', '.join(subs)}" for piece, (main, subs) in arrange(build).items()]
        with torch.inference_mode():  # last, so that a caller that records the module has the given gear
            device = model.network.output.weight.device
            batch = {"tokens": torch.from_numpy(tokens[None]).to(device), "weapon": torch.from_numpy(number).to(device)}
            probabilities = model.network(batch)[0].double().sigmoid()
        return Answer({"token": probabilities.float().cpu().numpy()}, tuple(lines))

    places = tuple(None if token == PAD else model.code.names[token] for token in tokens)
    return Question(f"{model.weapons.name(request.weapon)}: {have or 'no gear'}", ask, places)
