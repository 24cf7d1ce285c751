"""Reports of taxonomy runs: the figures are those of summary.json, the tables those of the last validation, and only files are needed."""

import csv
import datetime
import math
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from linnaeus.commands.report import main
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads import report_sections
from linnaeus.workloads.taxonomy.manifest.tables.dates import day_of_year
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables
from linnaeus.workloads.taxonomy.report.clades import clade_counts, clade_tree
from linnaeus.workloads.taxonomy.report.galleries import MONTHS, _metadata
from tests import runs
from tests.reporting.test_html_report import Checker

MORE = [
    "logger.report=true",
    "trainer.length=4steps",
    "trainer.global_batch_size=8",
    "data.validation_batch=20",
    "data.validation_samples=40",
    "schedule.validate=[50%, 100%]",
    "schedule.validate_mask_meta=[100%]",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.run("biota", tmp_path_factory.mktemp("report"), *MORE)


def rows(run: Path, name: str) -> list[dict[str, str]]:
    (path,) = run.glob(f"validation/*/{name}.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_figure_of_the_page_equals_the_summary(run: Path) -> None:
    checker, final = Checker(), runs.summary(run)["final"]
    checker.feed((run / "report.html").read_text())
    assert checker.open == [] and len(set(checker.ids)) == len(checker.ids)
    assert all(address.startswith(("#", "data:image/webp;base64,")) for address in checker.addresses)
    assert {key for key, exact in checker.values if exact} == {key for key, value in final.items() if value is not None}
    for key, exact in checker.values:
        assert (float(exact) if exact else None) == final.get(key), key


def test_the_tables_of_the_last_validation_give_its_metrics(run: Path) -> None:
    final = runs.summary(run)["final"]
    for key in ("val", "val_mask_meta"):
        samples = rows(run, f"{key}-samples")
        assert len(samples) == 40 and len({row["sample"] for row in samples}) == 40
        for name in ("order/top1", "species/top1", "chain", "hd1"):
            values = [float(row[name]) for row in samples if row[name]]
            assert np.mean(values) == pytest.approx(final[f"{key}/{name}"], rel=1e-12)
    classes = rows(run, "val-classes")
    species = [row for row in classes if row["rank"] == "species"]
    assert sum(int(row["right"]) for row in species) / sum(int(row["count"]) for row in species) == pytest.approx(final["val/species/top1"])
    assert {row["metric"] for row in rows(run, "val-baselines")} >= {"species/top1", "order/macro_top1"}
    assert not list(run.glob("validation/*/val_mask_meta-classes.csv"))


def test_the_sections_and_the_photographs(run: Path) -> None:
    sections = {section.title: section for section in report_sections("taxonomy", RunFiles(run))}
    assert list(sections) == ["Summary", "Place and date", "Confusions", "Tree", "Classes", "Confidence", "Photographs"]
    assert [title for title, section in sections.items() if section.lead] == ["Summary"]
    final = runs.summary(run)["final"]
    assert "best possible" in sections["Summary"].body and f"{100 * final['val/species/top1']:.1f} %" in sections["Summary"].body
    tables = AnswerTables(RunFiles(run))
    assert tables.examples["groups"] and all(entry["webp"] for entry in tables.examples["photographs"].values())
    wrong = tables.examples["groups"]["Wrong predictions with the highest confidence"]
    sure = [tables.samples[number].confidence for number in wrong]
    assert sure == sorted(sure, reverse=True) and not any(tables.samples[number].right for number in wrong)
    assert sections["Photographs"].body.count("<img") == sum(map(len, tables.examples["groups"].values()))


def test_the_tree_counts_each_sample_once_at_each_rank(run: Path) -> None:
    tables = AnswerTables(RunFiles(run))
    counts, parents = clade_counts(tables), tables.parents
    labelled = [sample for sample in tables.samples if sample.right is not None]
    assert sum(total for lineage, (total, _) in counts.items() if not parents[lineage]) == len(labelled)
    for lineage, (total, right) in counts.items():
        inside = [sample for sample in labelled if lineage in tables.path(sample.label)]
        assert (total, right) == (len(inside), sum(bool(sample.right) for sample in inside))
    assert clade_tree(tables).count("<summary>") + clade_tree(tables).count("<p>") == len(counts)


def test_no_value_is_in_a_tooltip_alone(run: Path) -> None:
    """Browsers show `title` under the pointer only. A chart and the tree are one tab stop each, however many dots and taxa they have."""
    tables, text = AnswerTables(RunFiles(run)), (run / "report.html").read_text().partition("<script>")[0]
    text = re.sub(r'<div class="picture".*?</svg>', "", text, flags=re.DOTALL)  # the schedule, which is also there as text
    assert text.count("<title>") == 1 and set(re.findall(r' title="([^"]*)"', text)) <= {"95 % interval"}
    tree = clade_tree(tables)
    assert tree.count("tabindex") == 1
    shown = Counter(" ".join(re.sub("<[^>]*>", " ", line).split()) for line in re.split("<summary>|<p>", tree)[1:])
    expected = Counter[str]()
    for lineage, (total, right) in clade_counts(tables).items():
        taxon = tables.taxa[lineage]
        own = f", {100 * taxon.accuracy:.0f} % right at this rank" if taxon.rank != tables.finest and taxon.accuracy is not None else ""
        labels = f"{taxon.training} training label{'s' * (taxon.training != 1)}{own}"
        expected[f"{100 * right / total:.0f} % ({right} of {total}) {taxon.name} {taxon.rank} {labels}"] += 1
    assert shown == expected
    charts = re.findall(r"<svg[^>]*data-marks.*?</svg>", text)
    assert len(charts) == 2 + len(tables.ranks)
    for chart in charts:
        assert 0 < chart.count("<circle") <= chart.count("data-about=") and chart.count("tabindex") == 1


def test_the_command_makes_the_same_page_and_one_without_the_lost_files(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / run.parent.name / run.name
    shutil.copytree(run, copy)
    before = (copy / "report.html").read_bytes()
    (copy / "report.html").unlink()
    assert main([str(copy)]) == 0 and (copy / "report.html").read_bytes() == before
    for path in copy.glob("validation/*/*"):
        path.unlink()
    (copy / "class_counts.csv").unlink()
    assert main([str(copy)]) == 0
    text = (copy / "report.html").read_text()
    assert "Place and date" in text and "Only aggregate results are saved" in text and "Photographs" not in text


def test_differences_are_paired_by_sample(run: Path) -> None:
    """Compare the interval of a difference with that of a paired bootstrap; with other samples there is none."""
    found, final = RunFiles(run).differences, runs.summary(run)["final"]
    low, high = found["val_mask_meta/order/top1"]
    change = final["val_mask_meta/order/top1"] - final["val/order/top1"]
    assert low <= change <= high and math.isfinite(low)
    a, b = (rows(run, f"{key}-samples") for key in ("val", "val_mask_meta"))
    terms = np.array([float(y["order/top1"]) - float(x["order/top1"]) for x, y in zip(a, b, strict=True) if x["order/top1"]])
    rng = np.random.default_rng(0)
    draws = rng.choice(terms, (4000, len(terms))).mean(1)
    assert (low, high) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.05)


def test_the_page_shows_the_day_of_each_date_also_in_a_leap_year():
    for year in (2020, 2023):
        for count in range(366 if year == 2020 else 365):
            date = datetime.date(year, 1, 1) + datetime.timedelta(days=count)
            shown = _metadata({"day": round(float(np.float32(day_of_year(date.isoformat()))), 6)})
            assert shown == f"{date.day} {MONTHS[date.month - 1]}"
    assert {_metadata({"day": fraction}) for fraction in (0.9999, 0.999999)} == {"31 Dec"}
