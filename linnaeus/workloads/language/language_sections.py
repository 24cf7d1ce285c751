"""Make the sections of the language workload in report.html: loss and perplexity, generated texts, loss by token, text sources and
dimensions (named adapters)."""

import math
from html import escape

from linnaeus.files import read_json
from linnaeus.reporting.report.html_parts import Cell, Column, Section, cards, explained, folded, number, table, text_cell
from linnaeus.reporting.report.metric_names import column_name, meaning, metric_name, passes_and_tasks
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads.language.text_samples import FILE

HARD = 6.0  # nats; tokens with this loss or more have the darkest colour


def language_sections(run: RunFiles) -> list[Section]:
    """Return the sections for report.html that have content; [] before the first validation."""
    passes = passes_and_tasks(run.final)[0]
    if not passes:
        return []
    texts = run.json(FILE)
    sections = [
        Section("Summary", _in_short(run, passes[0], texts), lead=True),
        Section("Texts", _texts(texts), "Beginnings of validation texts, continued by the model (temperature 0.8) and as in the data."),
        Section(
            "Hard tokens",
            _hard(texts),
            "Validation text. The darker a token, the higher its loss, shown under the pointer and by the arrow keys.",
        ),
        Section("Sources and dimensions", _parts(run, passes)),
    ]
    return [section for section in sections if section.body]


def _in_short(run: RunFiles, key: str, texts: dict) -> str:
    final, loss = run.final, run.final.get(f"{key}/loss")
    perplexity = final.get(f"{key}/perplexity")
    statement = ""
    if perplexity is not None:
        shown = number(f"{key}/perplexity", perplexity)
        statement = f'<p class="statement">The next token is as uncertain as a choice among <em>{shown}</em> equally probable ones.</p>'
    unigram = texts.get("unigram_loss")
    about = ""
    if unigram is not None and loss is not None:
        about = (
            f"Baselines: token frequencies without context have a perplexity of {math.exp(min(unigram, 700)):.4g} ({unigram:.3f} nats); "
            f"always the most frequent token is right for {100 * texts['constant_top1']:.1f} %."
        )
    facts = read_json(run.path / "dataset.json") or {}
    vocabulary = facts.get("vocabulary_size", facts.get("vocabulary"))
    about += f" The vocabulary has {vocabulary:,} tokens." if isinstance(vocabulary, int) else ""
    names = [name for name in ("loss", "perplexity", "bits_per_byte", "top1") if final.get(f"{key}/{name}") is not None]
    figures = [
        (number(f"{key}/{name}", final[f"{key}/{name}"]), explained(metric_name(name).lower(), meaning(name)), "validation")
        for name in names
    ]
    return statement + (f'<p class="about">{escape(about)}</p>' if about else "") + cards(figures)


def _texts(texts: dict) -> str:
    parts = []
    for i, text in enumerate(texts.get("continuations", ())):
        pair = "".join(
            f'<div><h3>{title}</h3><blockquote><span class="note">{escape(text["prompt"])}</span>{escape(text[name])}</blockquote></div>'
            for name, title in (("model", "The model continues"), ("data", "The data continue"))
        )
        first = text["prompt"].strip().splitlines()[-1:] or [""]
        parts.append(folded(f"Text {i + 1}: {first[0][:60]}", f'<div class="columns">{pair}</div>', open_=i == 0))
    return "".join(parts)


def _hard(texts: dict) -> str:
    parts: list[str] = []
    for window in texts.get("windows", ()):
        label = f"Validation text {len(parts) + 1}: arrow keys move from token to token"
        tokens = "".join(_token(text, loss) for text, loss in window)
        parts.append(f'<blockquote tabindex="0" data-marks aria-label="{label}">{tokens}</blockquote>')
    return "".join(parts)


def _token(text: str, loss: float | str | None) -> str:
    """Return the HTML of a token, darker for a higher loss.

    `loss`: in nats. None or a text means that the loss is not finite; the token then has the darkest colour."""
    share, shown = (min(85, round(85 * loss / HARD)), f"{loss:.2f}") if isinstance(loss, (int, float)) else (85, "not finite,")
    return f'<span class="hard" style="--loss:{share}%" data-about="{shown} nats">{escape(text)}</span>'


def _parts(run: RunFiles, passes: list[str]) -> str:
    """Return two tables as HTML: the loss of each text source, and the score and weight of each dimension (named adapter).

    `passes`: names of the validation passes; each is a column. A table without rows is left out."""
    found = ""
    for kind, metric, title in (("source", "loss", "Loss by source"), ("dimension", "score", "Score by dimension")):
        names = list(
            dict.fromkeys(k.split("/")[2] for k in run.final if k.count("/") == 3 and k.split("/")[1] == kind and k.endswith(metric))
        )
        weights = (read_json(run.path / "dimensions.json") or {}) if kind == "dimension" else {}
        columns = [Column(kind, words=True), *(Column(column_name(p), meaning(metric)) for p in passes)]
        columns += [Column("weight", "Weight in the last update.")] * bool(weights)
        rows = []
        for name in names:
            keys = [f"{p}/{kind}/{name}/{metric}" for p in passes]
            cells = [Cell(number(key, run.final.get(key)), run.final.get(key)) for key in keys]
            own = [text_cell(f"{weights[name]:.4g}" if name in weights else "")] * bool(weights)
            rows.append([text_cell(name), *cells, *own])
        found += table(title, columns, rows)
    return found
