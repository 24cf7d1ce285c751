"""Test the sections of report.html of a run of dictionaries, and feature_taxa.csv."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from linnaeus.workloads.dictionary.reading.dictionary_sections import same_module
from linnaeus.workloads.dictionary.trained.load_dictionary import load_model
from tests.workloads.dictionary.trained.conftest import MODULES, train_dictionary


def sections(run: Path) -> dict[str, str]:
    page = (run / "report.html").read_text()
    return dict(re.findall(r"<section[^>]*><h2[^>]*>([^<]*)</h2>(.*?)</section>", page, re.S))


@pytest.mark.parametrize(
    ("workload", "marks"),
    [("biota", 'class="heat"'), ("language", '<mark style="--heat:1.00">'), ("loadout", '<mark style="--heat:1.00">')],
)
def test_the_page_shows_features_with_examples_effects_and_neighbours(read_by, workload, marks):
    run = read_by(workload)
    found = sections(run)
    cards = found["Features"].count('<article class="feature"')
    assert 3 <= cards <= 24 and found["Features"].count("most similar: ") == cards and marks in found["Features"]
    assert " pp</b>" in found["Features"] and "Density of the features" in found["Density and frontier"]
    ids, links = (set(re.findall(rf'{key}="#?(feature-\d+)"', found["Features"])) for key in ("id", "href"))
    assert links and links <= ids
    assert not re.search(r"(src|href)=\"(?!data:|#)", "".join(found.values())), "the page loads nothing"


def test_the_table_of_taxa_has_a_row_for_each_taxon_with_training_samples(read_by):
    run = read_by("biota")
    with open(run / "feature_taxa.csv") as file:
        rows = list(csv.DictReader(file))
    columns = ["rank", "taxon", "feature", "place", "threshold", "training_rows", "validation_rows", "precision", "recall", "f1"]
    assert list(rows[0]) == columns
    assert len({(row["rank"], row["taxon"]) for row in rows}) == len(rows) > 20
    assert all(int(row["training_rows"]) > 0 and 0 <= int(row["feature"]) < 24 for row in rows)
    of_rank = [int(row["training_rows"]) for row in rows if row["rank"] == "order"]
    assert sum(of_rank) == 85 and "Features of taxa" in sections(run), "training samples of the model that is read"
    assert not (read_by("language") / "feature_taxa.csv").exists()


def test_keys_set_how_much_is_shown_and_another_run_is_on_the_frontier(read_by, tmp_path):
    first = read_by("language")
    read = load_model(first).place
    assert read is not None
    few = ["dictionary.report_features=2", "dictionary.report_samples=3"]
    run = train_dictionary(first.parents[1], read.run, MODULES["language"], "model.k=2", *few, name="other")
    found = sections(run)
    assert 1 <= found["Features"].count("<article") <= 2 and "of 3 validation samples" in found["Features"]
    assert [name for name, _ in same_module(run)] == ["run"]
    assert found["Density and frontier"].count("<circle") == 4, "two runs on two charts"
    none = train_dictionary(tmp_path, read.run, MODULES["language"], "dictionary.report_features=0")
    assert "Features" not in sections(none) and "Dictionaries" in sections(none)["Summary"]
