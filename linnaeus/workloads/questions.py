"""Ask a trained model of any workload about given inputs, while a caller watches or changes one of its modules (`linnaeus edit`).

The module `trained` of a workload has `questions(path, options) -> Questions`. `options` are the options of `linnaeus edit`: `inputs` and
`INPUT_OPTIONS`. A workload reads some of `INPUT_OPTIONS` and refuses the others with `refuse_options`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import nn

from linnaeus.errors import ConfigError

PLACE_AND_TIME = ("latitude", "longitude", "uncertainty", "date", "time", "elevation")
INPUT_OPTIONS = (*PLACE_AND_TIME, "tokens", "tokenizer", "have")


class Answer(NamedTuple):
    """Answer to one input. `probabilities`: group of outputs -> probabilities [C] of its C outputs. `lines`: the answer as text, such as a
    continuation; () if the model has no answer besides the probabilities."""

    probabilities: dict[str, np.ndarray]
    lines: tuple[str, ...] = ()


class Question(NamedTuple):
    """One input. `name`: its name for the user. `ask`: runs the model and returns the answer. `places`: names of the T positions of the
    input if the watched module returns [1, T, d], None for padding; () if the positions have no names."""

    name: str
    ask: Callable[[], Answer]
    places: tuple[str | None, ...] = ()


class Questions(NamedTuple):
    """Trained network, names of its outputs by group, and the questions about the inputs. `notes`: lines for the user."""

    network: nn.Module
    names: Mapping[str, Sequence[str]]
    questions: list[Question]
    notes: Sequence[str] = ()


def refuse_options(options: argparse.Namespace, used: Sequence[str], model: str) -> None:
    """Raise `ConfigError` if an option in `INPUT_OPTIONS` is given that is not in `used`. `model`: the kind of model for the message, such
    as "a language model"."""
    for name in INPUT_OPTIONS:
        if name not in used and getattr(options, name) is not None:
            raise ConfigError(f"--{name} has no effect with {model}; leave it out")
