"""Find the labels of the photographs of a Camera Trap Data Package in its observations.

An observation refers to a photograph (media-level) or to an event, a period of time (event-level), and is made by a person or a machine.
This gives four kinds of observations: media-level by people, event-level by people, media-level by machines, event-level by machines. For a
photograph, the observations of the first kind that it has are used; data.observation_level can restrict the levels. The photograph has a
label if all these observations agree. Observations without a class (unclassified, or an animal without a name) are ignored if the
photograph has other observations.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linnaeus.errors import counted, list_some, quoted
from linnaeus.workloads.taxonomy.config import CamtrapConfig
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.sources.camera_traps.camtrap_links import Links, are, link
from linnaeus.workloads.taxonomy.sources.camera_traps.camtrap_taxa import Lineage, Taxa, ranks_of

LEVELS = ("media", "event")
TYPES = ("human", "vehicle", "blank", "unknown")  # values of observationType other than animal and unclassified
OTHER = "that Camtrap DP does not have"  # end of the message for other values


class Labels(NamedTuple):
    """Labels of M media. A medium has a label if it is not in `excluded`. `lineage` and `observation` are not valid for media without a
    label."""

    lineage: np.ndarray  # int64 [M]: index in `lineages`
    observation: np.ndarray  # int64 [M]: row of an observation with this label
    event: np.ndarray  # int64 [M]: row of the first event-level observation of the event that contains the medium, -1 for none
    lineages: list[Lineage]
    excluded: dict[str, np.ndarray]  # reason -> bool [M], True for media without a label for this reason
    notes: list[str]


class _Classes(NamedTuple):
    """Class of each of K observations, and the type, name and lineage of each class. A class is a taxon of animals, or a type such as
    "vehicle"."""

    code: np.ndarray  # int64 [K]: class of each observation, -1 if it has none
    types: list[str]  # observationType of each class
    names: list[str]  # scientific names of the animals, which are the first classes
    lineages: list[Lineage]  # lineage of each class; {} if the rank of its name is unknown
    notes: list[str]


def label_media(media: Table, observations: Table, taxonomic: object, config: CamtrapConfig) -> Labels:
    """Return the labels of the media. `taxonomic`: the property of this name in the descriptor of the package."""
    levels = {name: are(observations.columns["observationLevel"], name) for name in LEVELS}
    machine = are(observations.columns["classificationMethod"], "machine")
    probability = _probability(observations.columns["classificationProbability"])
    limit = config.min_probability
    weak = np.zeros_like(machine) if limit is None else machine & ~(probability >= limit)
    links = link(media, observations, levels["event"])
    classes = _classes(observations, taxonomic, config)
    notes = [*_counts(observations, levels, machine, probability, weak), *_unlinked(links, levels), *classes.notes]
    if limit is not None and not machine.any():
        notes.append(f"data.min_probability={limit:g} has no effect: no observation is classified by a machine")
    code, observation = np.full(len(media), -1, dtype=np.int64), np.zeros(len(media), dtype=np.int64)
    without, ambiguous = np.ones(len(media), dtype=bool), np.zeros(len(media), dtype=bool)
    used = [name for name in LEVELS if config.observation_level in ("auto", name)]
    for by, method in (("people", ~machine), ("machines", machine)):
        for name in used:
            number, label, first = links.labels(levels[name] & method & ~weak & (classes.code >= 0), classes.code)
            found = without & (number > 0)
            code[found], observation[found] = label[found], first[found]
            ambiguous |= found & (number > 1)
            without &= ~found
            notes += [f"labels of {counted(found.sum(), 'medium')} from {name}-level observations by {by}"] if found.any() else []
    code[ambiguous], observation[ambiguous] = -1, 0
    at_level = np.logical_or.reduce([levels[name] for name in used])
    excluded = {"medium with observations of several taxa or types": ambiguous}
    excluded |= dict(_unlabelled(links, at_level, weak, observations, without))
    if config.observation_level != "auto":
        excluded = {f"{reason} at data.observation_level={config.observation_level}": rows for reason, rows in excluded.items()}
    number, _, first = links.labels(levels["event"], np.zeros(len(observations), dtype=np.int64))
    event = np.where(number > 0, first, -1)
    return Labels(code, observation, event, classes.lineages, excluded | dict(_not_used(classes, code, config)), notes)


def _classes(observations: Table, taxonomic: object, config: CamtrapConfig) -> _Classes:
    """Return the classes of the observations. A type that is not "animal", such as "vehicle", is a taxon with this name at every rank."""
    kind, column = observations.columns["observationType"], observations.columns["scientificName"]
    taxa = Taxa(taxonomic, column.values)
    found = [taxa.find(value) for value in column.values]
    lineages = {name: lineage for name, lineage in found if name}
    number = {name: i for i, name in enumerate(lineages)}
    types = {word: i for i, word in enumerate((*TYPES, OTHER), start=len(number))} | dict.fromkeys(("animal", "unclassified", ""), -1)
    animal = np.array([number.get(name, -1) for name, _ in found], dtype=np.int64)[column.codes]
    other = np.array([types.get(word.lower(), types[OTHER]) for word in kind.values], dtype=np.int64)[kind.codes]
    ranks = ranks_of(lineages.values()) or ["species"]
    kept = [dict.fromkeys(ranks, word) for word in (*TYPES, OTHER)]
    notes = []
    if taxa.conflicts:
        notes.append(f"{counted(taxa.conflicts, 'name')} with several entries in `taxonomic` that differ; the longest lineage is used")
    if absent := [name for name in lineages if name.lower() not in taxa.given]:
        notes.append(f"names that are not in `taxonomic`: {len(absent):,} of {len(lineages):,}, such as {quoted(absent[0])}")
    code = np.where(are(kind, "animal"), animal, other)
    return _Classes(code, ["animal"] * len(number) + [*TYPES, OTHER], [*lineages], [*lineages.values(), *kept], notes)


def _not_used(classes: _Classes, code: np.ndarray, config: CamtrapConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (reason, bool [M]) for each reason why classes are not used as labels. The array is True for the media of these classes.

    `code`: int64 [M], class of each medium, -1 for none."""
    for kind in ("animal", *TYPES, OTHER):
        if kind not in config.observation_types:
            yield f"medium of observationType {kind}", np.isin(code, [i for i, word in enumerate(classes.types) if word == kind])
    unknown = np.array([not lineage for lineage in classes.lineages], dtype=bool)
    rows = (code >= 0) & unknown[code]
    if rows.any():
        names = list_some([quoted(classes.names[i]) for i in np.unique(code[rows])], 3)
        yield f"medium of a name whose rank is neither in `taxonomic` of the package nor known from others ({names})", rows


def _unlabelled(
    links: Links, used: np.ndarray, weak: np.ndarray, observations: Table, without: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (reason, bool [M]) for each reason why media have no class. The array is True for the media with this reason.

    The reason of a medium follows from its observations at the levels that are used (`used`, bool [K]). `weak`: bool [K], True for machine
    observations of low probability. `without`: bool [M], True for media without a class."""
    reasons = {
        "medium with machine classifications below data.min_probability only": weak,
        "medium of an animal without a scientificName": are(observations.columns["observationType"], "animal"),
        "medium that is unclassified": np.ones_like(weak),
    }
    without = without.copy()
    for reason, rows in reasons.items():
        number, _, _ = links.labels(used & rows, np.zeros(len(rows), dtype=np.int64))
        yield reason, without & (number > 0)
        without &= number == 0
    yield "medium without an observation", without


def _probability(column: Column) -> np.ndarray:
    """Return the numbers in the cells, float64 [K], NaN for a cell that is not a number."""

    def number(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            return np.nan

    return np.array([number(value) for value in column.values], dtype=np.float64)[column.codes]


def _counts(
    observations: Table, levels: dict[str, np.ndarray], machine: np.ndarray, probability: np.ndarray, weak: np.ndarray
) -> Iterator[str]:
    """Yield lines of text with the numbers of observations by level, type, method and probability, and of bounding boxes."""
    kinds = observations.columns["observationType"]
    count = Counter({word or "(none)": 0 for word in kinds.values})
    for i, n in enumerate(np.bincount(kinds.codes, minlength=len(kinds.values)).tolist()):
        count[kinds.values[i] or "(none)"] += n
    neither = int((~levels["media"] & ~levels["event"]).sum())
    yield (
        f"{counted(len(observations), 'observation')}: {levels['media'].sum():,} media-level, {levels['event'].sum():,} event-level"
        + (f", {neither:,} of neither level, not used" if neither else "")
        + f"; {', '.join(f'{n:,} {word}' for word, n in count.most_common(12) if n)}"
    )
    if machine.any():
        known = probability[machine & ~np.isnan(probability)]
        span = f", probabilities {known.min():g} to {known.max():g}" if len(known) else ""
        limit = f"; {weak.sum():,} of them below data.min_probability or without a probability" if weak.any() else ""
        yield f"{counted(machine.sum(), 'observation')} classified by machines{span}{limit}"
    boxes = np.array([value != "" for value in observations.columns["bboxX"].values], dtype=bool)[observations.columns["bboxX"].codes]
    if boxes.any():
        yield f"{counted(boxes.sum(), 'observation')} with a bounding box; boxes are not used, photographs are read whole"


def _unlinked(links: Links, levels: dict[str, np.ndarray]) -> Iterator[str]:
    """Yield lines of text with the numbers of observations that belong to no photograph, and of times that cannot be compared."""
    for name, rows in levels.items():
        if lost := int((rows & (links.stop == links.start)).sum()):
            yield f"{counted(lost, f'{name}-level observation')} without any of the media"
    if links.zoneless and levels["event"].any():
        yield f"times of media and observations without a zone, while others have one: {links.zoneless:,}, not compared with events"
