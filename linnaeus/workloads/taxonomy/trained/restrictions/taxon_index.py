"""`TaxonIndex`: find the taxa of a model by the lineages and names in tables and lists.

A taxon is looked up by its lineage first (the names from the coarsest rank to the rank of the taxon). If no taxon has the lineage, for
example because a table has no column for the kingdom, the taxon is looked up by its name, which only one taxon may have. Of several taxa
with the name, the coarser taxa of the table choose one (`TaxonIndex.agreeing`). If no taxon has a name with its authorship
(`Quercus robur L.`), the name without the authorship is looked up."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from linnaeus.workloads.taxonomy.tree import TaxonomyTree

PARTICLES = {
    "auct",
    "auct.",
    "da",
    "de",
    "del",
    "della",
    "den",
    "der",
    "di",
    "du",
    "ex",
    "la",
    "le",
    "van",
    "von",
    "zu",
}  # lower-case words that begin surnames
SEVERAL = -2  # result of `TaxonIndex.find` if several taxa have the name


class TaxonIndex:
    """Index of the taxa of a tree by lineage and by name."""

    def __init__(self, tree: TaxonomyTree) -> None:
        self.tree = tree
        self.lineages = [{text: c for c, text in enumerate(tree.lineage_ids(rank))} for rank in tree.ranks]
        self.names: list[dict[str, list[int]]] = []  # per rank: name -> classes
        for names in tree.names:
            found: dict[str, list[int]] = {}
            for c, name in enumerate(names):
                found.setdefault(name, []).append(c)
            self.names.append(found)

    def find(self, rank: int, lineage: str, name: str, coarser: Mapping[str, str]) -> int:
        """Return the class at the rank with index `rank` that has the lineage `lineage`; if no class has it, the class with the name
        `name` that agrees with `coarser`, rank -> name of a coarser taxon (`agreeing`).

        Return -1 if there is no such class, and `SEVERAL` if there are several."""
        if lineage in self.lineages[rank]:
            return self.lineages[rank][lineage]
        first = self.tree.offsets[rank]
        for form in forms(name):
            if classes := self.names[rank].get(form):
                nodes = self.agreeing([first + c for c in classes], coarser)
                return -1 if not nodes else nodes[0] - first if len(nodes) == 1 else SEVERAL
        return -1

    def agreeing(self, nodes: Sequence[int], coarser: Mapping[str, str]) -> list[int]:
        """Return the nodes in `nodes`, taxa with the same name, whose ancestors agree with the names in `coarser`, rank -> name.

        A node is left out if its ancestors differ at every rank that both have, and these are two ranks or more: it is a homonym, such as
        the plant Morus for the bird. A single different family may be that of an older classification. If several nodes are left, return
        those that agree at the most ranks."""
        counts = {}
        for node in nodes:
            above = self.tree.paths[node, : self.tree.node_rank[node]].tolist()
            pairs = [
                (self.tree.names[r][c], coarser[rank])
                for r, (rank, c) in enumerate(zip(self.tree.ranks, above, strict=False))
                if c >= 0 and coarser.get(rank)
            ]
            equal = sum(own == other for own, other in pairs)
            if equal or len(pairs) < 2:
                counts[node] = equal
        return [node for node, count in counts.items() if count == max(counts.values())]

    def nodes(self, text: str) -> list[int]:
        """Return the nodes of the tree that a text names; [] if there are none.

        The text is a name, a lineage such as `Rosales|Moraceae|Morus`, or one of these two with a rank in front, such as `genus:Morus`. If
        taxa that are ancestors of one another have the same name, only the coarsest is returned."""
        rank, _, rest = text.partition(":")
        if rank in self.tree.ranks and rest:
            ranks, text = [self.tree.ranks.index(rank)], rest
        else:
            ranks = list(range(len(self.tree.ranks)))
        text = spaced(text)
        for r in ranks:
            if text in self.lineages[r]:
                return [self.tree.offsets[r] + self.lineages[r][text]]
        for form in forms(text):
            if found := [self.tree.offsets[r] + c for r in ranks for c in self.names[r].get(form, ())]:
                return self._highest(found)
        return []

    def _highest(self, nodes: Sequence[int]) -> list[int]:
        """Return the nodes in `nodes` that have no ancestor in `nodes`."""
        highest: list[int] = []
        given = set(nodes)
        for node in nodes:
            above = int(self.tree.node_parent[node])
            while above >= 0 and above not in given:
                above = int(self.tree.node_parent[above])
            highest += [node] if above < 0 else []
        return highest

    def described(self, node: int) -> str:
        """Return rank and lineage of a node as a text that `nodes` reads, such as `genus:Rosales|Moraceae|Morus`."""
        rank = int(self.tree.node_rank[node])
        return f"{self.tree.ranks[rank]}:{self.tree.lineage_ids(rank)[node - self.tree.offsets[rank]]}"


def spaced(text: str) -> str:
    """Return `text` with single spaces between words, in Unicode normalisation form C."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def forms(name: str) -> Iterator[str]:
    """Yield a name, and then its beginnings without a possible authorship, longest first: `Quercus robur L.`, `Quercus robur`.

    An authorship is a capitalised word and what follows, with brackets and particles such as `van` in front. If only one word remains, the
    capitalised word must have a full stop, a comma or a bracket: `Quercus L.` yields `Quercus`, but `Quercus Robur`, a species with a wrong
    capital letter, does not."""
    yield name
    words = name.split()
    for count in range(len(words) - 1, 0, -1):
        first = next((word for word in words[count:] if word not in PARTICLES), "")
        if first.lstrip("([\"'")[:1].isupper() and (count > 1 or set(first) & set(".,()")):
            yield " ".join(words[:count])
