"""Make the summary at the top of the report: accuracy by rank, with and without place and date and beside baselines, and the worst
failures.
"""

from html import escape

from linnaeus.errors import counted
from linnaeus.files import read_json
from linnaeus.reporting.charts import BLUE, Chart, Scale
from linnaeus.reporting.report.html_parts import cards, explained, interval, number, picture_of_marks
from linnaeus.reporting.report.metric_names import meaning
from linnaeus.reporting.report.metric_tables import difference, uncertainty
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables, times
from linnaeus.workloads.taxonomy.report.clades import FEWEST, clade_counts
from linnaeus.workloads.taxonomy.report.sample_table import taxon_name

WIDTH, LEFT, RIGHT, ROW = 560, 104, 34, 34
MASKED = "_mask_meta"  # end of the name of the pass that masks all metadata


def overview(tables: AnswerTables) -> str:
    """Return the HTML of the summary at the top of the report. Parts without values are left out.

    The parts are a sentence, cards with the main figures, a plot of the accuracy by taxonomic rank, and a list of weaknesses."""
    return _statement(tables) + f'<div class="columns"><div>{_cards(tables)}</div>{rank_plot(tables)}</div>' + _failures(tables)


def _statement(tables: AnswerTables) -> str:
    finest = tables.finest
    value = tables.value(f"{finest}/top1")
    if value is None:
        return ""
    facts = read_json(tables.run.path / "dataset.json") or {}
    rows = facts.get("rows", {}) if isinstance(facts.get("rows"), dict) else {}
    classes = facts.get("ranks", {}).get(finest, {}).get("classes")
    scored = _scored(tables, facts)
    on = f" of {scored:,} validation photographs" if scored else ""
    text = f'<p class="statement">The {escape(finest)} is right for <em>{number(f"{tables.normal}/{finest}/top1", value)}</em>{on}.</p>'
    about = [f"Among {classes:,} {escape(finest)}; trained on {rows['training']:,} photographs." if classes and rows else ""]
    baseline = tables.baselines.get(f"{finest}/top1")
    if baseline:
        about.append(
            f"Baselines: always the most frequent {escape(finest)} is right for {100 * baseline['constant']:.1f} %, "
            f"the predictions in random order for {100 * baseline['shuffled']:.1f} %."
        )
    ceiling = tables.examples.get("ceilings", {}).get(f"with_meta/{finest}/top1")
    if ceiling is not None:
        about.append(f"The best possible accuracy on these generated data is {100 * ceiling:.1f} %.")
    about.append(_groups(tables, facts))
    return text + f'<p class="about">{" ".join(filter(None, about))}</p>'


def _scored(tables: AnswerTables, facts: dict) -> int | None:
    """Return the number of validation samples from which the accuracy at the finest rank is computed: those with a label. None if unknown.

    Before the tables of the last validation exist, the number is from dataset.json (`facts`); with `trainer.limit_validation_samples` it
    is unknown."""
    own = sum(sample.right is not None for sample in tables.samples)
    trainer = tables.run.config.get("trainer")
    if own or (isinstance(trainer, dict) and trainer.get("limit_validation_samples")):
        return own or None
    without = facts.get("ranks", {}).get(tables.finest, {}).get("null", {}).get("validation")
    return None if without is None else facts["rows"]["validation"] - without


def _groups(tables: AnswerTables, facts: dict) -> str:
    groups = facts.get("groups")
    if not isinstance(groups, dict) or not groups.get("validation"):
        return ""
    return f"All photographs of a group are either training or validation data ({groups['validation']:,} validation groups)."


def _cards(tables: AnswerTables) -> str:
    """Return the HTML of the cards with the main figures; figures that were not computed are left out.

    The figures are the accuracies of the two finest ranks and, for the finest rank, the accuracy without place and date, the mean accuracy
    over classes and the calibration error."""
    figures = []
    for rank in reversed(tables.ranks[-2:]):
        key = f"{tables.normal}/{rank}/top1"
        ends = interval(key, tables.final.get(f"{key}_low"), tables.final.get(f"{key}_high"))
        figures.append(
            (number(key, tables.final.get(key)), explained(f"right {rank}", meaning("top1")), f"95 % interval {ends}" if ends else "")
        )
    masked, normal = f"{tables.normal}{MASKED}/{tables.finest}/top1", f"{tables.normal}/{tables.finest}/top1"
    value, whole = tables.final.get(masked), tables.final.get(normal)
    if value is not None and whole is not None:
        least = uncertainty(tables.final, masked, normal, tables.run.differences)
        note = f"{difference(masked, value - whole, least)} points"
        figures.append((number(masked, value), f"right {escape(tables.finest)} without place and date", note))
    for name, words in (("macro_top1", "mean over classes"), ("ece", "calibration error")):
        key = f"{tables.normal}/{tables.finest}/{name}"
        if tables.final.get(key) is not None:
            figures.append((number(key, tables.final[key]), explained(words, meaning(name)), escape(tables.finest)))
    return cards(figures)


def rank_plot(tables: AnswerTables) -> str:
    """Return the HTML of a figure with a row per taxonomic rank, the finest first. Values that do not exist are left out.

    A row has two dots with 95 % intervals: the accuracy with all inputs, and the accuracy without place and date. It has two vertical
    lines: the accuracy of always predicting the most frequent class and, for generated data, the best possible accuracy."""
    ranks = list(reversed(tables.ranks))
    height = ROW * len(ranks) + 34
    chart = Chart(Scale(0, 1, LEFT, WIDTH - RIGHT), Scale(0, 1, height - 26, 6))
    for share in (0, 0.25, 0.5, 0.75, 1):
        chart.line(chart.x(share), 6, chart.x(share), height - 26)
        chart.text(chart.x(share), height - 8, f"{share:.0%}", "middle")
    described = []
    for i, rank in enumerate(ranks):
        y = 6 + ROW * (i + 0.5)
        chart.text(LEFT - 12, y + 4, rank, "end", "#222222")
        for place, kind in ((y - 5, ""), (y + 5, MASKED)):
            described += _dot(tables, chart, rank, kind, place)
        best = tables.examples.get("ceilings", {})
        ticks = {"s1": tables.baselines.get(f"{rank}/top1", {}).get("constant"), "s3": best.get(f"with_meta/{rank}/top1")}
        for class_, value in ticks.items():
            if value is not None:
                about = f"{rank}, {'best possible' if class_ == 's3' else 'always the most frequent class'} {100 * value:.1f} %"
                ends = {"x1": chart.x(value), "x2": chart.x(value), "y1": y - 12, "y2": y + 12}
                chart.add("line", class_=f"{class_} whisker", **ends, data_about=about)
                described.append(about)
    keys = [("b0", "all inputs"), *([("b2", "without place and date")] if f"{tables.normal}{MASKED}/loss" in tables.final else [])]
    keys += [("b1", "always the most frequent class")] * bool(tables.baselines) + [("b3", "best possible")] * bool(
        tables.examples.get("ceilings")
    )
    legend = "".join(f'<span class="key"><i class="{class_}"></i>{words}</span>' for class_, words in keys)
    caption = explained("Accuracy by taxonomic rank", "Lines are 95 % intervals.")
    picture = picture_of_marks(chart, WIDTH, height, "Accuracy by taxonomic rank. " + "; ".join(described))
    return f'<figure class="chart"><figcaption>{caption}</figcaption><div class="legend">{legend}</div>{picture}</figure>'


def _dot(tables: AnswerTables, chart: Chart, rank: str, kind: str, y: float) -> list[str]:
    """Draw the accuracy of a pass at a rank, with its interval, on `chart`. Return [description as text], or [] if there is no such
    accuracy.

    `kind`: suffix of the name of the pass, "" for the normal pass or `MASKED`. `y`: vertical position in pixels."""
    key = f"{tables.normal}{kind}/{rank}/top1"
    value, low, high = (tables.final.get(name) for name in (key, f"{key}_low", f"{key}_high"))
    if value is None:
        return []
    colour, words = ("s2", f"{rank} without place and date") if kind else ("s0", rank)
    text = f"{words} {100 * value:.1f} %"
    if low is not None and high is not None:
        chart.add("line", class_=f"{colour} whisker", x1=chart.x(low), x2=chart.x(high), y1=y, y2=y)
        text += f" ({100 * low:.1f} to {100 * high:.1f})"
    chart.add("circle", class_=f"dot {colour}", cx=chart.x(value), cy=y, r=4.5, fill=BLUE, data_about=text)
    return [text]


def _failures(tables: AnswerTables) -> str:
    """Return an HTML list of weaknesses of the model; "" if none can be computed.

    These are the clade with the lowest accuracy, the classes that are never right (or the class with the lowest accuracy), the most
    frequent confusion, and the number of wrong predictions with a confidence of 90 % or more."""
    items = [*_worst_clade(tables), *_worst_class(tables), *_worst_pair(tables), *_confident(tables)]
    return f'<h3>Weaknesses</h3><ul class="fails">{"".join(f"<li>{item}</li>" for item in items)}</ul>' if items else ""


def _worst_clade(tables: AnswerTables) -> list[str]:
    counts = clade_counts(tables)
    inner = {lineage: c for lineage, c in counts.items() if tables.taxa[lineage].rank != tables.finest and c[0] >= FEWEST}
    share = {lineage: right / total for lineage, (total, right) in inner.items()}
    if len(share) < 2:
        return []
    worst = min(share, key=lambda lineage: (share[lineage], lineage))
    taxon, total = tables.taxa[worst], inner[worst][0]
    return [
        f"Lowest accuracy of a clade: <b>{escape(taxon.name)}</b> ({escape(taxon.rank)}), {100 * share[worst]:.0f} % of {total:,} right."
    ]


def _worst_class(tables: AnswerTables) -> list[str]:
    own = [t for t in tables.taxa.values() if t.rank == tables.finest and t.samples]
    never = [t for t in own if not t.right]
    if never:
        names = ", ".join(f"<i>{escape(t.name)}</i>" for t in sorted(never, key=lambda t: -t.samples)[:3])
        return [f"Never right: {len(never):,} of {len(own):,} {escape(tables.finest)}, such as {names}."]
    worst = min(own, key=lambda t: (t.accuracy, t.name), default=None)
    if worst is None:
        return []
    return [
        f"Lowest accuracy of a class: <i>{escape(worst.name)}</i>, {worst.right} of {worst.samples} right, "
        f"with {worst.training} training labels."
    ]


def _worst_pair(tables: AnswerTables) -> list[str]:
    rows = tables.run.table("confusions")[:1]
    return [
        f"<i>{escape(taxon_name(row['label']))}</i> is confused with <i>{escape(taxon_name(row['predicted']))}</i> "
        f"{times(int(row['count']))} ({100 * float(row['share']):.0f} % of its photographs)."
        for row in rows
    ]


def _confident(tables: AnswerTables) -> list[str]:
    sure = [sample for sample in tables.samples if sample.confidence >= 0.9 and sample.right is not None]
    wrong = sum(not sample.right for sample in sure)
    if not sure:
        return ["No prediction has a confidence of 90 % or more."] if tables.samples else []
    share = f"{wrong:,} {'is' if wrong == 1 else 'are'} wrong ({100 * wrong / len(sure):.1f} %)"
    return [f"Of {counted(len(sure), 'prediction')} with a confidence of 90 % or more, {share}."]
