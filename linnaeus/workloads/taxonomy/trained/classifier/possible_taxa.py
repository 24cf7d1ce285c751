"""Restrict the predictions of a model to the taxa that are possible, by the options --checklist, --clade and --region of a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linnaeus.workloads.taxonomy.trained.restrictions.checklist import read_checklist
from linnaeus.workloads.taxonomy.trained.restrictions.regions import Regions, split_region
from linnaeus.workloads.taxonomy.trained.restrictions.restriction import of_clades
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier


def restrict(
    model: TrainedClassifier, checklist: Path | None = None, clades: Sequence[str] = (), region: str | None = None
) -> tuple[TrainedClassifier, list[str]]:
    """Return the model with predictions restricted to a checklist, to clades and to a region (NAME=FILE), and lines of text for the user.

    A restriction that is None or () is not applied. Raise `ConfigError` as `read_checklist`, `of_clades` and `Regions` do, and if the
    restrictions have no taxon in common."""
    if checklist is None and not clades and region is None:
        return model, []
    index = TaxonIndex(model.tree)
    notes: list[str] = []
    if clades:
        model = model.limited(of_clades(index, clades))
    if checklist is not None:
        listed, notes = read_checklist(checklist, index)
        model = model.limited(listed)
    if region is not None:
        name, path = split_region(region)
        regions = Regions(path, index)
        model = model.limited(regions.restriction(name))
        notes = [*notes, *regions.notes]
    assert model.restriction is not None
    if model.calibration is not None:
        notes.append("the calibration was fitted without a restriction: its precision holds for predictions among all taxa")
    return model, [*notes, *model.restriction.describe()]
