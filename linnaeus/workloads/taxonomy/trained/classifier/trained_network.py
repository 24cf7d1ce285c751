"""`TrainedNetwork`: a network with trained weights, and the probabilities of taxa that it computes from pixels and metadata.

Photographs are read, resized and normalised by the same code as in validation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.weight_matching import load_all
from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError, one_line
from linnaeus.workloads.taxonomy.augment.pipeline import ValidationPipeline
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.images.photographs import DETAIL
from linnaeus.workloads.taxonomy.inputs.preparation import BatchPreparation
from linnaeus.workloads.taxonomy.models import build_network
from linnaeus.workloads.taxonomy.models.classifier import with_place_inputs
from linnaeus.workloads.taxonomy.observations.components import WIDTHS, column_slices, part_columns
from linnaeus.workloads.taxonomy.trained.classifier.description import Description
from linnaeus.workloads.taxonomy.trained.classifier.photograph_inputs import Photograph, name_of, read_photograph
from linnaeus.workloads.taxonomy.trained.probabilities.answers import Scored
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration
from linnaeus.workloads.taxonomy.trained.probabilities.class_probabilities import class_log_probs, only_possible
from linnaeus.workloads.taxonomy.trained.probabilities.familiarity import familiarity
from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PlacePrior
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

Images = Sequence[np.ndarray] | np.ndarray  # photographs or their central squares, see `TrainedNetwork.batch`


class TrainedNetwork:
    """Trained network of a run or a bundle with its tree of taxa, its calibration and its prior, if it has them."""

    possible: Tensor | None = None  # bool [T], `Restriction.possible`; None: all taxa are possible

    def __init__(
        self,
        description: Description,
        tree: TaxonomyTree,
        weights: InitialWeights,
        calibration: Calibration | None = None,
        prior: PlacePrior | None = None,
        device: str = "cpu",
    ) -> None:
        """Build the network and load its weights.

        `calibration`: None: not calibrated. `prior`: weights for the taxa at a place and in a season, fitted together with `calibration`;
        None: no prior. `device`: such as cpu or cuda. Raise `ConfigError` if the network cannot be built, if the weights do not fit the
        network, and if the device does not exist."""
        self.description, self.tree, self.weights, self.calibration = description, tree, weights, calibration
        self.image_size = description.image_sizes[-1]
        self.short_side, inputs = DETAIL * self.image_size, description.components
        try:
            model = build_network(description.model, description.head, description.image_sizes, tree, inputs, pretrained=False)
        except (RuntimeError, MemoryError) as error:  # of a damaged description: sizes that no memory holds
            raise ConfigError(f"the network of {weights.source} cannot be built ({one_line(error)})") from None
        load_all(with_place_inputs(weights, model), model)
        self.device = torch_device(device)
        self.model = model.to(self.device).eval()
        self.use_prior(prior)
        self.pipeline = ValidationPipeline(self.image_size, description.center_crop)

    def use_prior(self, prior: PlacePrior | None) -> None:
        """Weight all later predictions by a prior; None: use no prior.

        Set `components` to the metadata components that the network can use, followed by the components of the prior."""
        self.prior = None if prior is None else prior.to(self.device)
        self.components = self.description.read + (() if prior is None else prior.components)
        self.preparation = BatchPreparation(self.components, column_slices(self.components))

    def read(self, photograph: Photograph) -> np.ndarray:
        """Return the pixels of a photograph, uint8 [H, W, 3], scaled down to the size that `batch` needs.

        Raise `NotAnImage` for bytes that cannot be decoded, `OSError` for a file that cannot be read."""
        try:
            return read_photograph(photograph, self.short_side, self.description.max_image_pixels)
        except NotAnImage as error:
            raise NotAnImage(f"{name_of(photograph) or 'photograph'}: {error}") from None

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        """Return the central square of a photograph, resized to uint8 [S, S, 3], S = `image_size`."""
        square: Tensor = self.pipeline([pixels], np.empty(0))[0]
        return np.ascontiguousarray(square.permute(1, 2, 0).numpy())

    @property
    def width(self) -> int:
        """Return the number of features of a photograph."""
        return self.model.trunk.width

    def fingerprint(self) -> str:
        """Return a SHA-256 of the weights, the image size and the crop, on which features depend. A run and its bundle have equal
        fingerprints."""
        crop = "" if self.description.center_crop == 1 else f", crop {self.description.center_crop}"
        digest = hashlib.sha256(f"image size {self.image_size}{crop}".encode())
        for name, tensor in sorted(self.weights.state.items()):
            digest.update(f"\0{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def scored(self, images: Images, meta: np.ndarray, present: np.ndarray) -> Scored:
        """Return the probabilities and predicted paths of B photographs. The arguments are as for `batch`."""
        with torch.inference_mode():
            return self.scored_of(self.all_scores(self.preparation(self.batch(images, meta, present))))

    def scored_of(self, scores: Scores) -> Scored:
        """Return the calibrated probabilities and predicted paths, after the restriction, and the familiarity, without the restriction.

        `scores`: scores of all taxa, as `all_scores` returns."""
        probabilities, path = self._limited(scores)
        known = familiarity(probabilities if self.possible is None else self.probabilities(scores))
        return Scored(tuple(p.cpu().numpy() for p in probabilities), path.cpu().numpy(), known.cpu().numpy())

    def batch(self, images: Images, meta: np.ndarray, present: np.ndarray) -> Batch:
        """Return photographs and metadata as tensors on the model's device. The images are uint8 [B, 3, S, S], not normalised;
        `self.preparation` normalises them.

        `images`: a list of B photographs, uint8 [H, W, 3] of any size, which are cropped; or an array uint8 [B, S, S, 3] of squares that
        `crop` returned. `meta`, `present`: metadata as `components.encode` returns."""
        if isinstance(images, np.ndarray):
            image = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        else:
            image = self.pipeline(images, np.empty(0))
        batch = {"image": image, "meta": torch.from_numpy(meta), "present": torch.from_numpy(present)}
        return {name: value.to(self.device) for name, value in batch.items()}

    def results(self, batch: Mapping[str, Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return, for a batch, the calibrated probabilities of each rank, float [B, C_r], and the predicted paths, int64 [B, R].

        `batch`, on the model's device: image uint8 [B, 3, S, S], meta float [B, F] and present bool [B, M]. Impossible taxa have
        probability 0."""
        return self._limited(self.all_scores(self.preparation(dict(batch))))

    def scores(self, prepared: Mapping[str, Tensor]) -> Scores:
        """Return the scores of a normalised batch. If this classifier is restricted, the scores are conditional on the possible taxa."""
        scores = self.all_scores(prepared)
        return scores if self.possible is None else scores.among(self.possible)

    def all_scores(self, prepared: Mapping[str, Tensor]) -> Scores:
        """Return the scores of all taxa for a normalised batch, weighted by the prior, if any. A restriction of this classifier is not
        applied."""
        scores = self.network_scores(prepared)
        return scores if self.prior is None else scores.weighted(self.prior.log_weights(**self.prior_inputs(prepared)))

    def network_scores(self, prepared: Mapping[str, Tensor]) -> Scores:
        """Return the scores of all taxa for a normalised batch, without restriction and without prior.

        With test-time augmentation, the probabilities are means over each photograph and its mirror image."""
        scores: Scores = self.outputs(prepared)["scores"]
        if self.description.tta == "none":
            return scores
        return scores.mean([self.outputs(dict(prepared) | {"image": prepared["image"].flip(3)})["scores"]])

    def outputs(self, prepared: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the outputs `scores` and `features` of the network for a normalised batch, without test-time augmentation.

        `prepared` may also have the metadata columns of the prior. The network does not read them."""
        return self.model(dict(prepared) | self._network_inputs(prepared))  # type: ignore[no-any-return]

    def _network_inputs(self, prepared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `meta` float [B, F] and `present` bool [B, M] for all M components of the network. Untrained metadata are absent."""
        slices = column_slices(self.description.read)
        meta, present = prepared["meta"][:, : slices[-1].stop if slices else 0], prepared["present"][:, : len(slices)]
        for place, name in enumerate(self.description.components):
            if name in self.description.untrained:
                start = sum(WIDTHS[before] for before in self.description.components[:place])
                absent = meta.new_zeros(meta.shape[0], WIDTHS[name]), present.new_zeros(present.shape[0], 1)
                meta = torch.cat([meta[:, :start], absent[0], meta[:, start:]], 1)
                present = torch.cat([present[:, :place], absent[1], present[:, place:]], 1)
        for own in part_columns(self.description.components, self.description.untrained):
            zeros = meta.new_zeros(meta.shape[0], own.stop - own.start)
            meta = torch.cat([meta[:, : own.start], zeros, meta[:, own.stop :]], 1)
        return {"meta": meta, "present": present}

    def prior_inputs(self, prepared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs of the prior from a normalised batch: `meta` float [B, F] and `present` bool [B, M] for the M components of the
        prior.

        Without a prior both tensors have no columns."""
        slices = column_slices(self.description.read)
        return {"meta": prepared["meta"][:, slices[-1].stop if slices else 0 :], "present": prepared["present"][:, len(slices) :]}

    def _limited(self, scores: Scores) -> tuple[list[Tensor], Tensor]:
        """Return the calibrated probabilities of each rank, float [B, C_r], and the predicted paths, int64 [B, R], from `scores`, after the
        restriction."""
        if self.possible is None:
            return self.probabilities(scores), scores.path()
        return only_possible(self.probabilities(scores, self.possible), scores.among(self.possible).path(), self.possible)

    def probabilities(self, scores: Scores, possible: Tensor | None = None) -> list[Tensor]:
        """Return the calibrated probabilities of the classes of each rank, float [B, C_r] per rank, from `scores` of all taxa.

        `possible`: bool [T], the taxa to which the calibrated probabilities are restricted; None: no restriction. The temperatures come
        first: they were fitted for choices among all children of a taxon."""
        scores = scores if self.calibration is None else scores.tempered(self.calibration.temperature)
        scores = scores if possible is None else scores.among(possible)
        return [class_log_probs(log_p, size).exp() for log_p, size in zip(scores.log_probs(), self.tree.sizes, strict=True)]


def torch_device(name: str) -> torch.device:
    """Return the torch device `name`, such as cpu or cuda. Raise `ConfigError` if this machine does not have the device."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device is {name!r}, which this machine does not have; use cpu or cuda") from None
