"""Put reconstructed activations back into the model that they come from, to measure its loss with them: `loss recovered`.

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
    """Outputs for a validation batch of samples. activation: float32 [N, d], those that are not padding; weight: float32 [N].

    original, zero: outputs of the model that is read. spliced: its outputs with the reconstruction of each dictionary."""

    activation: Tensor
    weight: Tensor
    reconstructions: list[Reconstruction]
    original: Any
    zero: Any
    spliced: list[Any]


def splice(source: ActivationSource, dictionaries: DictionarySet, batch: Batch) -> Spliced:
    """Return the outputs of the model of `source` for a prepared batch, with and without the dictionaries."""

    def outputs(edit: Edit | None) -> tuple[Any, Tap]:
        with Tap(source.module, edit) as tap, source.run.autocast():
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
    """Return the function that reconstructs activations [N, d] with a dictionary, in the precision that is set at this call: the model that
    is read may have another one."""
    dtype, precision = dictionary.decoder.dtype, torch.get_autocast_dtype(device)
    enabled = torch.is_autocast_enabled(device)

    def edit(rows: Tensor) -> Tensor:
        with torch.autocast(device, precision, enabled=enabled):
            found: Tensor = dictionary.decode(dictionary.encode(rows.to(dtype)))
        return found

    return edit
