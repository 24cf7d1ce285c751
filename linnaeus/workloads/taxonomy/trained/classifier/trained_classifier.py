"""`TrainedClassifier`: a trained network that answers questions about photographs. `predict` returns the taxa on photographs, `embed`
returns features of photographs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.errors import ConfigError, quoted
from linnaeus.workloads.taxonomy.heads import Scores
from linnaeus.workloads.taxonomy.heads.head import group_mean
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.classifier.photograph_inputs import Photograph, is_one, name_of
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_network import Images, TrainedNetwork
from linnaeus.workloads.taxonomy.trained.probabilities.answers import MEAN, PRODUCT, TOGETHER, Answers, Asked, Prediction
from linnaeus.workloads.taxonomy.trained.restrictions.restriction import Restriction, of_names
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex

BATCH = 32  # photographs per forward pass of `predict` and `embed`
USUAL_PRECISION = 0.95  # of rolled-up answers, if none is given


@dataclass(frozen=True)
class Together:
    """Scores of G groups of photographs, from all photographs so far."""

    scores: Scores  # of the network, without the prior: geometric means over the photographs of each group
    log_weights: Tensor | None  # float [G, T]: mean log-weight of the prior; None: no prior
    photographs: np.ndarray  # int64 [G]: number of photographs of each group
    known: np.ndarray  # bool [G, M]: some photograph of the group has a value of the metadata component


class TrainedClassifier(TrainedNetwork):
    """Trained network of a run or a bundle with its tree of taxa. Without a calibration, predictions have no rolled-up answer (the finest
    taxon that is confident enough)."""

    restriction: Restriction | None = None  # taxa that predictions may name; None: all taxa

    @cached_property
    def answers(self) -> Answers:
        """Return the maker of predictions, whose names and lineages are those of the tree."""
        return Answers(self.tree)

    def restricted(self, names: Sequence[str]) -> TrainedClassifier:
        """Return a classifier with the same network whose predictions are restricted to the named taxa and all taxa below them.

        `names`: names of taxa of any rank, lineages such as `Rosales|Moraceae|Morus`, or names with a rank such as `genus:Morus`. A named
        taxon is ignored if a finer taxon below it is named, too. Warn about names that the model does not have; `restriction.unmatched`
        lists them. The precision of a calibration holds for predictions among all taxa only. Raise `ConfigError` if the model has none of
        the names."""
        return self.limited(of_names(TaxonIndex(self.tree), names))

    def limited(self, restriction: Restriction) -> TrainedClassifier:
        """Return a classifier with the same network, restricted to `restriction` and to the restriction of this classifier, if it has one.

        Raise `ConfigError` if the two restrictions have no taxon in common."""
        other = copy.copy(self)
        other.restriction = restriction.within(self.restriction)
        if other.restriction.leaves.sum() < (~self.tree.has_children[:-1]).sum():
            other.possible = torch.from_numpy(other.restriction.possible).to(self.device)
            other.answers = self.answers.among(other.restriction.possible)
        return other

    def unrestricted(self) -> TrainedClassifier:
        """Return a classifier with the same network whose predictions may name all taxa."""
        other = copy.copy(self)
        other.restriction, other.possible, other.answers = None, None, Answers(self.tree)
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
        together: str | None = None,
    ) -> Any:
        """Return the `Prediction` of a photograph, or a list of predictions for a list of photographs.

        A photograph is a path, the bytes of an image file, uint8 pixels [H, W, 3] in RGB, or a PIL image. Each argument of place and time
        is one value for all photographs or a list with one value per photograph; None is unknown. Latitude and longitude are in degrees
        north and east, the uncertainty of the coordinates in metres, the elevation in metres above the sea, `date` is like 2026-05-01, and
        `time` is the local time, like 16:10. `top`: number of listed taxa per rank.

        `precision` and `coverage` need a calibrated model. `precision`: required precision of the rolled-up answer (the finest taxon that
        is confident enough); default 0.95, or the lowest fitted precision if 0.95 was not fitted. `coverage`: list, in place of the `top`
        taxa, a set of taxa per rank that has the true taxon with this probability. `among`: names of the possible taxa, as for
        `restricted`, which is faster for several calls.

        `together` mean or product: the photographs show the same organism, and get one prediction. mean: normalised geometric mean of the
        probabilities, for nearly equal photographs; product: normalised product, for photographs that are independent of each other.

        Raise `ConfigError` for an impossible value, `NotAnImage` for bytes that cannot be decoded, `OSError` for a file that cannot be
        read."""
        given = {"latitude": latitude, "longitude": longitude, "uncertainty": uncertainty}
        given |= {"date": date, "time": time, "elevation": elevation}
        asked = self.asked(top, precision, coverage, together)
        model = self if among is None else self.restricted(among)
        if together is not None:
            return model._predict_one(photographs, given, asked)
        found: list[Prediction] = []
        for several, metadata in batches(photographs, given):
            found += model.predict_pixels([self.read(p) for p in several], metadata, [*map(name_of, several)], asked)
        return found[0] if is_one(photographs) else found

    def _predict_one(self, photographs: Photograph | Sequence[Photograph], given: Mapping[str, Any], asked: Asked) -> Prediction:
        """Return one prediction for all photographs. `given`: place and time, as for `metadata_of`."""
        groups, first = None, None
        for several, metadata in batches(photographs, given):
            first = name_of(several[0]) if groups is None else first
            groups = self.together([self.read(p) for p in several], metadata, np.zeros(len(several), np.int64), groups)
        if groups is None:
            raise ConfigError("together needs at least one photograph; the list is empty")
        return self.predict_together(groups, [first], asked)[0]

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
        """Return the features of a photograph, float32 [width], or of a list of N photographs, float32 [N, width].

        Features are the input of the head for the finest rank. Photographs, place, time and errors are as for `predict`. `normalize`:
        divide each feature vector by its length. Test-time augmentation is not used."""
        given = {"latitude": latitude, "longitude": longitude, "uncertainty": uncertainty}
        given |= {"date": date, "time": time, "elevation": elevation}
        found = [np.empty((0, self.width), np.float32)]
        for several, metadata in batches(photographs, given):
            found.append(self.features([self.read(p) for p in several], metadata, normalize))
        features = np.concatenate(found)
        return features[0] if is_one(photographs) else features

    def asked(self, top: int = 5, precision: float | None = None, coverage: float | None = None, together: str | None = None) -> Asked:
        """Return the options of predictions. The default of `precision` is 0.95, or the lowest fitted precision if 0.95 was not fitted;
        that of `together` is mean.

        Raise `ConfigError` for a `top` that is not a whole number of at least 0, for another word in `together`, for a precision or a
        coverage that is not a number or was not fitted, and for either of these options if the model is not calibrated."""
        if not isinstance(top, int | np.integer) or isinstance(top, bool) or top < 0:
            raise ConfigError(f"top is {quoted(str(top))}; it must be a whole number of at least 0")
        if together is not None and together not in TOGETHER:
            raise ConfigError(f"together is {quoted(str(together))}; it must be {' or '.join(TOGETHER)}")
        for name, value in (("precision", precision), ("coverage", coverage)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float | np.number)):
                raise ConfigError(f"{name} is {quoted(str(value))}; it must be a number, such as 0.95")
        if self.calibration is None:
            if precision is not None or coverage is not None:
                name = "precision" if precision is not None else "coverage"
                raise ConfigError(f"{name} needs a calibrated model; calibrate it with `linnaeus calibrate RUN`")
            return Asked(top, together=together or MEAN)
        fitted = [one.precision for one in self.calibration.precisions]
        chosen = precision if precision is not None else USUAL_PRECISION if USUAL_PRECISION in fitted else fitted[0]
        sets = None if coverage is None else self.calibration.set_thresholds(coverage)
        return Asked(top, chosen, self.calibration.threshold(chosen), sets, self.calibration.familiar, together or MEAN)

    def predict_pixels(self, images: Images, metadata: Metadata, names: Sequence[str | None], asked: Asked) -> list[Prediction]:
        """Return the predictions of B photographs from their pixels (as for `batch`), metadata and names."""
        meta, present = encode(metadata, self.components)
        return self.answers.predictions(self.scored(images, meta, present), names, present, self.components, asked)

    def together(self, images: Images, metadata: Metadata, group: np.ndarray, before: Together | None = None) -> Together:
        """Return the scores of groups of photographs, which `predict_together` reads.

        `images`: pixels of B photographs, as for `batch`; `metadata`: of the B photographs. `group`: int64 [B], the group of each
        photograph. `before`: result for other photographs, also of the same groups, to which these photographs are added. Groups are
        numbered from 0, and each must have a photograph here or in `before`."""
        meta, present = encode(metadata, self.components)
        earlier = 0 if before is None else len(before.photographs)
        size = max(earlier, int(group.max(initial=-1)) + 1)
        known, photographs = np.zeros((size, present.shape[1]), dtype=bool), np.bincount(group, minlength=size)
        np.logical_or.at(known, group, present)
        numbers, weights = torch.from_numpy(group).to(self.device), torch.ones(len(group), device=self.device)
        with torch.inference_mode():
            prepared = self.preparation(self.batch(images, meta, present))
            batches = [self.network_scores(prepared)]
            rows = [] if self.prior is None else [self.prior.log_weights(**self.prior_inputs(prepared))]
            if before is not None:
                numbers = torch.cat([torch.arange(earlier, device=self.device), numbers])
                weights = torch.cat([torch.from_numpy(before.photographs).to(weights), weights])
                batches, rows = [before.scores, *batches], [*([] if before.log_weights is None else [before.log_weights]), *rows]
                photographs[:earlier] += before.photographs
                known[:earlier] |= before.known
            scores = batches[0].product(batches[1:], numbers, size, weights)
            log_weights = group_mean(torch.cat(rows), numbers, size, weights) if rows else None
        return Together(scores, log_weights, photographs, known)

    def predict_together(self, groups: Together, names: Sequence[str | None], asked: Asked) -> list[Prediction]:
        """Return one prediction for each of G groups of photographs. `names`: [G], a path for each group.

        `asked.together` mean: the probabilities are the normalised geometric means of those of the photographs; product: their normalised
        products. The prior over place and season counts once for a group, by its mean log-weights."""
        with torch.inference_mode():
            scores = groups.scores
            if asked.together == PRODUCT:
                scores = scores.raised(torch.from_numpy(groups.photographs).to(self.device, torch.float32))
            scored = self.scored_of(scores if groups.log_weights is None else scores.weighted(groups.log_weights))
        return self.answers.predictions(scored, names, groups.known, self.components, asked)

    def features(self, images: Images, metadata: Metadata, normalize: bool = False) -> np.ndarray:
        """Return the features of B photographs, float32 [B, width], from their pixels (as for `batch`) and metadata.

        `normalize`: divide each feature vector by its length."""
        with torch.inference_mode():
            batch = self.batch(images, *encode(metadata, self.components))
            features: Tensor = self.outputs(self.preparation(batch))["features"].float()
            return (F.normalize(features) if normalize else features).cpu().numpy()


def batches(photographs: Photograph | Sequence[Photograph], given: Mapping[str, Any]) -> Iterator[tuple[Sequence[Photograph], Metadata]]:
    """Yield the photographs in batches of at most `BATCH`, with their metadata. `given`: place and time, as for `metadata_of`.

    Raise `ConfigError` as `metadata_of` does."""
    several: Sequence[Photograph] = [photographs] if is_one(photographs) else photographs  # type: ignore[assignment]
    metadata = metadata_of(len(several), given)
    for first in range(0, len(several), BATCH):
        rows = slice(first, first + BATCH)
        yield several[rows], metadata.take(rows)
