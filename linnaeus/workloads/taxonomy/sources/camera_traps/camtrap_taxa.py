"""Find the ranks and ancestors of the scientific names in the observations of a Camera Trap Data Package.

The property `taxonomic` in the descriptor of the package lists names with ranks and ancestors. A binomial that is not in this list gives a
genus and a species. Any other name that is not in the list has a known rank only if it is an ancestor of another name.
"""

import re
from collections.abc import Iterable, Mapping

from linnaeus.workloads.taxonomy.manifest.labels.ranks import KNOWN_RANKS
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import clean_name

Lineage = dict[str, str]  # rank -> name, coarse to fine, of a taxon and its ancestors
_SP = re.compile(r"\s+s(?:p|pp)\.?$", re.IGNORECASE)  # "Anas sp." is the genus Anas
_BINOMIAL = re.compile(
    r"((?:× ?)?[A-Z][a-zë-]+) ((?:× ?)?[a-zë-]{2,})(?: ([a-zë-]{3,}))?(?= \(?[A-Z]|$)"
)  # an author may follow; it is left out


class Taxa:
    """Lineages of scientific names. `taxonomic`: property of this name in the descriptor, a list of names with ranks and ancestors.
    `names`: the names in the observations."""

    def __init__(self, taxonomic: object, names: Iterable[str]) -> None:
        entries = [_entry(item) for item in taxonomic if isinstance(item, dict)] if isinstance(taxonomic, list) else []
        self.given: dict[str, tuple[str, Lineage]] = {}  # name in lower case -> name, lineage
        self.conflicts = 0  # number of names with several entries that differ
        for name, lineage in entries:
            _, other = self.given.get(name.lower(), (name, lineage))
            self.conflicts += any(other.get(rank, taxon) != taxon for rank, taxon in lineage.items())
            if name and len(lineage) >= len(other):
                self.given[name.lower()] = name, lineage
        own = [lineage for name in names if (lineage := _from_name(" ".join(name.split())))]
        self.higher: dict[str, Lineage] = {}  # lower-case name of a taxon with taxa below it -> its lineage
        for lineage in [*(lineage for _, lineage in self.given.values()), *own]:
            for place, taxon in enumerate(lineage.values(), start=1):
                self.higher.setdefault(taxon.lower(), dict(list(lineage.items())[:place]))

    def find(self, cell: str) -> tuple[str, Lineage]:
        """Return the name and the lineage of the taxon in a cell `scientificName`.

        The name is "" if the cell names no taxon. The lineage is {} if the rank of the taxon is unknown."""
        written = " ".join(cell.split())
        name = written if written.lower() in self.given else _SP.sub("", written)
        if clean_name(name) == "":
            return "", {}
        name, lineage = self.given.get(name.lower(), (name, {}))
        lineage = lineage or _from_name(name) or self.higher.get(name.lower(), {})
        return name, lineage


def ranks_of(lineages: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the ranks that occur in some lineages, coarse to fine."""
    used = {rank for lineage in lineages for rank in lineage}
    return [rank for rank in KNOWN_RANKS if rank in used]


def _entry(item: Mapping[str, object]) -> tuple[str, Lineage]:
    """Return the name and the lineage of an entry of `taxonomic`. The lineage is {} if the rank of the name is unknown."""
    text = {str(key).lower(): " ".join(value.split()) for key, value in item.items() if isinstance(value, str)}
    name = text.get("scientificname", "")
    above = {rank: text[rank] for rank in KNOWN_RANKS if clean_name(text.get(rank, ""))}
    from_name = _from_name(name)
    rank = text.get("taxonrank", "").lower()
    if rank not in KNOWN_RANKS:
        rank = next((key for key, taxon in above.items() if taxon == name), next(reversed(from_name), ""))
    if not rank:
        return name, {}
    lineage = (from_name if rank in ("species", "subspecies") else {}) | above | {rank: name}
    return name, {key: lineage[key] for key in KNOWN_RANKS[: KNOWN_RANKS.index(rank) + 1] if key in lineage}


def _from_name(name: str) -> Lineage:
    """Return the lineage that a binomial or trinomial contains (genus, species, subspecies); {} for another name."""
    match = _BINOMIAL.match(name)
    if not match:
        return {}
    genus, epithet, third = match.groups()
    return {"genus": genus, "species": f"{genus} {epithet}"} | ({"subspecies": f"{genus} {epithet} {third}"} if third else {})
