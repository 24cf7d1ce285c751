"""`TrainedClassifier`: a classifier with its weights, for use: `predict` names taxa on photographs, and `embed` returns features.

Photographs are read, resized and normalised as in the validation of the run, by the same code.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.weight_matching import load_matched, match_weights
from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment.pipeline import ValidationPipeline
from linnaeus.workloads.taxonomy.components import column_slices, encode
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.manifest.integrity import NotAnImage
from linnaeus.workloads.taxonomy.manifest.photographs import DETAIL
from linnaeus.workloads.taxonomy.models import build_network
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.preparation import BatchPreparation
from linnaeus.workloads.taxonomy.trained.answers import Answers, Asked, Prediction, Scored
from linnaeus.workloads.taxonomy.trained.calibration import Calibration
from linnaeus.workloads.taxonomy.trained.description import Description
from linnaeus.workloads.taxonomy.trained.photograph_inputs import Photograph, is_one, name_of, read_photograph
from linnaeus.workloads.taxonomy.trained.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.restriction import Restriction, of_names
from linnaeus.workloads.taxonomy.trained.taxon_index import TaxonIndex
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

BATCH = 32  # photographs of `predict` at once
USUAL_PRECISION = 0.95


class TrainedClassifier:
    """Network of a run or a bundle. Without a `calibration` there are no rolled-up answers."""

    restriction: Restriction | None = None  # of the predictions; None: all taxa are possible

    def __init__(
        self,
        description: Description,
        tree: TaxonomyTree,
        weights: InitialWeights,
        calibration: Calibration | None = None,
        device: str = "cpu",
    ) -> None:
        """Raise `ConfigError` for weights of another network, or a device that does not exist."""
        self.description, self.tree, self.weights, self.calibration = description, tree, weights, calibration
        self.components, self.image_size = description.components, description.image_sizes[-1]
        self.short_side = DETAIL * self.image_size
        model = build_network(description.model, description.head, description.image_sizes, tree, self.components, pretrained=False)
        load_matched(weights, match_weights(weights, model), model)
        self.device = torch_device(device)
        self.model = model.to(self.device).eval()
        self.preparation = BatchPreparation(self.components, column_slices(self.components))
        self.pipeline = ValidationPipeline(self.image_size)
        self.possible: Tensor | None = None  # bool [T], of a restriction
        self.answers = Answers(tree)

    def restricted(self, names: Sequence[str]) -> TrainedClassifier:
        """Return a classifier with the same network, whose predictions are among the taxa with these names and those below them.

        A name is that of a taxon of any rank, its lineage, or `genus:Morus`. A taxon with finer taxa of the list below it stands for
        these. Warn about names that the model does not have: all are in `restriction.unmatched`. Raise `ConfigError` if it has none."""
        return self.limited(of_names(TaxonIndex(self.tree), names))

    def limited(self, restriction: Restriction) -> TrainedClassifier:
        """Return a classifier with the same network that is limited by `restriction` and by the restriction of this classifier, if any.

        Raise `ConfigError` if the two restrictions have no taxon in common."""
        other = copy.copy(self)
        other.restriction = restriction.within(self.restriction)
        if other.restriction.leaves.sum() < (~self.tree.has_children[:-1]).sum():
            other.possible = torch.from_numpy(other.restriction.possible).to(self.device)
            other.answers = Answers(self.tree, other.restriction.possible)
        return other

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
        precision: float | None = None,
        coverage: float | None = None,
        among: Sequence[str] | None = None,
    ) -> Any:
        """Return the `Prediction` of a photograph, or a list of them for a list of photographs.

        A photograph is a path, the bytes of an image file, uint8 pixels [H, W, 3] in RGB, or a PIL picture. Place and time are one value
        for all or one for each; None is unknown: degrees north and east, metres of uncertainty, a date such as 2026-05-01, the local time
        such as 16:10, metres above the sea. `top`: taxa of each rank. Of a calibrated model: `precision` of the rolled-up answer, by
        default 0.95 or, if that was not fitted, the lowest one; `coverage` of prediction sets, which take the place of the `top` taxa.
        `among`: names of the taxa that are possible, as for `restricted`, which is faster for several calls.

        Raise `ConfigError` for an impossible value, `NotAnImage` for bytes that cannot be decoded, and `OSError` for a file that cannot be
        read."""
        given = {"latitude": latitude, "longitude": longitude, "uncertainty": uncertainty}
        given |= {"date": date, "time": time, "elevation": elevation}
        asked = self.asked(top, precision, coverage)
        model = self if among is None else self.restricted(among)
        found: list[Prediction] = []
        for several, metadata in batches(photographs, given):
            found += model.predict_pixels([self.read(p) for p in several], metadata, [*map(name_of, several)], asked)
        return found[0] if is_one(photographs) else found

    def embed(
        self,
        photographs: Photograph | Sequence[Photograph],
        *,
        latitude: Any = None,
        longitude: Any = None,
        uncertainty: Any = None,
        date: Any = None,
        time: Any = None,
        elevation: Any = None,
        normalize: bool = False,
    ) -> np.ndarray:
        """Return the features float32 [width] of a photograph, or [N, width] of a list of N: the input of the head, for the finest rank.

        Photographs, place and time are as for `predict`, and the errors, too. `normalize`: divide features by their length. There is no
        test-time augmentation."""
        given = {"latitude": latitude, "longitude": longitude, "uncertainty": uncertainty}
        given |= {"date": date, "time": time, "elevation": elevation}
        found = [np.empty((0, self.width), np.float32)]
        for several, metadata in batches(photographs, given):
            found.append(self.features([self.read(p) for p in several], metadata, normalize))
        features = np.concatenate(found)
        return features[0] if is_one(photographs) else features

    def asked(self, top: int = 5, precision: float | None = None, coverage: float | None = None) -> Asked:
        """Return the settings of predictions. The default of `precision` is 0.95, or the lowest fitted precision if 0.95 was not fitted.

        Raise `ConfigError` for a precision or coverage that was not fitted, and for either of them if the model is not calibrated."""
        if self.calibration is None:
            if precision is not None or coverage is not None:
                name = "precision" if precision is not None else "coverage"
                raise ConfigError(f"{name} needs a calibrated model; calibrate it with `linnaeus calibrate RUN`")
            return Asked(top)
        fitted = [one.precision for one in self.calibration.precisions]
        chosen = precision if precision is not None else USUAL_PRECISION if USUAL_PRECISION in fitted else fitted[0]
        sets = None if coverage is None else self.calibration.set_thresholds(coverage)
        return Asked(top, chosen, self.calibration.threshold(chosen), sets)

    def read(self, photograph: Photograph) -> np.ndarray:
        """Return a photograph as the network's input is made from, uint8 [H, W, 3]. Raise as `predict`."""
        try:
            return read_photograph(photograph, self.short_side, self.description.max_image_pixels)
        except NotAnImage as error:
            raise NotAnImage(f"{name_of(photograph) or 'photograph'}: {error}") from None

    def predict_pixels(
        self, images: Sequence[np.ndarray], metadata: Metadata, names: Sequence[str | None], asked: Asked
    ) -> list[Prediction]:
        """Return the predictions of B photographs as `read` returns them, with the metadata of each."""
        meta, present = encode(metadata, self.components)
        return self.answers.predictions(self.scored(images, meta, present), names, present, self.components, asked)

    def features(self, images: Sequence[np.ndarray], metadata: Metadata, normalize: bool = False) -> np.ndarray:
        """Return the features float32 [B, width] of B photographs as `read` returns them, with the metadata of each.

        `normalize`: divide the features of each photograph by their length."""
        with torch.inference_mode():
            batch = self.batch(images, *encode(metadata, self.components))
            features: Tensor = self.model(dict(self.preparation(batch)))["features"].float()
            return (F.normalize(features) if normalize else features).cpu().numpy()

    @property
    def width(self) -> int:
        """Return the number of features."""
        return self.model.trunk.width

    def fingerprint(self) -> str:
        """Return the SHA-256 of the weights and the image size, which determine features. That of a run is that of its bundle."""
        digest = hashlib.sha256(f"image size {self.image_size}".encode())
        for name, tensor in sorted(self.weights.state.items()):
            digest.update(f"\0{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def scored(self, images: Sequence[np.ndarray], meta: np.ndarray, present: np.ndarray) -> Scored:
        """Return the probabilities of B photographs uint8 [H, W, 3] of any size. `meta`, `present`: of `components.encode`."""
        with torch.inference_mode():
            probabilities, path = self.results(self.batch(images, meta, present))
            return Scored(tuple(p.cpu().numpy() for p in probabilities), path.cpu().numpy())

    def batch(self, images: Sequence[np.ndarray], meta: np.ndarray, present: np.ndarray) -> Batch:
        """Return photographs as for `scored` as a batch on the model's device, with square images, not yet prepared."""
        batch = {"image": self.pipeline(images, np.empty(0)), "meta": torch.from_numpy(meta), "present": torch.from_numpy(present)}
        return {name: value.to(self.device) for name, value in batch.items()}

    def results(self, batch: Mapping[str, Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the probabilities of each rank, float [B, C_r], and the path, int64 [B, R], of a batch on the model's device.

        `batch`: image uint8 [B, 3, S, S], meta float [B, F] and present bool [B, M]."""
        scores = self.scores(self.preparation(dict(batch)))
        temperature = self.calibration.temperature if self.calibration is not None else (1.0,) * len(self.tree.ranks)
        ranks = zip(scores.log_probs(), self.tree.sizes, temperature, strict=True)
        probabilities, path = [class_log_probs(log_p, size, t).exp() for log_p, size, t in ranks], scores.path()
        return (probabilities, path) if self.possible is None else only_possible(probabilities, path, self.possible)

    def scores(self, prepared: Mapping[str, Tensor]) -> Scores:
        """Return the scores of a prepared batch, given a possible taxon; with test-time augmentation the means of its views."""
        scores: Scores = self.model(dict(prepared))["scores"]
        if self.description.tta != "none":
            mirrored = self.model(dict(prepared) | {"image": prepared["image"].flip(3)})
            scores = scores.mean([mirrored["scores"]])
        return scores if self.possible is None else scores.among(self.possible)


def batches(photographs: Photograph | Sequence[Photograph], given: Mapping[str, Any]) -> Iterator[tuple[Sequence[Photograph], Metadata]]:
    """Yield the photographs in batches, with their metadata. `given`: as of `metadata_of`. Raise `ConfigError` as it does."""
    several: Sequence[Photograph] = [photographs] if is_one(photographs) else photographs  # type: ignore[assignment]
    metadata = metadata_of(len(several), given)
    for first in range(0, len(several), BATCH):
        rows = slice(first, first + BATCH)
        yield several[rows], metadata.take(rows)


def torch_device(name: str) -> torch.device:
    """Return the device of a name such as cpu or cuda. Raise `ConfigError` if it does not exist."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device is {name!r}, which this machine does not have; use cpu or cuda") from None


def class_log_probs(log_probs: Tensor, size: int, temperature: float = 1.0) -> Tensor:
    """Return the log-probabilities [B, size] of a rank's classes, from log-probabilities [B, size] or [B, size + 1] with the null label.

    They are conditional on a class at this rank, so their probabilities sum to 1. Where the tree has holes, those of the classes alone need
    not."""
    classes = log_probs[:, :size] / temperature
    return classes - classes.logsumexp(1, keepdim=True) if classes.shape[1] else classes


def only_possible(probabilities: Sequence[Tensor], path: Tensor, possible: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the probabilities [B, C_r] and the path [B, R] without impossible classes: probability 0, and -1.

    `possible`: bool [T]. Only at a rank that has no possible class do scores give a probability to others."""
    masks = possible.split([p.shape[1] for p in probabilities])
    columns = [
        torch.where((own >= 0) & mask[own.clamp(min=0)], own, -1) if len(mask) else own
        for own, mask in zip(path.unbind(1), masks, strict=True)
    ]
    return [p * mask for p, mask in zip(probabilities, masks, strict=True)], torch.stack(columns, 1)
