"""Make the sections of the loadout workload in report.html: right slots of the model, the baselines and the optimum."""

from linnaeus.reporting.report.html_parts import Cell, Column, Section, cards, explained, number, table, text_cell
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads.loadout.result_tables import REMOVED, TOKENS, headline

ABOUT = "Share of the removed slots that are filled as in the data, by the number of removed slots."
ROWS = {"margin": "model minus the best baseline", "of_optimum": "model, share of the optimum"}


def loadout_sections(run: RunFiles) -> list[Section]:
    """Return the sections with the final metrics of a run; [] before the first validation."""
    key = next((name.partition("/")[0] for name in run.final if name.startswith("val")), None)
    if key is None:
        return []
    final = {name: value for name, value in run.final.items() if value is not None}
    lines = "".join(f"<p>{line}</p>" for line in headline(final)[1:])
    figures = [
        (number(f"{key}/slots_{k}", final[f"{key}/slots_{k}"]), explained(f"right of {k} removed", ABOUT), "validation")
        for k in (6, 3, 1)
        if f"{key}/slots_{k}" in final
    ]
    baselines = [name.split("/")[2] for name in final if name.startswith(f"{key}/baseline/") and name.endswith("/slots_1")]
    names = {"model": f"{key}/slots_"} | {name: f"{key}/baseline/{name}/slots_" for name in baselines}
    names |= {"optimum": f"{key}/optimum/slots_"} | {words: f"{key}/{name}_" for name, words in ROWS.items()}
    rows = [
        [text_cell(name), *(Cell(number(f"{prefix}{k}", final.get(f"{prefix}{k}")), final.get(f"{prefix}{k}")) for k in REMOVED)]
        for name, prefix in names.items()
        if f"{prefix}1" in final
    ]
    completion = table(
        "Right slots by the number removed", [Column("method", words=True), *(Column(str(k)) for k in REMOVED)], rows, sortable=False
    )
    others = [
        [text_cell(words), Cell(number(f"{key}/{name}", final[f"{key}/{name}"]))]
        for name, words in TOKENS.items()
        if f"{key}/{name}" in final
    ]
    tokens = table("Tokens and answers", [Column("metric", words=True), Column("value")], others, sortable=False)
    return [Section("Summary", cards(figures) + lines, lead=True), Section("Completion of builds", completion + tokens, ABOUT)]
