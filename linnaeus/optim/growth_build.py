"""Builds the growth that a configuration asks for, or refuses it in one line."""

from __future__ import annotations

from typing import Any

from linnaeus.config.schema_optimization import GrowthConfig, LinearGrowthConfig
from linnaeus.errors import ConfigError
from linnaeus.optim import Optimizers
from linnaeus.optim.growth import Growth
from linnaeus.schedule import OpsSchedule


def build_growth(config: GrowthConfig, model: Any, optimizers: Optimizers, ops: OpsSchedule, seed: int) -> Growth | None:
    """None for `growth=none`. Masks the model's weights, so what copies them comes later. `model.maskable_parameters()` names the
    parameters that weights may be missing from; frozen ones keep all of theirs.

    Raises ConfigError for a model or an optimizer that it cannot be done with."""
    if not isinstance(config, LinearGrowthConfig):
        return None
    names = list(model.maskable_parameters())
    if not names:
        raise ConfigError(f"growth={config.name}: this model names no weights that may be missing (maskable_parameters); use growth=none")
    found = {id(parameter): place for place, parameter in enumerate(optimizers.params)}
    parameters = dict(model.named_parameters())
    places = {name: found[id(parameters[name])] for name in names if parameters[name].requires_grad}
    if not places:
        raise ConfigError(f"growth={config.name}: all weights that may be missing are frozen (trainer.freeze); use growth=none")
    for name, place in places.items():
        member, _ = optimizers.keeper(place)
        if member.kind == "muon":
            raise ConfigError(
                f"growth={config.name}: Muon moves a matrix such as {name} as a whole, also where nothing is connected yet; use "
                "optimizer=adamw or optimizer=sgd"
            )
    trained = sum(parameter.numel() for parameter in parameters.values() if parameter.requires_grad)
    unmasked = trained - sum(parameters[name].numel() for name in places)
    return Growth(places, optimizers.params, ops, config.by, seed, unmasked)
