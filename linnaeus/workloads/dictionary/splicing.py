"""Run a model with the activations of one module replaced by reconstructions, to measure the metric `loss_recovered`.

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
    """Outputs of the dictionaries and of the model that is read, for one validation batch.

    activation: float32 [N, d], without padding. weight: float32 [N]. place: int64 [N], row of the batch to which each activation belongs.
    reconstructions: one for each dictionary. original: outputs of the model. zero: outputs of the model with zeros as activations. spliced:
    for each dictionary, outputs of the model with the reconstruction as activations. For planted activations `original` and `zero` are
    None, and `spliced` is []."""

    activation: Tensor
    weight: Tensor
    place: Tensor
    reconstructions: list[Reconstruction]
    original: Any
    zero: Any
    spliced: list[Any]


def splice(source: ActivationSource, dictionaries: DictionarySet, batch: Batch) -> Spliced:
    """Run the model of `source` unchanged, with zeros as activations, and with the reconstruction by each dictionary as activations.

    Return all outputs, the activations and the reconstructions. batch: after `Workload.prepare`."""

    def outputs(edit: Edit | None) -> tuple[Any, Tap]:
        with Tap(source.module, edit, source.channels) as tap, source.run.autocast():
            return source.run.workload.predict(source.run.model, batch), tap

    original, tap = outputs(None)
    rows = tap.rows.float()
    each = len(rows) // len(batch["weight"])
    weight = (batch["weight"] > 0).to(rows.dtype).repeat_interleave(each)
    place = torch.arange(len(batch["weight"]), device=rows.device).repeat_interleave(each)
    mask = source.mask(batch, tap)
    if mask is not None:
        rows, weight, place = rows[mask.flatten()], weight[mask.flatten()], place[mask.flatten()]
    found = dictionaries({"activation": rows, "weight": weight})
    spliced = [outputs(reconstruct(dictionaries[number], rows.device.type))[0] for number in range(len(dictionaries))]
    return Spliced(rows, weight, place, found, original, outputs(torch.zeros_like)[0], spliced)


def reconstruct(dictionary: Any, device: str) -> Edit:
    """Return a function that maps activations [N, d] to their reconstructions [N, d] by `dictionary`.

    The function uses the autocast setting that is active when `reconstruct` is called, not when the model calls the function. device: type
    of the device, such as "cuda"."""
    dtype, precision = dictionary.decoder.dtype, torch.get_autocast_dtype(device)
    enabled = torch.is_autocast_enabled(device)

    def edit(rows: Tensor) -> Tensor:
        with torch.autocast(device, precision, enabled=enabled):
            found: Tensor = dictionary.decode(dictionary.encode(rows.to(dtype)))
        return found

    return edit
