"""List the sections of the taxonomy workload for report.html, each made by a module of this package from the files of the run."""

from linnaeus.reporting.report.html_parts import Section
from linnaeus.reporting.report.metric_words import passes_and_tasks
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads.taxonomy.report.answer_in_short import answer_in_short
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables
from linnaeus.workloads.taxonomy.report.clades import clade_tree
from linnaeus.workloads.taxonomy.report.class_tables import class_tables
from linnaeus.workloads.taxonomy.report.confused_pairs import confused_pairs
from linnaeus.workloads.taxonomy.report.galleries import galleries
from linnaeus.workloads.taxonomy.report.metadata_worth import metadata_worth
from linnaeus.workloads.taxonomy.report.reliability import reliability


def taxonomy_sections(run: RunFiles) -> list[Section]:
    """Return the sections; those without data in the run directory are left out. Without a validation there are none."""
    if not passes_and_tasks(run.final)[0]:
        return []
    tables = AnswerTables(run)
    finest = tables.finest
    sections = [
        Section.of("Summary", lambda: answer_in_short(tables), lead=True),
        Section.of("Place and date", lambda: metadata_worth(tables), _ABOUT_METADATA),
        Section.of(
            "Confusions", lambda: confused_pairs(tables), f"The pairs of {finest} that are exchanged most often, and where they meet."
        ),
        Section.of("Tree", lambda: clade_tree(tables), f"Open a taxon to see the taxa below it; bars are the share of right {finest}."),
        Section.of("Classes", lambda: class_tables(tables), "Accuracy by the number of training labels, and the least accurate classes."),
        Section.of("Confidence", lambda: reliability(tables), _ABOUT_CONFIDENCE),
        Section.of("Photographs", lambda: galleries(tables), "Validation samples: label, answers of the model and their probabilities."),
    ]
    return [section for section in sections if section.body]


_ABOUT_METADATA = "What each metadata component is worth: the model without it, on the same samples."
_ABOUT_CONFIDENCE = (
    "Of the answers with a stated probability of 70 %, seven in ten should be right: a dot on the line. A dot below it is overconfident. "
    "The area of a dot is its number of samples."
)
