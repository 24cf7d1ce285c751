"""Compute the activities of a dictionary's features on samples of the run whose model the dictionary was trained on.

The activity of a feature is its coefficient in the reconstruction. A place is a position in the output of the module for one sample: a
token, or a pixel of a feature map. F: number of features. P: number of places per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.workloads.dictionary.activation_source import spread
from linnaeus.workloads.dictionary.tapping import Tap
from linnaeus.workloads.dictionary.trained.trained_dictionary import TrainedDictionary
from linnaeus.workloads.opened_run import OpenedRun

BATCH = 32
TOP = 8  # samples with the largest activities that are kept for each feature
FEW = 8  # up to this number of tokens per sample, such as class tokens, `peaks` has each token separately


class Activity(NamedTuple):
    """Activities of a batch of B samples at P places (tokens or pixels) each.

    activities: [B, P, F], 0 for padding and for samples that cannot be decoded. places: shape of the P places, (T,) or (H, W); () for a
    module output [B, d]. real: number of places in the batch, without padding and samples that cannot be decoded."""

    activities: Tensor
    places: tuple[int, ...]
    real: int


class Reader:
    """Reader of a dictionary's activities on samples.

    run: opened run of the model. module: module of the model whose output is recorded. trained: dictionary for this output."""

    def __init__(self, run: OpenedRun, module: nn.Module, trained: TrainedDictionary) -> None:
        self.run, self.trained, self.module = run, trained, module
        self.channels = "first" if trained.place is None else trained.place.channels
        self.device = next(run.model.parameters()).device

    def prepared(self, host: Batch) -> Batch:
        """Move a batch from the host to the device, apply `Workload.prepare`, and return the result."""
        return self.run.workload.prepare({name: value.to(self.device) for name, value in host.items()})

    def read(self, host: Batch) -> Activity:
        """Run the model on a batch, and return the activities of the dictionary. host: batch on the host, before `Workload.prepare`."""
        with Tap(self.module, channels=self.channels) as tap, torch.inference_mode(), self.run.autocast():
            self.run.model(self.prepared(host))
        size = len(host["sample"])
        found = self.trained.encode(tap.rows).view(size, -1, self.trained.features)
        places = tap.shape[1:-1] if len(tap.shape) < 4 else tap.shape[2:]
        real = host["weight"].bool().to(self.device).unsqueeze(1).expand(found.shape[:2])
        mask = self.run.workload.real_positions(host) if len(places) == 1 else None
        if mask is not None and mask.shape == found.shape[:2]:
            real = real & mask.to(self.device)
        return Activity(found * real.unsqueeze(2), places, int(real.sum()))

    def scores(self, host: Batch, position: Tensor | None, edit: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
        """Return {group of outputs: log-probabilities [B, C]} of the model for a batch on the host.

        position: int64 [B], position in the sequence whose prediction is returned; None: the last position. edit: function that replaces
        the output rows [N, d] of the module; None: no edit."""
        view = self.run.workload.sample_view()
        with Tap(self.module, edit, self.channels), torch.inference_mode(), self.run.autocast():
            return view.scores(self.run.model, self.prepared(host), position)


def batches(dataset: PositionedDataset, samples: Sequence[int] | np.ndarray) -> Iterator[Batch]:
    """Yield samples of `dataset` in batches of at most `BATCH`, on the host. samples: dataset indices, in the order in which they are
    returned."""
    for start in range(0, len(samples), BATCH):
        yield batch_of(dataset, samples[start : start + BATCH])


def batch_of(dataset: PositionedDataset, samples: Sequence[int] | np.ndarray) -> Batch:
    """Return samples of `dataset` as one batch on the host. samples: dataset indices."""
    return dataset.__getitems__([SampleIndex(0, int(sample), int(sample), 0) for sample in samples])


class FeatureTable(NamedTuple):
    """Statistics of F features over S samples. A place is a token or a pixel; padding and samples that cannot be decoded have no places.

    density: float64 [F], share of the places where a feature is active. energy: float64 [F], mean square of the activities over the places.
    strength: [F, K], for each feature the K = `TOP` samples' largest activities, descending; -1 if there are fewer than K samples. sample:
    [F, K], dataset indices of these samples (not rows of `peaks`); without meaning where `strength` is -1. samples: S. places: number of
    places in all samples.

    peaks: float32 [S, 1, F], maximum activity in each sample; for module outputs with at most `FEW` tokens float32 [S, P, F], the activity
    at each token; None if not kept. labels: group -> class of each sample, int64 [S], -1 if it is
    unknown or the sample cannot be decoded; {} if not kept."""

    density: np.ndarray
    energy: np.ndarray
    strength: np.ndarray
    sample: np.ndarray
    samples: int
    places: int
    peaks: np.ndarray | None
    labels: dict[str, np.ndarray]


def feature_table(reader: Reader, dataset: PositionedDataset, most: int, keep_peaks: bool = False) -> FeatureTable:
    """Return the statistics of the features over at most `most` evenly spaced samples of `dataset`. keep_peaks: True: fill `peaks` and
    `labels`."""
    view, features, device = reader.run.workload.sample_view(), reader.trained.features, reader.device
    active, energy = (torch.zeros(features, dtype=torch.float64, device=device) for _ in range(2))
    strength = torch.full((features, TOP), -1.0, device=device)
    sample = torch.zeros((features, TOP), dtype=torch.int64, device=device)
    chosen, places, peaks, labels = spread(len(dataset), most), 0, [], []
    for host in batches(dataset, chosen):
        found = reader.read(host)
        places += found.real
        active += (found.activities > 0).sum((0, 1))
        energy += found.activities.double().square().sum((0, 1))
        peak = found.activities.amax(1).float()  # [B, F]
        numbers = host["sample"].to(device).expand(features, -1)
        strength, order = torch.cat([strength, peak.T], 1).topk(TOP, dim=1)
        sample = torch.cat([sample, numbers], 1).gather(1, order)
        if keep_peaks:
            few = len(found.places) == 1 and found.places[0] <= FEW
            peaks.append((found.activities.float() if few else peak.unsqueeze(1)).cpu())
            decoded = host["weight"] > 0
            labels.append({group: torch.where(decoded, label.cpu(), -1) for group, label in view.labels(host).items()})
    density, mean_square = ((total / max(places, 1)).cpu().numpy() for total in (active, energy))
    joined = {group: torch.cat([one[group] for one in labels]).numpy() for group in view.classes} if keep_peaks else {}
    kept = torch.cat(peaks).numpy() if keep_peaks else None
    return FeatureTable(density, mean_square, strength.cpu().numpy(), sample.cpu().numpy(), len(chosen), places, kept, joined)
