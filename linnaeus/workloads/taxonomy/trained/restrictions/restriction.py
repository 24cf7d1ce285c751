"""`Restriction`: the taxa to which the predictions of a model are restricted, made from names in a list, a checklist, or --clade.

A listed taxon allows all leaves at or below it, but only if the list has no finer taxon below it. A coarser listed taxon is ignored because
checklists also name the families of their species, and lists of observed species name the kingdom of organisms that nobody could
identify."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import SEVERAL, TaxonIndex
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class Listed(NamedTuple):
    """Name of a taxon in a list, with the rank and the lineage if the list states them."""

    name: str
    rank: int | None = None  # index of the rank; None: any rank; the name is read by `TaxonIndex.nodes`
    lineage: str = ""  # names from the coarsest rank to this one, joined by `|`
    coarser: Mapping[str, str] = MappingProxyType({})  # rank of the model -> name of the coarser taxon of this rank


class Row(NamedTuple):
    """Row of a list of taxa. `text` is shown in messages. The taxon of the row is the first of `names` that the model has."""

    text: str
    names: tuple[Listed, ...]


@dataclass(frozen=True, eq=False)
class Restriction:
    """Leaves of a tree of taxa to which predictions are restricted. Ancestors of these leaves may be predicted, too."""

    tree: TaxonomyTree
    leaves: np.ndarray  # bool [T]
    unmatched: tuple[str, ...] = ()  # listed names without a taxon in the model, or (with this reason in brackets) with several
    coarser: tuple[str, ...] = ()  # listed taxa that allow no leaves because the list has finer taxa below them

    @cached_property
    def possible(self) -> np.ndarray:
        """Return a mask over the nodes of the tree, bool [T], True for the allowed leaves and their ancestors."""
        return self.leaves | _have_below(self.tree, self.leaves)

    def counts(self) -> dict[str, int]:
        """Return the number of possible taxa of each rank."""
        offsets = self.tree.offsets
        return {rank: int(self.possible[offsets[r] : offsets[r + 1]].sum()) for r, rank in enumerate(self.tree.ranks)}

    def digest(self) -> str:
        """Return a hash that identifies the allowed leaves, 32 hexadecimal digits."""
        return hashlib.sha256(np.packbits(self.leaves).tobytes()).hexdigest()[:32]

    def describe(self) -> list[str]:
        """Return lines of text for the user: the number of possible taxa of each rank, and the listed names that have no effect."""
        sizes = dict(zip(self.tree.ranks, self.tree.sizes, strict=True))
        shown = ", ".join(f"{rank} {count:,} of {sizes[rank]:,}" for rank, count in self.counts().items())
        lines = [f"predictions are among the possible taxa: {shown}"]
        if self.coarser:
            names = counted(len(self.coarser), "coarser name")
            lines.append(f"{names} with finer taxa in the same list, which count instead: {list_some(self.coarser)}")
        if self.unmatched:
            lines.append(f"{counted(len(self.unmatched), 'name')} not among the taxa of the model: {list_some(self.unmatched)}")
        return lines

    def within(self, other: Restriction | None) -> Restriction:
        """Return a restriction to the leaves that both this restriction and `other` allow. `other` None: return this restriction.

        Raise `ConfigError` if no leaf is left."""
        if other is None:
            return self
        unmatched, coarser = (*other.unmatched, *self.unmatched), (*other.coarser, *self.coarser)
        both = Restriction(self.tree, self.leaves & other.leaves, unmatched, coarser)
        if not both.leaves.any():
            raise ConfigError("the restrictions have no taxon in common; leave one out, such as --checklist or --clade")
        return both


def of_rows(index: TaxonIndex, rows: Iterable[Row], source: str) -> Restriction:
    """Return the restriction to the taxa of a list. `index`: taxa of the model. `source`: option and file of the list, for messages.

    Raise `ConfigError` if the list has no taxon of the model."""
    listed = np.zeros(index.tree.offsets[-1], dtype=bool)
    texts: dict[int, str] = {}
    unmatched: dict[str, None] = {}
    for row in rows:
        nodes = next((found for name in row.names if (found := _nodes(index, name))), [])
        if len(nodes) == 1:
            listed[nodes] = True
            texts[nodes[0]] = row.text
        elif nodes:
            unmatched[f"{row.text} (the name of several taxa)"] = None
        else:
            unmatched[row.text] = None
    if not listed.any():
        none = f"no taxon of the model among {counted(len(unmatched), 'name')}: {list_some(list(unmatched), 3)}"
        raise ConfigError(f"{source}: {none if unmatched else 'no names'}; give names such as {index.tree.names[-1][0]}")
    finer = _have_below(index.tree, listed)
    coarser = tuple(texts[node] for node in np.flatnonzero(listed & finer).tolist())
    return Restriction(index.tree, _leaves_below(index.tree, listed & ~finer), tuple(unmatched), coarser)


def of_names(index: TaxonIndex, names: Sequence[str]) -> Restriction:
    """Return the restriction to the taxa that `names` name. A name is any text that `TaxonIndex.nodes` reads.

    Warn about names that the model does not have. Raise `ConfigError` if the model has none of the names."""
    names = [names] if isinstance(names, str) else list(names)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ConfigError(f"among: {quoted(wrong[0])} is not the name of a taxon; give a list of names")
    found = of_rows(index, (Row(name, (Listed(name),)) for name in names), "among")
    if found.unmatched:
        count = f"{len(found.unmatched):,} of {counted(len(names), 'name')} not among the taxa of the model"
        warnings.warn(f"{count}: {list_some(found.unmatched)}; model.restricted(names).restriction.unmatched has all", stacklevel=3)
    return found


def of_clades(index: TaxonIndex, clades: Sequence[str], key: str = "--clade") -> Restriction:
    """Return the restriction to the taxa named in `clades` and all taxa below them, also if one clade is in another. `key`: start of error
    messages.

    Raise `ConfigError` for a name that the model does not have, and for a name that several taxa have."""
    named = np.zeros(index.tree.offsets[-1], dtype=bool)
    for clade in clades:
        nodes = index.nodes(clade)
        if not nodes:
            raise ConfigError(f"{key}: {quoted(clade)} is not a taxon of the model; give a name such as {index.tree.names[0][0]}")
        if len(nodes) > 1:
            several = list_some([index.described(node) for node in nodes], 4)
            raise ConfigError(f"{key}: {quoted(clade)} is the name of several taxa; choose {several}")
        named[nodes] = True
    return Restriction(index.tree, _leaves_below(index.tree, named))


def _nodes(index: TaxonIndex, name: Listed) -> list[int]:
    """Return the nodes that have the name `name`: none, one, or several. Return [-1, -1] if the rank is given and several taxa have the
    name."""
    if name.rank is None:
        return index.agreeing(index.nodes(name.name), name.coarser)
    found = index.find(name.rank, name.lineage, name.name, name.coarser)
    return [-1, -1] if found == SEVERAL else [index.tree.offsets[name.rank] + found] if found >= 0 else []


def _have_below(tree: TaxonomyTree, taxa: np.ndarray) -> np.ndarray:
    """Return a mask of the ancestors of taxa, bool [T]: True for a node that has a node of the mask `taxa`, bool [T], below it."""
    found = np.zeros_like(taxa)
    for r in reversed(range(len(tree.ranks))):
        above = tree.node_parent[np.flatnonzero((taxa | found) & (tree.node_rank == r))]
        found[above[above >= 0]] = True
    return found


def _leaves_below(tree: TaxonomyTree, taxa: np.ndarray) -> np.ndarray:
    """Return a mask of leaves, bool [T]: True for a leaf that is in the mask `taxa`, bool [T], or below a node in this mask."""
    inside = taxa.copy()
    for r in range(len(tree.ranks)):
        own = np.flatnonzero(tree.node_rank == r)
        above = tree.node_parent[own]
        inside[own] |= (above >= 0) & inside[above]
    return inside & ~tree.has_children[:-1]
