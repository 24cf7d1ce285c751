"""`ServedModel`: a classifier that answers requests, with the checklists, the regions and the index of photographs that requests can
choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from linnaeus.errors import ConfigError, list_some, quoted
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.serving.nearest_photographs import NearestPhotographs
from linnaeus.workloads.taxonomy.serving.photograph_requests import Question
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import ARGUMENTS, metadata_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.heat_map import heat_map
from linnaeus.workloads.taxonomy.trained.probabilities.answers import Prediction, Taxon, plain_taxon
from linnaeus.workloads.taxonomy.trained.restrictions.regions import Regions
from linnaeus.workloads.taxonomy.trained.restrictions.restriction import Restriction, of_clades
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex

KEPT = 64  # restrictions of requests that are kept for the next ones


@dataclass(frozen=True, eq=False)
class Asking:
    """Parsed request (`question`) with the decoded pixels of the photograph (`image`), as `TrainedClassifier.read` returns."""

    question: Question
    image: np.ndarray


class ServedModel:
    """Classifier that checks and answers requests.

    `checklists`: name -> restriction of the possible taxa that a request can choose. `regions`: taxa of each region that a request can
    choose; None: no regions. `nearest`: index of photographs, to list those most similar to the photograph of a request; None: no index.
    `precision`: of the rolled-up answers, as of `TrainedClassifier.predict`. Raise `ConfigError` for a precision that was not fitted."""

    def __init__(
        self,
        model: TrainedClassifier,
        checklists: Mapping[str, Restriction] | None = None,
        regions: Regions | None = None,
        nearest: NearestPhotographs | None = None,
        precision: float | None = None,
    ) -> None:
        self.asked = model.asked(precision=precision)  # options of every prediction; `top` is that of the request
        self.model, self.checklists, self.regions, self.nearest = model, dict(checklists or {}), regions, nearest
        self._restricted = lru_cache(KEPT)(self._limited)

    @cached_property
    def has_heat_map(self) -> bool:
        """Return True if the network has a spatial feature map. It is tried with a taxon that is not certain."""
        model, sizes = self.model.unrestricted(), self.model.tree.sizes
        image = np.zeros((model.image_size, model.image_size, 3), dtype=np.uint8)
        try:
            heat_map(model, image, metadata_of(1, {}), sizes.index(max(sizes)), 0)
        except ConfigError:
            return False
        return True

    @cached_property
    def index(self) -> TaxonIndex:
        """Return the `TaxonIndex` of the model, which finds taxa by name or lineage."""
        return TaxonIndex(self.model.tree)

    def described(self) -> dict[str, Any]:
        """Return the options that a request can use, as a dict for JSON.

        `precision`: precision of rolled-up answers (None: not calibrated). `heat_map`: True if heat maps can be made. `nearest`: number of
        photographs in the index (None: no index). `checklists`, `regions`: lists of names."""
        index = None if self.nearest is None else len(self.nearest)
        restrictions = {"checklists": list(self.checklists), "regions": [] if self.regions is None else self.regions.names}
        return {"precision": self.asked.precision, "heat_map": self.has_heat_map, "nearest": index} | restrictions

    def check(self, question: Question) -> None:
        """Raise `HTTPException` 400 for a clade, a checklist or a region that does not exist; 422 for a heat map if the network has no
        spatial feature map, and for nearest photographs if the service has no index."""
        self.restricted(question)
        if question.heat_map and not self.has_heat_map:
            raise HTTPException(422, "heat_map: this network has no spatial feature map; leave heat_map out")
        if question.nearest and self.nearest is None:
            raise HTTPException(422, "nearest: the service has no index of photographs (linnaeus serve --nearest); leave nearest out")

    def restricted(self, question: Question) -> TrainedClassifier:
        """Return the classifier restricted to the checklist, clade and region of `question`. Raise `HTTPException` 400 if one does not
        exist, or if they have no taxon in common."""
        return self._restricted(*question.restriction)

    def _limited(self, checklist: str, clade: str, region: str) -> TrainedClassifier:
        model = self.model
        if checklist and checklist not in self.checklists:
            known = f"choose {list_some(list(self.checklists))}" if self.checklists else "the service has none"
            raise HTTPException(400, f"checklist is {quoted(checklist)}, which does not exist; {known}")
        if region and self.regions is None:
            raise HTTPException(400, f"region is {quoted(region)}, but the service has no table of regions; leave region out")
        try:
            model = model.limited(self.regions.restriction(region)) if region and self.regions is not None else model
            model = model.limited(self.checklists[checklist]) if checklist else model
            return model.limited(of_clades(self.index, [clade], "clade")) if clade else model
        except ConfigError as error:
            raise HTTPException(400, str(error)) from None

    def answers(self, batch: Sequence[Asking]) -> list[dict[str, Any]]:
        """Return an answer, a dict for JSON, for each request, in the order of `batch`. Requests with the same restriction share a forward
        pass."""
        groups: dict[tuple[str, str, str], list[int]] = {}
        for i, one in enumerate(batch):
            groups.setdefault(one.question.restriction, []).append(i)
        found: dict[int, dict[str, Any]] = {}
        for rows in groups.values():
            found |= zip(rows, self._answers_among([batch[i] for i in rows]), strict=True)
        self._add_nearest(batch, found)
        return [found[i] for i in range(len(batch))]

    def _answers_among(self, batch: Sequence[Asking]) -> list[dict[str, Any]]:
        """Return the answers, without nearest photographs, to requests that all have the same restriction of the possible taxa."""
        model, metadata = self.restricted(batch[0].question), _metadata(batch)
        top = max(one.question.top for one in batch)
        predictions = model.predict_pixels([one.image for one in batch], metadata, [None] * len(batch), self.asked._replace(top=top))
        answers = []
        for row, (one, prediction) in enumerate(zip(batch, predictions, strict=True)):
            answer = prediction.plain()
            answer["ranks"] = {rank: taxa[: one.question.top] for rank, taxa in answer["ranks"].items()}
            answer |= {} if model.restriction is None else {"possible_taxa": model.restriction.counts()}
            if one.question.heat_map:
                answer["heat_map"] = _heat_map(model, one.image, metadata.take(np.array([row])), prediction)
            answers.append(answer)
        return answers

    def _add_nearest(self, batch: Sequence[Asking], answers: Mapping[int, dict[str, Any]]) -> None:
        rows = [i for i, one in enumerate(batch) if one.question.nearest]
        if not rows or self.nearest is None:
            return
        asking = [batch[i] for i in rows]
        found = self.nearest.search([one.image for one in asking], _metadata(asking), max(one.question.nearest for one in asking))
        for i, one, photographs in zip(rows, asking, found, strict=True):
            answers[i]["nearest"] = photographs[: one.question.nearest]


def _metadata(batch: Sequence[Asking]) -> Metadata:
    return metadata_of(len(batch), {name: [one.question.given.get(name) for one in batch] for name in ARGUMENTS})


def _heat_map(model: TrainedClassifier, image: np.ndarray, metadata: Metadata, prediction: Prediction) -> dict[str, Any] | None:
    """Return the heat map of one photograph as a dict for JSON; None if no taxon is predicted.

    The heat map is for the rolled-up answer (the finest taxon that is confident enough). Without such an answer it is for the finest taxon
    of the predicted path."""
    taxon: Taxon | None = prediction.answer or (prediction.path[-1] if prediction.path else None)
    if taxon is None:
        return None
    rank = model.tree.rank_index(taxon.rank)
    values = heat_map(model, image, metadata, rank, model.answers.lineages[rank].index(taxon.lineage))
    shown = {name: value for name, value in plain_taxon(taxon).items() if name != "probability"}
    return {"rank": taxon.rank, **shown, "values": values.round(3).astype(float).round(3).tolist()}
