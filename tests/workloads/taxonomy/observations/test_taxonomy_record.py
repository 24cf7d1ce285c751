"""Test the content of the dataset record."""

import csv
import json

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.observations import Metadata, Source
from linnaeus.workloads.taxonomy.observations.dataset_record import process_and_save_dataset_metadata
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@pytest.fixture
def source():
    rows = np.array([["F", "a"], ["F", "b"], ["G", ""], ["G", "a,1"], ["F", "a"], ["F", ""]])
    tree, labels = TaxonomyTree.from_lineages(("family", "genus"), rows)
    nan = np.full(6, np.nan, dtype=np.float32)
    known = np.array([0, 1, np.nan, 3, 4, np.nan], dtype=np.float32)
    zeros = np.zeros(6, dtype=np.float32)
    metadata = Metadata(latitude=known, longitude=known, uncertainty=nan, day=known, hour=nan, elevation=zeros)
    split = np.array([0, 0, 0, 0, 1, 1], dtype=np.int8)
    ids = np.array([f"{i}" for i in range(6)])
    return Source(tree, ids, labels, metadata, split, None, "print", group=np.arange(6), excluded={"lost": 2}, notes=("a note",))


def saved(source, folder, draws=None):
    """Return the content of dataset.json, and the columns of class_counts.csv after the class number."""
    process_and_save_dataset_metadata(source, folder, draws)
    with (folder / "class_counts.csv").open() as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert [row[1] for row in rows] == ["0", "1", "0", "1", "2"]
    return json.loads((folder / "dataset.json").read_text()), [(row[0], *row[2:]) for row in rows]


def test_the_record_describes_the_source(source, tmp_path):
    facts, table = saved(source, tmp_path / "dataset")
    assert facts["rows"] == {"training": 4, "validation": 2} and facts["fingerprint"] == "print"
    genus = facts["ranks"]["genus"]
    assert genus["classes"] == 3 and genus["classes_validated"] == 1
    assert genus["label_density"] == {"training": 0.75, "validation": 0.5} and genus["null"] == {"training": 1, "validation": 1}
    assert facts["metadata"]["SPATIAL"] == {"training": 0.75, "validation": 0.5} and facts["metadata"]["ELEVATION"]["training"] == 1.0
    assert facts["metadata"]["uncertainty"]["training"] == 0.0
    assert facts["excluded"] == {"lost": 2} and facts["notes"] == ["a note"] and facts["groups"] == {"training": 4, "validation": 2}
    assert json.loads((tmp_path / "dataset/class_indices.json").read_text())["genus"] == {"F|a": 0, "F|b": 1, "G|a,1": 2}
    tree = TaxonomyTree.from_dict(json.loads((tmp_path / "dataset/taxonomy.json").read_text()))
    assert tree.fingerprint() == source.tree.fingerprint() == facts["taxonomy_fingerprint"]
    species = [("genus", "a", "F|a", "1", "1", "1"), ("genus", "b", "F|b", "1", "0", "1"), ("genus", "a,1", "G|a,1", "1", "0", "1")]
    assert table == [("family", "F", "F", "2", "2", "2"), ("family", "G", "G", "2", "0", "2"), *species]
    assert not list(tmp_path.glob("dataset/.tmp-*"))


def test_the_record_contains_draws_per_epoch_of_each_class(source, tmp_path):
    facts, table = saved(source, tmp_path, draws=np.array([1.5, 0.5, 1.25, 0.7512]))
    assert [row[-1] for row in table] == ["2", "2.001", "1.5", "0.5", "0.751"]
    assert facts["ranks"]["genus"]["drawn_per_class"] == {"smallest": 0.5, "median": 0.751, "largest": 1.5}
