"""`Prediction`: the predicted taxa of one photograph, and `Answers`, which makes predictions from the probabilities of the network."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from linnaeus.workloads.taxonomy.trained.probabilities.rollup import NONE, answer_ranks, confident_paths
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

TOGETHER = MEAN, PRODUCT = "mean", "product"


@dataclass(frozen=True)
class Taxon:
    """A taxon and its probability. `lineage`: the names of all ranks from the coarsest to `rank`, joined by `|`; a rank without a taxon has
    an empty name."""

    rank: str
    name: str
    lineage: str
    probability: float
    key: str | None = None  # its id in the table of taxa that the model was trained with


@dataclass(frozen=True)
class Prediction:
    """Prediction for one photograph: the most probable taxa of each rank, the predicted path (one taxon per rank) and, if the model is
    calibrated, the rolled-up answer (the finest taxon of the path that is confident enough)."""

    photograph: str | None  # path of the photograph; None if it was given as bytes or pixels
    ranks: Mapping[str, tuple[Taxon, ...]]  # rank -> the most probable taxa, the best first
    path: tuple[Taxon, ...]  # the predicted taxon of each rank, coarse to fine; ranks without one are left out
    metadata: tuple[str, ...]  # metadata components that were given and that the model reads
    answer: Taxon | None = None  # finest taxon of `path` that reaches `precision`; None: no taxon does, or the model is not calibrated
    precision: float | None = None  # promised precision of `answer`; None: the model is not calibrated
    familiarity: float | None = None  # above 0, at most 1: how few taxa the model hesitates between (familiarity.py)
    outside: bool | None = None  # True: none of the model's taxa; None: not calibrated

    def plain(self) -> dict[str, Any]:
        """Return the prediction as a dict for JSON."""
        ranks = {rank: [plain_taxon(taxon) for taxon in taxa] for rank, taxa in self.ranks.items()}
        path = {taxon.rank: plain_taxon(taxon) for taxon in self.path}
        own: dict[str, Any] = {"photograph": self.photograph, "path": path, "ranks": ranks, "metadata": list(self.metadata)}
        own |= {"familiarity": self.familiarity, "outside": self.outside}
        if self.precision is None:
            return own | {"calibrated": False}
        answer = None if self.answer is None else {"rank": self.answer.rank} | plain_taxon(self.answer)
        return own | {"calibrated": True, "answer": answer, "precision": self.precision}


def plain_taxon(taxon: Taxon) -> dict[str, Any]:
    """Return name, lineage, probability and key of a taxon as a dict for JSON, without the rank. A taxon with `key` None has no entry
    `key`."""
    known = {} if taxon.key is None else {"key": taxon.key}
    return {"name": taxon.name, "lineage": taxon.lineage, "probability": taxon.probability} | known


@dataclass(frozen=True)
class Scored:
    """Probabilities, predicted paths (a class per rank) and familiarity (how few taxa the model hesitates between) of B photographs."""

    probabilities: tuple[np.ndarray, ...]  # per rank float [B, C_r]: each row sums to 1; the null class is left out
    path: np.ndarray  # int64 [B, R]: the predicted class of each rank, -1 for none
    familiarity: np.ndarray  # float [B], as if all taxa were possible


class Asked(NamedTuple):
    """Options of a call of `predict`: how many taxa a prediction lists, and how confident a rolled-up answer must be."""

    top: int  # listed taxa per rank
    precision: float | None = None  # promised precision of the rolled-up answer; None: predictions have no such answer
    threshold: float = 0.0  # least confidence of the rolled-up answer
    sets: tuple[float, ...] | None = None  # per rank: list the taxa with at least this probability, in place of the `top` best
    familiar: float | None = None  # least familiarity of a photograph that gets an answer; None: not calibrated
    together: str = MEAN  # of one answer for several photographs: their evidence is the mean or the product


class Answers:
    """Maker of `Prediction` objects from the probabilities of classes. Names and lineages of taxa are from `tree`."""

    def __init__(self, tree: TaxonomyTree) -> None:
        self.tree = tree
        self.lineages = [tree.lineage_ids(rank) for rank in tree.ranks]
        self.possible: list[np.ndarray] | None = None  # per rank bool [C_r]

    def among(self, possible: np.ndarray) -> Answers:
        """Return a copy of this object whose predictions list only possible taxa. `possible`: bool [T], a value for each node of the
        tree."""
        other = copy.copy(self)
        other.possible = np.split(possible, self.tree.offsets[1:-1])
        return other

    def taxon(self, rank: int, number: int, probability: float) -> Taxon:
        """Return the taxon that is class `number` of the rank with index `rank`, with its probability."""
        tree = self.tree
        key = tree.keys[rank][number] if tree.keys else None
        return Taxon(tree.ranks[rank], tree.names[rank][number], self.lineages[rank][number], probability, key)

    def predictions(
        self, scored: Scored, names: Sequence[str | None], present: np.ndarray, components: Sequence[str], asked: Asked
    ) -> list[Prediction]:
        """Return a prediction for each of the B photographs in `scored`. `names`: path of each photograph, None if it has none.

        `present`: bool [B, M], True where the photograph has a value of the metadata component. `components`: names of the M components."""
        least = asked.sets or (0.0,) * len(self.tree.ranks)
        best = [self._chosen(r, p, asked.top if asked.sets is None else None, least[r]) for r, p in enumerate(scored.probabilities)]
        confident = confident_paths(scored.probabilities, scored.path)
        outside = scored.familiarity < (asked.familiar or 0.0)
        answered = np.where(outside, NONE, answer_ranks(confident, asked.threshold))
        found = []
        for i, name in enumerate(names):
            taxa = [[self.taxon(r, int(c), float(p[i, c])) for c in best[r][i]] for r, p in enumerate(scored.probabilities)]
            path = [self.taxon(r, int(c), float(scored.probabilities[r][i, c])) for r, c in enumerate(scored.path[i]) if c >= 0]
            given = tuple(component for component, known in zip(components, present[i], strict=True) if known)
            rank = int(answered[i])
            answer = None
            if asked.precision is not None and rank != NONE:
                answer = self.taxon(rank, int(scored.path[i, rank]), float(confident.confidence[i, rank]))
            ranks = dict(zip(self.tree.ranks, map(tuple, taxa), strict=True))
            strange = None if asked.familiar is None else bool(outside[i])
            found.append(Prediction(name, ranks, tuple(path), given, answer, asked.precision, float(scored.familiarity[i]), strange))
        return found

    def _chosen(self, rank: int, probability: np.ndarray, top: int | None, least: float) -> Sequence[np.ndarray]:
        """Return the classes to list for each row of `probability` [B, C], most probable first, without impossible taxa.

        `rank`: index of the rank. List the `top` most probable classes, or, if `top` is None, the classes with a probability of at least
        `least`."""
        possible = None if self.possible is None else self.possible[rank]
        ranking = probability if possible is None else np.where(possible, probability, -1.0)
        rows = _reaching(ranking, least) if top is None else list(_best(ranking, top))
        return rows if possible is None else [row[possible[row]] for row in rows]


def _reaching(probability: np.ndarray, least: float) -> list[np.ndarray]:
    """Return, for each row of `probability` [B, C], the classes with a probability of at least `least`, most probable first.

    The most probable class of a row is always included."""
    rows = []
    for row in probability:
        chosen = np.flatnonzero(row >= min(least, row.max(initial=0.0)))
        rows.append(chosen[np.argsort(-row[chosen], kind="stable")])
    return rows


def _best(probability: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` most probable classes of each row of `probability` [B, C], most probable first, as int64 [B, count], or [B, C] if
    C is smaller. Of classes with equal probability the lower number comes first."""
    count = min(count, probability.shape[1])
    if count == 0:
        return np.empty((len(probability), 0), dtype=np.int64)
    if count < probability.shape[1] // 2:
        chosen = np.sort(np.argpartition(-probability, count - 1, axis=1)[:, :count], axis=1)
        least = np.take_along_axis(probability, chosen, axis=1).min(axis=1, keepdims=True)
        for row in np.flatnonzero((probability >= least).sum(axis=1) > count):  # `argpartition` takes any of equal probabilities
            above, equal = (np.flatnonzero(found) for found in (probability[row] > least[row], probability[row] == least[row]))
            chosen[row] = np.sort(np.append(above, equal[: count - len(above)]))
    else:
        chosen = np.broadcast_to(np.arange(probability.shape[1]), probability.shape)
    order = np.argsort(-np.take_along_axis(probability, chosen, axis=1), axis=1, kind="stable")[:, :count]
    return np.take_along_axis(chosen, order, axis=1)
