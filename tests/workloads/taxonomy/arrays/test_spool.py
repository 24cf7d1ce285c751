"""Large arrays are in temporary files: the memory of `linnaeus prepare` hardly depends on the number of records."""

import io
import tempfile
import tracemalloc

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.arrays import spool, text_arrays, text_lines
from linnaeus.workloads.taxonomy.arrays.spool import Spool, spooled
from linnaeus.workloads.taxonomy.images import image_files
from linnaeus.workloads.taxonomy.manifest import source_options
from linnaeus.workloads.taxonomy.manifest.tables import column
from linnaeus.workloads.taxonomy.store import prepare_store as preparation
from linnaeus.workloads.taxonomy.store.store_layout import part_path
from linnaeus.workloads.taxonomy.tree import lineages
from tests import runs

SMALL = 1000


@pytest.fixture
def small(monkeypatch):
    """Blocks of 1,000 rows or bytes are in memory."""
    for module, name in ((spool, "IN_MEMORY"), (spool, "BLOCK"), (lineages, "BLOCK"), (text_arrays, "BLOCK"), (column, "FEW")):
        monkeypatch.setattr(module, name, SMALL)
    monkeypatch.setattr(text_lines, "BLOCK", SMALL)
    monkeypatch.setattr(text_lines, "SEARCHED", 64 * SMALL)


@pytest.mark.parametrize("count", [0, 1, 90, 125, 126, 5000])
def test_the_array_is_what_was_written(small, count):
    values, whole = np.arange(count), Spool()
    for first in range(0, count, 70):
        whole.write(values[first : first + 70].tobytes())
    assert whole.array(np.int64).tolist() == spooled(values).tolist() == values.tolist()
    before = whole.array(np.int64)
    whole.write(values.tobytes())
    assert before.tolist() == values.tolist() and whole.array(np.int64).tolist() == [*values.tolist(), *values.tolist()]
    matrix = np.asfortranarray(values.reshape(-1, 5)) if count % 5 == 0 else values[:, None]
    assert spooled(matrix).tolist() == matrix.tolist() and spooled(matrix).dtype == np.int64


def test_a_temporary_file_that_cannot_be_written_is_one_line(small, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(ConfigError, match=r"TMPDIR: .* No space left on device.*set it to a folder"):
        spooled(np.zeros(2 * SMALL))


def without_photographs(writer, parts, processes):
    """Write parts as if each photograph had 7 bytes."""
    (writer.store / "parts").mkdir(exist_ok=True)
    for part in parts:
        count, content = len(writer.rows(part)), io.BytesIO()
        part_path(writer.store, part).write_bytes(bytes(7 * count))
        sizes, hashes, shapes = np.full(count, 7, np.int64), np.zeros(count, np.uint64), np.zeros((count, 2), np.int32)
        np.savez(content, sizes=sizes, hashes=hashes, shapes=shapes, reasons=[""] * count, originals=np.zeros((count, 16), np.uint8))
        part_path(writer.store, part).with_suffix(".npz").write_bytes(content.getvalue())
        yield count


def test_a_further_record_of_a_manifest_takes_less_than_a_hundred_bytes(small, tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "sizes_in_threads", lambda names, *more: np.full(len(names), 1000, np.int64))
    monkeypatch.setattr(preparation, "write_parts", without_photographs)
    monkeypatch.setattr(source_options, "compose", runs.composed)
    peaks = []
    for count in (3_000, 4_000, 24_000):  # the first also imports modules
        rows = (f"{i:08d}.jpg,genus {i % 5},species {i % 20},{i / 1000 - 30},{i / 200},2020-06-{i % 28 + 1:02d}\n" for i in range(count))
        (tmp_path / "rows.csv").write_text("path,genus,species,latitude,longitude,date\n" + "".join(rows))
        tracemalloc.start()
        try:
            assert preparation.main(["manifest", str(tmp_path / f"{count}"), f"data.path={tmp_path / 'rows.csv'}", "--processes=1"]) == 0
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] - peaks[1] < 100 * 20_000
