"""`PhotographTable`: the results of each sample of a validation pass, on the host. From it tables by photograph, and metrics of some of the
samples, are made."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.accuracy import in_top_k
from linnaeus.workloads.taxonomy.metrics.batch_view import BatchView


class PhotographTable:
    """Part of `TaxonomyMetrics` that stores results of each sample as arrays [N, R]. It adds no metric. N samples, R ranks."""

    def __init__(self, size: int, ranks: int) -> None:
        self.counts: dict[str, Tensor] = {}
        self.real = np.zeros(size, dtype=bool)  # [N]: the sample was decoded
        self.path = np.full((size, ranks), -1)  # int64: the predicted class, -1 for none
        self.path_log_p = np.full((size, ranks), np.nan, np.float32)  # its log-probability
        self.in_top5 = np.zeros((size, ranks), dtype=bool)  # the label is among the five most probable classes
        self.loss = np.zeros((size, ranks))  # float64: -log p of the label, 0 without one
        self.best_right = np.zeros((size, ranks), dtype=bool)  # the most probable class is the label
        self.best_log_p = np.full((size, ranks), np.nan, np.float32)  # log-probability of the most probable class

    def count(self, view: BatchView) -> None:
        """Store the results of the samples of a batch. The call waits for the device."""
        columns = {
            "real": view.real,
            "path": view.path,
            "path_log_p": view.path_log_p,
            "in_top5": in_top_k(view),
            "loss": -torch.stack(view.scores.label_log_probs(view.label)[0], 1).double(),
            "best_right": (view.best == view.label) & view.known,
            "best_log_p": view.best_log_p,
        }
        rows = view.sample.cpu().numpy()
        for name, values in columns.items():
            getattr(self, name)[rows] = values.cpu().numpy()

    def compute(self, counts: Mapping[str, Tensor]) -> dict[str, float]:
        return {}
