"""Make the sections of the dictionary workload in report.html: sparsity and reconstruction metrics, then the sections about features."""

from linnaeus.reporting.report.html_parts import Cell, Column, Section, cards, explained, number, table, text_cell
from linnaeus.reporting.report.metric_names import meaning
from linnaeus.reporting.report.run_files import RunFiles

TABLE = ("l0", "explained_variance", "sparse_gain", "cosine", "loss_recovered", "dead", "dense", "mcc", "uniqueness", "f1", "shrinkage")
MEANINGS = {name: meaning(name) for name in TABLE}  # of the columns, in their order
MEANINGS["f1"] = "Mean F1 of the features as detectors of their nearest planted features. 1 is best."
FEATURE_SECTIONS = "feature_sections.json"  # in the folder of the last validation: [title, HTML] of each section
FIRST = ("l0", "explained_variance", "loss_recovered")


def report_sections(run: RunFiles) -> list[Section]:
    """Return the section with the validation metrics, then the stored sections about features; [] without validation metrics."""
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
    about = "Best: few active features and a high explained variance."
    lead = Section("Summary", cards(figures) + table("Dictionaries", heads, rows), about, lead=True)
    return [lead, *(Section(title, body) for title, body in run.json(FEATURE_SECTIONS).get("sections", ()))]
