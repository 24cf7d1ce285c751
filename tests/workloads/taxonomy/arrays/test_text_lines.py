"""Lines of a file are read by number, with the texts that were written, and no Python object per line is kept."""

import sys

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.files import to_utf8
from linnaeus.workloads.taxonomy.arrays import text_arrays, text_lines
from linnaeus.workloads.taxonomy.arrays.text_arrays import digests, joined, positions, strings
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import NULLS, is_null, null_values
from linnaeus.workloads.taxonomy.store.store_layout import read_lines, write_lines

ODD = ["", "a", "é.jpg", "back\\slash", "line\nbreak", "\\n", "\r\n", "日本", "end\\", "\udcff", "NA", "\\N", "\u212ana", "0"]


@pytest.fixture
def lines(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "BLOCK", 3)
    monkeypatch.setattr(text_lines, "SEARCHED", 7)

    def written(texts):
        write_lines(tmp_path / "texts.txt", texts)
        return read_lines(tmp_path / "texts.txt")

    return written


@pytest.mark.parametrize("texts", [[], ["only"], ["a", "b", "c"], ODD, [f"{i}.jpg" for i in range(10)]])
def test_texts_come_back(lines, texts):
    found = lines(texts)
    assert found.tolist() == list(found) == [found[i] for i in range(len(found))] == texts
    rows = np.arange(len(texts))[::-2]
    assert found[rows].tolist() == [texts[i] for i in rows] and found[1:3].tolist() == texts[1:3]


@pytest.mark.parametrize("texts", [[], ["only"], ["a", "b", "c", "d"], ODD, [f"{i}.jpg" for i in range(10)]])
def test_texts_are_hashed_as_one_text(lines, texts):
    found = lines(texts)
    rows = np.arange(len(texts))[::-2]
    assert b"".join(joined(found)) == to_utf8("\0".join(texts))
    assert b"".join(joined(found[rows])) == to_utf8("\0".join(texts[i] for i in rows))


def test_arrays_of_texts_are_hashed_as_one_text(monkeypatch):
    monkeypatch.setattr(text_arrays, "BLOCK", 3)
    texts = [f"é{i}" for i in range(7)]
    assert b"".join(joined(strings(texts))) == to_utf8("\0".join(texts)) and b"".join(joined(strings([]))) == b""


def test_null_texts_are_found(lines):
    texts = [*ODD, *NULLS, *(word.upper() for word in NULLS), "nation", "-1"]
    assert null_values(lines(texts)).tolist() == null_values(texts).tolist() == [is_null(text) for text in texts]


def test_positions_and_digests_of_lines(lines):
    assert positions(lines(ODD), {"日本", "0", "none"}) == [7, 13]
    assert digests(lines(ODD)).tolist() == digests(ODD).tolist() and len(set(digests(ODD).tolist())) == len(ODD)


def test_a_missing_file_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(ConfigError, match="prepare the store again"):
        read_lines(tmp_path / "texts.txt")


def test_no_python_object_is_kept_per_line(tmp_path):
    write_lines(tmp_path / "texts.txt", [f"{i}.jpg" for i in range(20_000)])
    before = sys.getallocatedblocks()
    found = read_lines(tmp_path / "texts.txt")
    assert sum(len(text) for text in found) > 0 and sys.getallocatedblocks() - before < 1000
