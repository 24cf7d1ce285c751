"""Make the sections of the loadout workload in report.html: right slots of the model, the baselines and the optimum."""

from collections.abc import Mapping

from linnaeus.reporting.report.html_parts import Cell, Column, Section, cards, explained, number, table, text_cell
from linnaeus.reporting.report.line_chart import charts_of, line_chart
from linnaeus.reporting.report.metric_names import meaning
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads.loadout.report.result_tables import ENDS, REMOVED, SCORES, TOKENS, headline, methods

ABOUT = "Share of the removed slots that are filled as in the data, by the number of removed slots."
ROWS = {  # metric, with K removed slots -> name of its row
    "margin_K": "model minus the best baseline, points",
    **{f"margin_K_{end}": f"95 % interval, {end}" for end in ENDS},
    "of_optimum_K": "model, share of the optimum",
}
METHODS = {
    "random": "Slots filled at random.",
    "modal": "The most frequent build of the weapon.",
    "containing": "The most frequent build of the weapon that contains the given gear.",
    "neighbours": "Mean of the weapon's training builds; builds that share more slots with the given gear count more.",
    "log_odds": "Log-odds of each token for the weapon, plus half of its pairwise log-odds with each given token.",
    "optimum": "Completion by the distribution from which the builds were drawn: the best possible in the mean.",
}


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
    curves = {f"{k} removed": run.metrics[f"{key}/slots_{k}"] for k in REMOVED if f"{key}/slots_{k}" in run.metrics}
    chart = line_chart("Right slots", curves, float(run.step or 0), share=True, note="validation", about=ABOUT)
    completion = charts_of([chart]) + _methods(final, key) + _tokens(final, key)
    return [Section("Summary", cards(figures) + lines, lead=True), Section("Completion of builds", completion, ABOUT)]


def _methods(final: dict[str, float], key: str) -> str:
    """Return three tables with a row for the model, each baseline and the optimum: right slots and right slots against several references,
    with a column for each number of removed slots, and the metrics `SCORES`.

    key: name of the validation pass."""
    names = methods(final, key)
    slots, references = ({f"{kind}_{k}": str(k) for k in REMOVED} for kind in ("slots", "references"))
    more = {words: {metric: f"{key}/{name.replace('K', str(k))}" for metric, k in zip(slots, REMOVED)} for name, words in ROWS.items()}
    return (
        _table("Right slots by the number removed", final, names, slots, more)
        + _table("Right slots against several references", final, names, references)
        + _table("Slots of the weapon and of the given gear, and ability points", final, names, SCORES)
    )


def _table(
    title: str,
    final: dict[str, float],
    names: Mapping[str, str],
    heads: Mapping[str, str],
    more: Mapping[str, dict[str, str]] | None = None,
) -> str:
    """Return an HTML table. names: method -> beginning of the names of its metrics. heads: metric -> head of its column. more: rows below,
    name -> (column's metric -> key in `final`). Rows without a value are left out."""
    keys = {name: {metric: prefix + metric for metric in heads} for name, prefix in names.items()} | dict(more or {})
    rows = []
    for name, own in keys.items():
        if any(full in final for full in own.values()):
            values = [(full, final.get(full)) for full in own.values()]
            cells = [Cell(number(metric, value), value) for metric, value in values]
            rows.append([Cell(explained(name.replace("_", " "), METHODS.get(name, ""))), *cells])
    columns = [Column("method", words=True), *(Column(head, meaning(metric)) for metric, head in heads.items())]
    return table(title, columns, rows, sortable=False)


def _tokens(final: dict[str, float], key: str) -> str:
    """Return a table of the other metrics. key: name of the validation pass."""
    found = {words: f"{key}/{name}" for name, words in TOKENS.items() if f"{key}/{name}" in final}
    rows = [[text_cell(words), Cell(number(metric, final[metric]))] for words, metric in found.items()]
    return table("Tokens and answers", [Column("metric", words=True), Column("value")], rows, sortable=False)
