"""Measure the effect of a feature on the outputs of a model: probability of each output with the feature, minus the probability without
it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.dictionary.reading.activity import Activity, Reader


class Effect(NamedTuple):
    """Effect of a feature on one output: the mean change of its probability over samples on which the feature is active.

    change: -1 to 1, positive if the feature raises the probability."""

    group: str
    output: str
    change: float


def effects(reader: Reader, host: Batch, found: Activity, feature: int, most: int = 4) -> list[Effect]:
    """Return the outputs whose probability a feature changes most: at most `most` raised and `most` lowered ones over all groups of
    outputs, in descending order of the change. Changes smaller than 0.0001 are left out.

    host: batch of samples on which the feature is active. found: activities on this batch. For module outputs [B, T, d] the prediction at
    the token with the largest activity is used.

    The model runs with and without the feature, because layers after the module are not linear. (SplatNLP and Bricken et al. 2023 multiply
    decoder vectors by output weights instead.)"""
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
