"""Check the names of taxa: conflicting lineages, homonyms, one taxon in several spellings, and species under another genus."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from linnaeus.errors import counted, quoted
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, Severity, found
from linnaeus.workloads.taxonomy.manifest.labels.spellings import plain_name, plain_taxa, words_of
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

BINOMIALS = 0.8  # least share of species names that begin with the name of their genus; if it is smaller, names are not binomials


class _RankRows:
    """Index of the rows of each taxon of one taxonomic rank. `labels`: int64 [N], the taxon of each row, -1 for none."""

    def __init__(self, labels: np.ndarray, taxa: int) -> None:
        self.order = np.argsort(labels, kind="stable")
        self.bounds = np.searchsorted(labels[self.order], np.arange(taxa + 1)).tolist()

    def rows(self, taxa: Sequence[int]) -> np.ndarray:
        """Return the rows of the given taxa, int64 [K]."""
        return np.concatenate([self.order[self.bounds[taxon] : self.bounds[taxon + 1]] for taxon in taxa])

    def count(self, taxon: int) -> int:
        """Return the number of rows of a taxon."""
        return self.bounds[taxon + 1] - self.bounds[taxon]


def lineage_conflicts(records: Inspected) -> list[Finding]:
    """Return findings with the rows whose taxon name occurs under several parents. The rows of the most frequent parent are not reported.

    If the ancestors at the coarsest rank differ too, the finding is "homonym": one name for two taxa, which the codes of nomenclature allow
    across kingdoms."""
    tree = records.tree
    cases: dict[str, list[tuple[np.ndarray, str]]] = {"lineage conflict": [], "homonym": []}
    for r, rank in enumerate(tree.ranks):
        of = _RankRows(records.labels[:, r], tree.sizes[r])
        for name, same in _repeated(tree.names[r], of).items():
            most = max(same, key=of.count)
            root = {taxon: int(tree.paths[tree.offsets[r] + taxon][0]) for taxon in same}
            for taxon in same:
                if taxon != most:
                    usual = f"{_parent(tree, r, most)} in {counted(of.count(most), 'row')}"
                    text = f"{rank} {quoted(name)} is under {_parent(tree, r, taxon)}, and under {usual}"
                    kind = "homonym" if r > 1 and root[taxon] != root[most] else "lineage conflict"
                    cases[kind].append((of.rows([taxon]), text))
    return [
        *_by_row("lineage conflict", "warning", "names with several parents are different taxa in training", cases["lineage conflict"]),
        *_by_row("homonym", "note", "a name with several parents that have no ancestor in common", cases["homonym"]),
    ]


def spellings(records: Inspected) -> list[Finding]:
    """Return a finding with the rows whose taxon name differs from a more frequent name only in case, spaces, hyphens, accents, or an
    author."""
    cases = []
    for r, rank in enumerate(records.tree.ranks):
        names = records.tree.names[r]
        of = _RankRows(records.labels[:, r], len(names))
        for same in _repeated(plain_taxa(names, words_of(rank)), of).values():
            count: Counter[str] = Counter()
            for taxon in same:
                count[names[taxon]] += of.count(taxon)
            (usual, most), *others = count.most_common()
            for name, _ in others:
                rows = of.rows([taxon for taxon in same if names[taxon] == name])
                cases.append((rows, f"{rank} {quoted(name)} is {quoted(usual)} in {counted(most, 'row')}"))
    return _by_row("spelling of a taxon", "warning", "names that differ in case, spaces or author are different taxa in training", cases)


def foreign_genus(records: Inspected) -> list[Finding]:
    """Return a finding with the rows in which the first word of the species name is not the name of the genus.

    Return [] if more than a fifth of the species differ so: then the names are not binomials."""
    tree = records.tree
    if not {"genus", "species"} <= set(tree.ranks):
        return []
    r, above = tree.ranks.index("species"), tree.ranks.index("genus")
    genus = tree.paths[tree.offsets[r] : tree.offsets[r + 1], above]
    words = [plain_name(name.split(" ")[0]) if " " in name else "" for name in tree.names[r]]
    own = [plain_name(tree.names[above][g].split(" ")[0]) if g >= 0 else "" for g in genus.tolist()]
    other = np.array([bool(a and b and a != b) for a, b in zip(words, own, strict=True)], dtype=bool)
    compared = sum(bool(a and b) for a, b in zip(words, own, strict=True))
    if other.sum() > (1 - BINOMIALS) * compared:
        return []
    of = _RankRows(records.labels[:, r], len(words))
    wrong = [taxon for taxon in np.flatnonzero(other).tolist() if of.count(taxon)]
    text = lambda taxon: f"{quoted(tree.names[r][taxon])} is in the genus {quoted(tree.names[above][genus[taxon]])}"
    cases = [(of.rows([taxon]), text(taxon)) for taxon in wrong]
    return _by_row("species of another genus", "warning", "the first word of the species is not the genus of the row", cases)


def _repeated(names: Sequence[str], of: _RankRows) -> dict[str, list[int]]:
    """Return name -> taxa, for each name that at least two taxa with rows have. `names[i]`: name of taxon i. `of`: index of the rows of
    each taxon."""
    taxa: dict[str, list[int]] = {}
    for taxon, name in enumerate(names):
        if of.count(taxon):
            taxa.setdefault(name, []).append(taxon)
    return {name: same for name, same in taxa.items() if len(same) > 1}


def _parent(tree: TaxonomyTree, r: int, taxon: int) -> str:
    """Return the rank and the name of the parent of a taxon of rank number r; `no parent` for a root."""
    above = int(tree.anchor[r][taxon])
    if above < 0:
        return "no parent"
    rank = int(tree.node_rank[above])
    return f"{tree.ranks[rank]} {quoted(tree.names[rank][above - tree.offsets[rank]])}"


def _by_row(check: str, severity: Severity, text: str, cases: Sequence[tuple[np.ndarray, str]]) -> list[Finding]:
    """Return a list with one finding about the rows of all cases, sorted by row; [] without cases. A case is (rows, description)."""
    if not cases:
        return []
    rows, first = np.unique(np.concatenate([rows for rows, _ in cases]), return_index=True)
    number = np.repeat(np.arange(len(cases)), [len(rows) for rows, _ in cases])[first]
    details = tuple(cases[i][1] for i in number.tolist())
    return found(check, severity, rows, f"{text}, such as: {cases[0][1]}", details=details)
