"""Sections of the dictionary workload for report.html: how sparse the dictionaries are, and how much of the activations they explain."""

from linnaeus.reporting.report.html_parts import Cell, Column, Section, cards, explained, number, table, text_cell
from linnaeus.reporting.report.run_files import RunFiles

MEANINGS = {  # metric -> its meaning, in the order of the columns
    "l0": "Features that are active in an activation, on average.",
    "explained_variance": "1 - squared error / squared distance from the mean activation. 1 is best.",
    "cosine": "Mean cosine of activation and reconstruction.",
    "loss_recovered": "Share of the loss that the model regains if the reconstruction replaces the activations, instead of zeros.",
    "dead": "Share of features that are never active.",
    "dense": "Share of features that are active in more than 10 % of the activations.",
    "mcc": "Mean cosine of the planted features and the features matched with them.",
    "uniqueness": "Share of planted features that are matched with a feature of their own.",
    "f1": "Agreement in which activations the planted and the matched features are active.",
    "shrinkage": "Size of the activities of matched features, relative to the planted ones. 1 is right.",
}
FEATURE_SECTIONS = "feature_sections.json"  # in the folder of the last validation: [title, HTML] of each section
FIRST = ("l0", "explained_variance", "loss_recovered")


def report_sections(run: RunFiles) -> list[Section]:
    """Return the sections; [] before the first validation."""
    starts = [key.removesuffix("l0") for key in run.final if key.startswith("val") and key.endswith("/l0")]
    if not starts:
        return []
    columns = [name for name in MEANINGS if any(run.final.get(f"{start}{name}") is not None for start in starts)]
    figures = [
        (number(f"{starts[0]}{name}", run.final.get(f"{starts[0]}{name}")), explained(name.replace("_", " "), MEANINGS[name]), "validation")
        for name in FIRST
        if name in columns
    ]
    rows = [
        [
            text_cell(start.partition("/")[2].rstrip("/") or "dictionary"),
            *(Cell(number(f"{start}{name}", run.final.get(f"{start}{name}")), run.final.get(f"{start}{name}")) for name in columns),
        ]
        for start in starts
    ]
    heads = [Column("dictionary", words=True), *(Column(name.replace("_", " "), MEANINGS[name]) for name in columns)]
    about = "Few active features that explain much are best."
    lead = Section("Summary", cards(figures) + table("Dictionaries", heads, rows), about, lead=True)
    return [lead, *(Section(title, body) for title, body in run.json(FEATURE_SECTIONS).get("sections", ()))]
