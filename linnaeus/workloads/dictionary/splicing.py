"""Run a model with its activations replaced by their reconstructions, to measure the metric `loss_recovered`.

original   the model as it is
spliced    the output of the module is replaced by its reconstruction, for each dictionary
zero       the output of the module is replaced by zeros
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.dictionary.activation_source import ActivationSource
from linnaeus.workloads.dictionary.model.dictionary_set import DictionarySet
from linnaeus.workloads.dictionary.model.sparse_dictionary import Reconstruction
from linnaeus.workloads.dictionary.tapping import Edit, Tap


class Spliced(NamedTuple):
    """Outputs for a validation batch. activation: float32 [N, d], without padding. weight: float32 [N]. reconstructions: one per
    dictionary.

    original: outputs of the model that is read. zero: its outputs with zeros in place of the activations. spliced: for each dictionary, its
    outputs with the reconstruction in place of the activations. Planted activations: original and zero None, spliced []."""

    activation: Tensor
    weight: Tensor
    reconstructions: list[Reconstruction]
    original: Any
    zero: Any
    spliced: list[Any]


def splice(source: ActivationSource, dictionaries: DictionarySet, batch: Batch) -> Spliced:
    """Run the model of `source` on a batch after `Workload.prepare`: unchanged, with zeros, and with the reconstruction by each dictionary
    in place of the activations. Return all outputs, the activations and their reconstructions."""

    def outputs(edit: Edit | None) -> tuple[Any, Tap]:
        with Tap(source.module, edit, source.channels) as tap, source.run.autocast():
            return source.run.workload.predict(source.run.model, batch), tap

    original, tap = outputs(None)
    rows = tap.rows.float()
    weight = (batch["weight"] > 0).to(rows.dtype).repeat_interleave(len(rows) // len(batch["weight"]))
    mask = source.mask(batch, tap)
    if mask is not None:
        rows, weight = rows[mask.flatten()], weight[mask.flatten()]
    found = dictionaries({"activation": rows, "weight": weight})
    spliced = [outputs(reconstruct(dictionaries[number], rows.device.type))[0] for number in range(len(dictionaries))]
    return Spliced(rows, weight, found, original, outputs(torch.zeros_like)[0], spliced)


def reconstruct(dictionary: Any, device: str) -> Edit:
    """Return a function from activations [N, d] to their reconstructions [N, d] by a dictionary. The function uses the autocast setting
    that is active now, not the one that is active when the model calls it. device: type of the device, such as "cuda"."""
    dtype, precision = dictionary.decoder.dtype, torch.get_autocast_dtype(device)
    enabled = torch.is_autocast_enabled(device)

    def edit(rows: Tensor) -> Tensor:
        with torch.autocast(device, precision, enabled=enabled):
            found: Tensor = dictionary.decode(dictionary.encode(rows.to(dtype)))
        return found

    return edit
