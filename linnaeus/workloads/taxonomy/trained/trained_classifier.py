"""`TrainedClassifier`: a classifier with its weights, for use: `predict` answers for photographs, with or without place and time.

Photographs are read, resized and normalised as in the validation of the run, by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.weight_matching import load_matched, match_weights
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment.pipeline import ValidationPipeline
from linnaeus.workloads.taxonomy.components import column_slices, encode
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.manifest.integrity import NotAnImage
from linnaeus.workloads.taxonomy.manifest.photographs import DETAIL
from linnaeus.workloads.taxonomy.models import build_network
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.preparation import BatchPreparation
from linnaeus.workloads.taxonomy.trained.answers import Answers, Prediction, Scored
from linnaeus.workloads.taxonomy.trained.description import Description
from linnaeus.workloads.taxonomy.trained.photograph_inputs import Photograph, is_one, name_of, read_photograph
from linnaeus.workloads.taxonomy.trained.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

BATCH = 32  # photographs of `predict` at once


class TrainedClassifier:
    """The network of a run or a bundle. `source`: where its weights come from, for messages."""

    def __init__(self, description: Description, tree: TaxonomyTree, weights: InitialWeights, device: str = "cpu") -> None:
        """Raise `ConfigError` for weights of another network, or a device that does not exist."""
        self.description, self.tree, self.weights = description, tree, weights
        self.components, self.image_size = description.components, description.image_sizes[-1]
        self.short_side = DETAIL * self.image_size
        model = build_network(description.model, description.head, description.image_sizes, tree, self.components, pretrained=False)
        load_matched(weights, match_weights(weights, model), model)
        try:
            self.device = torch.device(device)
            self.model = model.to(self.device).eval()
        except (RuntimeError, AssertionError):
            raise ConfigError(f"device is {device!r}, which this machine does not have; use cpu or cuda") from None
        self.preparation = BatchPreparation(self.components, column_slices(self.components))
        self.pipeline = ValidationPipeline(self.image_size)
        self.answers = Answers(tree)

    def predict(
        self,
        photographs: Photograph | Sequence[Photograph],
        *,
        latitude: Any = None,
        longitude: Any = None,
        uncertainty: Any = None,
        date: Any = None,
        time: Any = None,
        elevation: Any = None,
        top: int = 5,
    ) -> Any:
        """Return the `Prediction` of a photograph, or a list of them for a list of photographs.

        A photograph is a path, the bytes of an image file, uint8 pixels [H, W, 3] in RGB, or a PIL picture. Place and time are one value
        for all or one for each; None is unknown: degrees north and east, metres of uncertainty, a date such as 2026-05-01, the local time
        such as 16:10, metres above the sea. `top`: taxa of each rank. Raise `ConfigError` for an impossible value, `NotAnImage` for
        bytes that cannot be decoded, and `OSError` for a file that cannot be read."""
        given = {"latitude": latitude, "longitude": longitude, "uncertainty": uncertainty}
        given |= {"date": date, "time": time, "elevation": elevation}
        single = is_one(photographs)
        several: Sequence[Photograph] = [photographs] if single else photographs  # type: ignore[assignment]
        metadata = metadata_of(len(several), given)
        found: list[Prediction] = []
        for first in range(0, len(several), BATCH):
            rows = slice(first, first + BATCH)
            found += self.predict_pixels([self.read(p) for p in several[rows]], metadata.take(rows), [*map(name_of, several[rows])], top)
        return found[0] if single else found

    def read(self, photograph: Photograph) -> np.ndarray:
        """Return a photograph as the network's input is made from, uint8 [H, W, 3]. Raise as `predict`."""
        try:
            return read_photograph(photograph, self.short_side, self.description.max_image_pixels)
        except NotAnImage as error:
            raise NotAnImage(f"{name_of(photograph) or 'photograph'}: {error}") from None

    def predict_pixels(
        self, images: Sequence[np.ndarray], metadata: Metadata, names: Sequence[str | None], top: int = 5
    ) -> list[Prediction]:
        """Return the predictions of B photographs as `read` returns them, with the metadata of each."""
        meta, present = encode(metadata, self.components)
        return self.answers.predictions(self.scored(images, meta, present), names, present, self.components, top)

    def scored(self, images: Sequence[np.ndarray], meta: np.ndarray, present: np.ndarray) -> Scored:
        """Return the probabilities of B photographs uint8 [H, W, 3] of any size. `meta`, `present`: of `components.encode`."""
        batch = {"image": self.pipeline(images, np.empty(0)), "meta": torch.from_numpy(meta), "present": torch.from_numpy(present)}
        with torch.inference_mode():
            probabilities, path = self.results({name: value.to(self.device) for name, value in batch.items()})
            return Scored(tuple(p.cpu().numpy() for p in probabilities), path.cpu().numpy())

    def results(self, batch: Mapping[str, Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the probabilities of each rank, float [B, C_r], and the path, int64 [B, R], of a batch on the model's device.

        `batch`: image uint8 [B, 3, S, S], meta float [B, F] and present bool [B, M]."""
        scores = self.scores(self.preparation(dict(batch)))
        ranks = zip(scores.log_probs(), self.tree.sizes, strict=True)
        return [class_probabilities(log_p, size) for log_p, size in ranks], scores.path()

    def scores(self, prepared: Mapping[str, Tensor]) -> Scores:
        """Return the scores of a prepared batch; with test-time augmentation the means of its views."""
        scores: Scores = self.model(dict(prepared))["scores"]
        if self.description.tta == "none":
            return scores
        mirrored = self.model(dict(prepared) | {"image": prepared["image"].flip(3)})
        return scores.mean([mirrored["scores"]])


def class_probabilities(log_probs: Tensor, size: int) -> Tensor:
    """Return the probabilities [B, size] of a rank's classes, from log-probabilities [B, size] or [B, size + 1] with the null label.

    They are conditional on a class at this rank, so they sum to 1. Where the tree has holes the classes alone need not."""
    classes = log_probs[:, :size]
    return (classes - classes.logsumexp(1, keepdim=True)).exp() if classes.shape[1] else classes
