"""Ask a classifier for `linnaeus edit`: each question is one photograph. The same place and time apply to all photographs."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.questions import PLACE_AND_TIME, Answer, Question, Questions, refuse_options
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier


def questions(path: Path, options: argparse.Namespace) -> Questions:
    """Return the network of the model in `path`, and a question for each photograph of `options.inputs`.

    A question is a function that returns the probabilities of all classes for its photograph. Place and time in `options` apply to all
    photographs. Raise `ConfigError` for a photograph that cannot be read, and if there are no photographs."""
    refuse_options(options, PLACE_AND_TIME, "a classifier")
    if not options.inputs:
        raise ConfigError("INPUT: give at least one photograph, the path of an image file")
    model = load_model(path, checkpoint=options.checkpoint, device=options.device)
    metadata = metadata_of(1, {name: getattr(options, name) for name in PLACE_AND_TIME})
    meta, present = encode(metadata, model.components)
    ranks = model.tree.ranks
    names = dict(zip(ranks, model.tree.names, strict=True))
    return Questions(model.model, names, [_question(model, photograph, meta, present) for photograph in options.inputs])


def _question(model: TrainedClassifier, photograph: str, meta: np.ndarray, present: np.ndarray) -> Question:
    try:
        image = model.read(photograph)
    except NotAnImage as error:
        raise ConfigError(f"INPUT: {error}") from None
    except OSError as error:
        raise ConfigError(f"INPUT: {photograph} cannot be read ({error.strerror or error}); give the path of an image file") from None

    def ask() -> Answer:
        with torch.inference_mode():
            probabilities, _ = model.results(model.batch([image], meta, present))
        return Answer({rank: p[0].float().cpu().numpy() for rank, p in zip(model.tree.ranks, probabilities, strict=True)})

    return Question(photograph, ask)
