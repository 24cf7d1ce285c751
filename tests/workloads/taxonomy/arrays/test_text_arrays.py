"""Long arrays of strings in the orders of real file names: numpy's default sort ends the process with a segmentation fault for some."""

import sys
from types import SimpleNamespace

import numpy as np

from linnaeus.workloads.taxonomy.arrays.text_arrays import positions, strings, unique_strings
from linnaeus.workloads.taxonomy.images.quarantine import Quarantine
from tests import fork_server, runs

# The names of 300,000 files in ascending order, sorted where the program sorts names of photographs.
LARGE = """
import numpy as np
from linnaeus.workloads.taxonomy.manifest.clean_records import _outside_note
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.manifest.labels.row_labels import _most_frequent
from linnaeus.workloads.taxonomy.manifest.splitting.split import find_groups
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.arrays.text_arrays import strings

names = strings([f"photos/{i // 1000}/{i}.jpg" for i in range(300_000)])
assert sorted(find_groups(None, names).number.tolist()) == list(range(300_000))
assert find_groups(Column(np.arange(300_000), names.tolist()), names).number.max() == 299_999
assert _outside_note(FolderFiles("photos", names)) == []
assert "299997 more" in _most_frequent(names)
"""


def test_names_of_many_photographs_are_sorted():
    done = fork_server.run([sys.executable, "-c", LARGE], cwd=runs.ROOT)
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-2000:]}"


def test_strings_are_indexed_by_rows():
    """numpy before 2.2 raises a MemoryError for an index of another type than int64, and strings of more than 15 bytes."""
    names = [f"photographs/{i}.jpg" for i in range(10, 100)]
    assert strings(names)[np.arange(89, -1, -1, dtype=np.int32)].tolist() == names[::-1]


def test_unique_strings_and_positions():
    values = strings(["b", "a", "c" * 50, "b", ""])
    distinct, number = unique_strings(values)
    assert distinct.tolist() == ["", "a", "b", "c" * 50] and distinct[number].tolist() == values.tolist()
    assert positions(values, {"b", "d"}) == [0, 3] and positions(values, set()) == []


def test_the_quarantine_finds_its_photographs_among_many(tmp_path):
    source = SimpleNamespace(ids=strings([f"{i}.jpg" for i in range(1000)]), unreadable=())
    (tmp_path / "quarantine.jsonl").write_text('{"id": "7.jpg", "reason": "x"}\n{"id": "999.jpg", "reason": "x"}\n')
    assert Quarantine(tmp_path, source, 0.5).samples == [7, 999]
    np.testing.assert_array_equal(Quarantine(tmp_path, source, 0.5).samples, [7, 999])
