"""Test the dataset record: its content, reading it back, and errors for incomplete records."""

import csv
import json

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.dataset_record import load_dataset_metadata, process_and_save_dataset_metadata
from linnaeus.workloads.taxonomy.observations import Metadata, Source
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@pytest.fixture
def source():
    rows = np.array([["F", "a"], ["F", "b"], ["G", ""], ["G", "a,1"], ["F", "a"], ["F", ""]])
    tree, labels = TaxonomyTree.from_lineages(("family", "genus"), rows)
    nan = np.full(6, np.nan, dtype=np.float32)
    known = np.array([0, 1, np.nan, 3, 4, np.nan], dtype=np.float32)
    metadata = Metadata(known, known, nan, known, nan, np.zeros(6, dtype=np.float32))
    split = np.array([0, 0, 0, 0, 1, 1], dtype=np.int8)
    ids = np.array([f"{i}" for i in range(6)])
    return Source(tree, ids, labels, metadata, split, None, "print", group=np.arange(6), excluded={"lost": 2}, notes=("a note",))


def test_the_record_describes_the_source(source, tmp_path):
    record = process_and_save_dataset_metadata(source, tmp_path / "dataset")
    facts = json.loads((tmp_path / "dataset/dataset.json").read_text())
    assert facts["rows"] == {"training": 4, "validation": 2} and facts["fingerprint"] == "print"
    assert facts["ranks"]["genus"]["classes"] == 3 and facts["ranks"]["genus"]["classes_validated"] == 1
    assert facts["ranks"]["genus"]["label_density"] == {"training": 0.75, "validation": 0.5}
    assert facts["ranks"]["genus"]["null"] == {"training": 1, "validation": 1}
    assert facts["metadata"]["SPATIAL"] == {"training": 0.75, "validation": 0.5} and facts["metadata"]["ELEVATION"]["training"] == 1.0
    assert facts["metadata"]["uncertainty"]["training"] == 0.0
    assert facts["excluded"] == {"lost": 2} and facts["notes"] == ["a note"] and facts["groups"] == {"training": 4, "validation": 2}
    indices = json.loads((tmp_path / "dataset/class_indices.json").read_text())
    assert indices["genus"] == {"F|a": 0, "F|b": 1, "G|a,1": 2} == record.class_indices["genus"]
    table = list(csv.DictReader((tmp_path / "dataset/class_counts.csv").open()))
    assert [(row["lineage"], row["training"], row["validation"]) for row in table if row["rank"] == "genus"] == [
        ("F|a", "1", "1"),
        ("F|b", "1", "0"),
        ("G|a,1", "1", "0"),
    ]
    assert not list(tmp_path.glob("dataset/.tmp-*"))


def test_the_record_contains_draws_per_epoch_of_each_class(source, tmp_path):
    natural = process_and_save_dataset_metadata(source, tmp_path / "a")
    assert [drawn.tolist() for drawn in natural.drawn] == [[2, 2], [1, 1, 1]] == [n.tolist() for n in natural.counts["training"]]
    balanced = process_and_save_dataset_metadata(source, tmp_path / "b", draws=np.array([1.5, 0.5, 1.25, 0.75]))
    assert [drawn.tolist() for drawn in balanced.drawn] == [[2, 2], [1.5, 0.5, 0.75]]
    assert [drawn.tolist() for drawn in load_dataset_metadata(tmp_path / "b").drawn] == [[2, 2], [1.5, 0.5, 0.75]]
    assert balanced.facts["ranks"]["genus"]["drawn_per_class"] == {"smallest": 0.5, "median": 0.75, "largest": 1.5}


def test_the_record_is_read_back(source, tmp_path):
    saved = process_and_save_dataset_metadata(source, tmp_path)
    loaded = load_dataset_metadata(tmp_path)
    assert loaded.tree.fingerprint() == source.tree.fingerprint() and loaded.facts == json.loads(json.dumps(saved.facts))
    for split in ("training", "validation"):
        for a, b in zip(loaded.counts[split], saved.counts[split], strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_incomplete_record_is_an_error(source, tmp_path):
    with pytest.raises(ConfigError, match="does not contain a readable dataset record"):
        load_dataset_metadata(tmp_path)
    process_and_save_dataset_metadata(source, tmp_path)
    tree = json.loads((tmp_path / "taxonomy.json").read_text())
    tree["names"][0][0] = "other"
    (tmp_path / "taxonomy.json").write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="are from different records"):
        load_dataset_metadata(tmp_path)
