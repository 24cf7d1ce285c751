"""Sections of the language workload for report.html: how well it predicts text, and texts that it writes."""

import math
from html import escape

from linnaeus.files import read_json
from linnaeus.reporting.report.html_parts import Cell, Column, Section, cards, explained, folded, number, table, text_cell
from linnaeus.reporting.report.metric_words import column_name, meaning, metric_name, passes_and_tasks
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads.language.text_samples import FILE

HARD = 6.0  # nats; a token with this loss has the full colour


def language_sections(run: RunFiles) -> list[Section]:
    """Return the sections; [] before the first validation."""
    passes = passes_and_tasks(run.final)[0]
    if not passes:
        return []
    texts = run.json(FILE)
    sections = [
        Section("Summary", _in_short(run, passes[0], texts), lead=True),
        Section("Texts", _texts(texts), "Validation text, and two continuations of it: by the model (temperature 0.8), and in the data."),
        Section("Hard tokens", _hard(texts), "Validation text. The darker a token, the higher its loss: what the model did not expect."),
        Section("Sources and dimensions", _parts(run, passes)),
    ]
    return [section for section in sections if section.body]


def _in_short(run: RunFiles, key: str, texts: dict) -> str:
    final, loss = run.final, run.final.get(f"{key}/loss")
    perplexity = final.get(f"{key}/perplexity")
    statement = ""
    if perplexity is not None:
        shown = number(f"{key}/perplexity", perplexity)
        statement = f'<p class="statement">It predicts the next token as if it chose among <em>{shown}</em> equally probable ones.</p>'
    unigram = texts.get("unigram_loss")
    about = ""
    if unigram is not None and loss is not None:
        about = (
            f"Token frequencies alone, without context, have a perplexity of {math.exp(min(unigram, 700)):.4g} ({unigram:.3f} nats); "
            f"always the most frequent token would be right for {100 * texts['constant_top1']:.1f} %."
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
    parts = []
    for window in texts.get("windows", ()):
        parts.append(f"<blockquote>{''.join(_token(text, loss) for text, loss in window)}</blockquote>")
    return "".join(parts)


def _token(text: str, loss: float | str | None) -> str:
    """Return a token, coloured by its loss; a loss that is not finite, null or a text in the file, has the full colour."""
    share, shown = (min(85, round(85 * loss / HARD)), f"{loss:.2f}") if isinstance(loss, (int, float)) else (85, "not finite,")
    return f'<span class="hard" style="--loss:{share}%" title="{shown} nats">{escape(text)}</span>'


def _parts(run: RunFiles, passes: list[str]) -> str:
    """Return tables of the losses of the sources and the scores of the dimensions."""
    found = ""
    for kind, metric, title in (("source", "loss", "Loss by source"), ("dimension", "score", "Score by dimension")):
        names = list(
            dict.fromkeys(k.split("/")[2] for k in run.final if k.count("/") == 3 and k.split("/")[1] == kind and k.endswith(metric))
        )
        weights = (read_json(run.path / "dimensions.json") or {}) if kind == "dimension" else {}
        columns = [Column(kind, words=True), *(Column(column_name(p), meaning(metric)) for p in passes)]
        columns += [Column("weight", "In the last update.")] * bool(weights)
        rows = []
        for name in names:
            keys = [f"{p}/{kind}/{name}/{metric}" for p in passes]
            cells = [Cell(number(key, run.final.get(key)), run.final.get(key)) for key in keys]
            own = [text_cell(f"{weights[name]:.4g}" if name in weights else "")] * bool(weights)
            rows.append([text_cell(name), *cells, *own])
        found += table(title, columns, rows)
    return found
