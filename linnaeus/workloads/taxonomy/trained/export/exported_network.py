"""`ExportedNetwork`: a trained classifier as an `nn.Module` from pixels to probabilities, and its graph from `torch.export`.

The module contains normalisation, masking of metadata, test-time augmentation and sums over the tree. The caller must crop and resize the
image, and compute the columns of `meta`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from linnaeus.errors import ConfigError, one_line
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier

IMAGE_INPUT, METADATA_INPUTS = "image", ("meta", "present")


class ExportedNetwork(nn.Module):
    """Network that returns a dict: `<rank>_probabilities`, float [B, C_r], for each rank from coarse to fine, and `path`, int64 [B, R].

    `path` is -1 at ranks without a taxon. Inputs: `image` uint8 [B, 3, S, S]; only for a model with metadata components also `meta` float
    [B, F] and `present` bool [B, M], as `components.encode` returns."""

    def __init__(self, classifier: TrainedClassifier) -> None:
        super().__init__()
        self.model, self.classifier = classifier.model, classifier

    def forward(self, image: Tensor, meta: Tensor | None = None, present: Tensor | None = None) -> dict[str, Tensor]:
        if meta is None or present is None:
            meta, present = image.new_zeros(image.shape[0], 0), image.new_zeros(image.shape[0], 0, dtype=torch.bool)
        probabilities, path = self.classifier.results({"image": image, "meta": meta, "present": present})
        return dict(zip(output_names(self.classifier.tree.ranks), [*probabilities, path], strict=True))


def input_names(components: Sequence[str]) -> list[str]:
    """Return the names of the inputs of a model with these metadata components."""
    return [IMAGE_INPUT, *(METADATA_INPUTS if components else ())]


def output_names(ranks: Sequence[str]) -> list[str]:
    """Return the names of the outputs of a model with these ranks."""
    return [*(f"{rank}_probabilities" for rank in ranks), "path"]


def export_program(classifier: TrainedClassifier, example: Sequence[Tensor]) -> ExportedProgram:
    """Return the graph of a classifier on the CPU, with a dynamic batch size. `example`: inputs of a batch of at least two photographs.

    Raise `ConfigError` for a network that `torch.export` cannot trace, for example a network of a plugin that branches on input values."""
    batch = torch.export.Dim("batch")
    network = ExportedNetwork(classifier).eval().requires_grad_(False)  # operations with `out=` fail where gradients are recorded
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            network(*example)  # makes the tables that are made at the first use; they become constants of the graph
            program = torch.export.export(network, tuple(example), dynamic_shapes=tuple({0: batch} for _ in example))
    except Exception as error:  # the exporter raises exceptions of many types, also those of the network
        name = classifier.description.model.name
        raise ConfigError(
            f"--form: torch.export cannot read the network of model={name} ({one_line(error)}); leave the form out"
        ) from error
    empty = {name: value for name, value in program.constants.items() if isinstance(value, Tensor) and not value.numel()}
    program.constants.update({name: torch.empty_like(value) for name, value in empty.items()})  # torch 2.15 cannot save those of numpy
    return program
