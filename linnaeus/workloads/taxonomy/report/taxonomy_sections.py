"""List the sections of the taxonomy workload in report.html. Each section is made by a module of this package from the files of the run."""

from linnaeus.reporting.report.html_parts import Section
from linnaeus.reporting.report.metric_names import passes_and_tasks
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables
from linnaeus.workloads.taxonomy.report.clades import clade_tree
from linnaeus.workloads.taxonomy.report.class_tables import class_tables
from linnaeus.workloads.taxonomy.report.confused_pairs import confused_pairs
from linnaeus.workloads.taxonomy.report.galleries import galleries
from linnaeus.workloads.taxonomy.report.metadata_ablation import metadata_ablation
from linnaeus.workloads.taxonomy.report.overview import overview
from linnaeus.workloads.taxonomy.report.reliability import reliability


def taxonomy_sections(run: RunFiles) -> list[Section]:
    """Return the sections of report.html for a taxonomy run; [] without a metric of a rank, as before the first validation.

    Sections without content are left out, such as a section whose files are missing."""
    if not passes_and_tasks(run.final)[1]:
        return []
    tables = AnswerTables(run)
    finest = tables.finest
    sections = [
        Section.of("Summary", lambda: overview(tables), lead=True),
        Section.of("Place and date", lambda: metadata_ablation(tables), _ABOUT_METADATA),
        Section.of(
            "Confusions",
            lambda: confused_pairs(tables),
            f"The pairs of {finest} that are confused most often, and their lowest common taxon.",
        ),
        Section.of("Tree", lambda: clade_tree(tables), f"Open a taxon to see the taxa below it. Bars are accuracies at rank {finest}."),
        Section.of("Classes", lambda: class_tables(tables), "Accuracy by the number of training labels, and the least accurate classes."),
        Section.of("Confidence", lambda: reliability(tables), _ABOUT_CONFIDENCE),
        Section.of(
            "Photographs", lambda: galleries(tables), "Validation samples: label, and the most probable classes with their probabilities."
        ),
    ]
    return [section for section in sections if section.body]


_ABOUT_METADATA = "Effect of each metadata component: accuracy of the model without it, on the same samples."
_ABOUT_CONFIDENCE = (
    "Of the predictions with a confidence of 70 %, 70 % should be right: a dot on the line. A dot below the line is overconfident. "
    "The larger a dot, the more samples."
)
