"""Measure the effect of a feature on the outputs of the model: their probabilities with the feature, less those without it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.dictionary.reading.activity import Activity, Reader


class Effect(NamedTuple):
    """Mean change of the probability of an output by a feature, over samples on which it is active."""

    group: str
    output: str
    change: float


def effects(reader: Reader, host: Batch, found: Activity, feature: int, most: int = 4) -> list[Effect]:
    """Return the outputs whose probability a feature raises most, and those that it lowers most, in descending order of the change.

    host: samples on which the feature is active, and their activities `found`. In a sequence the output is that at the place where the
    feature is strongest. Sources: SplatNLP and Bricken et al. 2023 multiply decoder and output weights; here the model is run, because
    layers follow that are not linear."""
    position: Tensor | None = None
    if len(found.places) == 1:
        position = found.activities[:, :, feature].argmax(1)
    with_it = reader.scores(host, position)
    without = reader.scores(host, position, reader.trained.editing({feature: 0.0}))
    outputs = reader.run.workload.sample_view().outputs
    changes: list[Effect] = []
    for group, names in outputs.items():
        change = (with_it[group].double().exp() - without[group].double().exp()).mean(0)
        largest = torch.cat([change.topk(min(most, len(change))).indices, (-change).topk(min(most, len(change))).indices])
        changes += [Effect(group, names[i], float(change[i])) for i in dict.fromkeys(largest.tolist())]
    ordered = sorted((effect for effect in changes if abs(effect.change) >= 1e-4), key=lambda effect: -effect.change)
    raised = [effect for effect in ordered if effect.change > 0][:most]
    lowered = [effect for effect in ordered if effect.change < 0][-most:]
    return raised + lowered
