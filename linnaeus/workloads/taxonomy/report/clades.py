"""Make the section with the tree of taxa: nested lists, which open on a click, with the accuracy in each clade (a taxon with all taxa
below).
"""

from html import escape

from linnaeus.errors import counted
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables

FEWEST = 10  # least number of validation samples of the clade named in the summary
MOST = 4000  # taxa on the page; of a larger tree the finest ranks are left out, of a single rank the rarest taxa


def clade_counts(tables: AnswerTables) -> dict[str, tuple[int, int]]:
    """Return {lineage: (samples, right)} for the taxa of all ranks that have validation samples.

    samples: number of validation samples in the taxon that have a label at the finest rank. right: number of these samples whose prediction
    at the finest rank is right."""
    counts: dict[str, list[int]] = {}
    for taxon in tables.taxa.values():
        if taxon.rank == tables.finest and taxon.samples:
            for lineage in tables.path(taxon.lineage):
                own = counts.setdefault(lineage, [0, 0])
                own[0] += taxon.samples
                own[1] += taxon.right
    return {lineage: (total, right) for lineage, (total, right) in counts.items()}


def clade_tree(tables: AnswerTables) -> str:
    """Return the section with the tree of taxa as HTML: nested lists with the accuracy at the finest rank in each taxon.

    Return "" without the table of classes, or if no class of the finest rank has validation samples."""
    counts = clade_counts(tables)
    if not counts:
        return ""
    shown, left_out = _shown_ranks(tables, counts)
    children: dict[str, list[str]] = {}
    for lineage in counts:
        if tables.taxa[lineage].rank in shown:
            children.setdefault(tables.parents[lineage], []).append(lineage)
    roots = sorted(children.get("", ()), key=lambda lineage: -counts[lineage][0])
    if len(roots) > MOST:
        left_out, roots = [*left_out, f"{len(roots) - MOST:,} of {shown[0]}"], roots[:MOST]
    note = (
        f'<p class="sub">The tree has too many taxa for this page. Left out: {escape(", ".join(left_out))}; see validation/.</p>'
        if left_out
        else ""
    )
    nodes = "".join(_node(tables, counts, children, root, 0) for root in roots)
    return f'{note}<div class="card tree" role="region" tabindex="0" aria-label="Tree">{nodes}</div>'


def _shown_ranks(tables: AnswerTables, counts: dict[str, tuple[int, int]]) -> tuple[list[str], list[str]]:
    """Return (ranks on the page, ranks left out), the coarsest first.

    The finest ranks are left out so that the page has at most `MOST` taxa. The coarsest rank is always shown. `counts`: result of
    `clade_counts`."""
    total, shown = 0, list[str]()
    for rank in tables.ranks:
        total += sum(tables.taxa[lineage].rank == rank for lineage in counts)
        if total > MOST and shown:
            break
        shown.append(rank)
    return shown, tables.ranks[len(shown) :]


def _node(tables: AnswerTables, counts: dict[str, tuple[int, int]], children: dict[str, list[str]], lineage: str, depth: int) -> str:
    taxon, (total, right) = tables.taxa[lineage], counts[lineage]
    share = right / total
    name = f"<i>{escape(taxon.name)}</i>" if taxon.rank in ("genus", "species") else escape(taxon.name)
    facts = [counted(taxon.training, "training label")]
    facts += [f"{100 * taxon.accuracy:.0f} % right at this rank"] if taxon.rank != tables.finest and taxon.accuracy is not None else []
    bar = f'<span class="track" aria-hidden="true"><i class="bar s0" style="width:{100 * share:.0f}%"></i></span>'
    figure = f'<span class="acc">{100 * share:.0f} % ({right:,} of {total:,}){bar}</span>'
    line = f'{figure}{name}<span class="rank">{escape(taxon.rank)}</span> <span class="rank facts">{", ".join(facts)}</span>'
    below = sorted(children.get(lineage, ()), key=lambda child: -counts[child][0])
    if not below:
        return f"<p>{line}</p>"
    inner = "".join(_node(tables, counts, children, child, depth + 1) for child in below)
    return f"<details{' open' if depth == 0 else ''}><summary>{line}</summary>{inner}</details>"
