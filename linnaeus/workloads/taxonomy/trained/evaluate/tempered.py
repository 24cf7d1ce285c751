"""`Tempered`: the results of each photograph after the temperatures of a calibration, and the calibration error of such results."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.taxonomy.metrics.confidence import Calibration as CalibrationError
from linnaeus.workloads.taxonomy.metrics.tree_tables import TreeTables
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import confident_paths
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from linnaeus.workloads.taxonomy.tree.ranges import argmax


class Tempered:
    """Results of N photographs after the temperatures of a calibration. For a model without a calibration the temperatures are 1."""

    def __init__(self, size: int, ranks: int) -> None:
        self.best = np.full((size, ranks), -1)  # int64: the most probable class; not always that without temperatures
        self.best_log_p = np.full((size, ranks), np.nan, np.float32)  # its log-probability
        self.confidence = np.zeros((size, ranks))  # of the taxa of the path, as `Paths` has it
        self.familiarity = np.zeros(size, np.float32)

    def keep(self, rows: np.ndarray, probabilities: list[Tensor], path: np.ndarray, familiar: Tensor) -> None:
        """Store the results of a batch of B photographs at the positions `rows`, int64 [B].

        `probabilities`: [B, C_r] per rank. `path`: predicted paths, int64 [B, R]. `familiar`: familiarity of the photographs, [B]."""
        for r, p in enumerate(probabilities):
            if p.shape[1]:
                best = argmax(p)
                self.best[rows, r] = best.cpu().numpy()
                self.best_log_p[rows, r] = p.gather(1, best.unsqueeze(1))[:, 0].log().cpu().numpy()
        self.confidence[rows] = confident_paths(tuple(p.cpu().numpy() for p in probabilities), path).confidence
        self.familiarity[rows] = familiar.cpu().numpy()


def calibration_error(tree: TaxonomyTree, known: np.ndarray, best_right: np.ndarray, best_log_p: np.ndarray) -> dict[str, float]:
    """Return the expected calibration error `<rank>/ece` of each rank over N photographs.

    `known`: bool [N, R], True where there is a label. `best_right`: bool [N, R], True if the most probable class is the label.
    `best_log_p`: float [N, R], log-probability of the most probable class."""
    error = CalibrationError(TreeTables(tree, torch.device("cpu")), torch.device("cpu"))
    error.add(*map(torch.from_numpy, (known, best_right, best_log_p)))
    return error.compute(error.counts)
