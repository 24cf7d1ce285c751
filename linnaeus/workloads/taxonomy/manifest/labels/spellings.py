"""Find names of taxa that are probably one taxon in several spellings, such as `Bellis perennis` and `Bellis perennis L.`"""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from linnaeus.errors import counted, quoted
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

BINOMIAL = ("species", "subspecies", "variety", "form")  # ranks whose names have at least two words
_AUTHOR = re.compile(r"(?P<name>\S+(?: [^\W\d_A-Z][^\s.&,()]*)*) (?P<author>\(?[^\W\d_a-z].*)")  # a capital letter after lower case
_MARK = re.compile(r"[.,&()\d]")


def spelling_notes(tree: TaxonomyTree, labels: np.ndarray) -> list[str]:
    """Return a line for each rank with names that differ only in case, spaces, hyphens, accents or an author. A line gives up to three such
    cases, with the number of rows of each name.

    Names that all have an author are not compared, since `Milk Low 1.5%` looks like one, too. `labels`: int64 [N, R]."""
    lines = []
    for r, rank in enumerate(tree.ranks):
        rows = np.bincount(labels[:, r][labels[:, r] >= 0], minlength=tree.sizes[r]).tolist()
        cases: dict[str, dict[str, int]] = {}
        for plain, name, count in zip(plain_taxa(tree.names[r], words_of(rank)), tree.names[r], rows, strict=True):
            if count:
                same = cases.setdefault(plain, {})
                same[name] = same.get(name, 0) + count
        several = [same for plain, same in cases.items() if len(same) > 1 and any(plain_name(name) == plain for name in same)]
        if several:
            examples = [", ".join(f"{quoted(name)} ({counted(n, 'row')})" for name, n in list(same.items())[:4]) for same in several[:3]]
            more = f"; and {len(several) - 3} more" if len(several) > 3 else ""
            start = f"{rank}: {counted(len(several), 'taxon')} probably in several spellings, kept apart as different taxa: "
            lines.append(start + "; ".join(examples) + more)
    return lines


def words_of(rank: str) -> int:
    """Return the least number of words of a name of the given rank without its author."""
    return 2 if rank in BINOMIAL else 1


def plain_taxa(names: Sequence[str], words: int) -> list[str]:
    """Return names without accents, hyphens and authors, in lower case, with single spaces.

    The end of a name from a capital letter on, after at least `words` words, is removed as an author if it contains a point, a bracket, a
    digit or a similar mark, or if the rest of the name is also in `names`."""
    whole = [plain_name(name) for name in names]
    known = set(whole)
    for i, name in enumerate(names):
        author = _AUTHOR.fullmatch(" ".join(name.replace("_", " ").split()))
        if author and len(author["name"].split()) >= words:
            base = plain_name(author["name"])
            whole[i] = base if base in known or _MARK.search(author["author"]) else whole[i]
    return whole


def plain_name(name: str) -> str:
    """Return a name without accents and hyphens, in lower case, with single spaces."""
    letters = unicodedata.normalize("NFKD", name.replace("_", " ").replace("-", " "))
    return " ".join("".join(c for c in letters if not unicodedata.combining(c)).casefold().split())
