"""`TaxonIndex`: find the taxa of a model by their lineages and names, as tables, lists and people write them.

A taxon is matched by its lineage. Where lineages differ, for example because a table has no column for the kingdom, it is matched by its
name, if one taxon has this name. The authorship after a name (`Quercus robur L.`) is left out if the name with it is not a taxon.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

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
}  # of surnames
SEVERAL = -2  # several taxa have the name


class TaxonIndex:
    """Taxa of a tree by lineage and by name."""

    def __init__(self, tree: TaxonomyTree) -> None:
        self.tree = tree
        self.lineages = [{text: c for c, text in enumerate(tree.lineage_ids(rank))} for rank in tree.ranks]
        self.names: list[dict[str, list[int]]] = []  # per rank: name -> classes
        for names in tree.names:
            found: dict[str, list[int]] = {}
            for c, name in enumerate(names):
                found.setdefault(name, []).append(c)
            self.names.append(found)

    def find(self, rank: int, lineage: str, name: str) -> int:
        """Return the class of a rank with a lineage or else a name, -1 if there is none, `SEVERAL` if several have the name."""
        if lineage in self.lineages[rank]:
            return self.lineages[rank][lineage]
        for form in forms(name):
            if classes := self.names[rank].get(form):
                return classes[0] if len(classes) == 1 else SEVERAL
        return -1

    def nodes(self, text: str) -> list[int]:
        """Return the nodes that a text names: a name, a lineage such as `Rosales|Moraceae|Morus`, or one of a rank such as `genus:Morus`.

        Of taxa of one name, those below another one of them are left out."""
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
        """Return the nodes that are not below another one of them."""
        highest: list[int] = []
        given = set(nodes)
        for node in nodes:
            above = int(self.tree.node_parent[node])
            while above >= 0 and above not in given:
                above = int(self.tree.node_parent[above])
            highest += [node] if above < 0 else []
        return highest

    def described(self, node: int) -> str:
        """Return rank and lineage of a node, as `nodes` reads them."""
        rank = int(self.tree.node_rank[node])
        return f"{self.tree.ranks[rank]}:{self.tree.lineage_ids(rank)[node - self.tree.offsets[rank]]}"


def spaced(text: str) -> str:
    """Return a name with single spaces, in Unicode normalisation form C."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def forms(name: str) -> Iterator[str]:
    """Yield a name, then the name without what may be its authorship: words from one that begins with a capital letter or a bracket.

    After the single word of a genus or a coarser taxon, the next word must have a full stop, a comma or a bracket: `Quercus L.` but not
    `Quercus Robur`, so that a species with a capital letter is not taken for its genus."""
    yield name
    words = name.split()
    for count in range(len(words) - 1, 0, -1):
        first = next((word for word in words[count:] if word not in PARTICLES), "")
        if first.lstrip("([\"'")[:1].isupper() and (count > 1 or set(first) & set(".,()")):
            yield " ".join(words[:count])
