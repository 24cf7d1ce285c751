"""A replaced photograph of the same size changes the fingerprint, and copies across the split are named, within stated limits."""

import numpy as np
import pytest
from PIL import Image

from linnaeus.workloads.taxonomy.images import contents
from linnaeus.workloads.taxonomy.images.contents import NOT_READ, content_hashes
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.manifest import build_source


@pytest.fixture
def folder(write_manifest):
    """Return a folder with ten different photographs of equal size in bytes and a manifest."""
    rows = [{"path": f"{i}.bmp", "species": f"S{i % 2}", "split": "val" if i > 5 else "train"} for i in range(10)]
    path = write_manifest(rows)
    for i in range(10):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(path.parent / f"{i}.bmp")
    return path.parent


@pytest.fixture
def build(folder, manifest_config):
    manifest = next(folder.glob("*.csv"))
    return lambda: build_source(manifest_config(manifest, split_column="split"))


def test_a_replaced_photograph_of_the_same_size_changes_the_fingerprint(folder, build):
    before = build().fingerprint
    assert build().fingerprint == before
    size = (folder / "3.bmp").stat().st_size
    Image.new("RGB", (8, 8), (0, 200, 0)).save(folder / "3.bmp")
    assert (folder / "3.bmp").stat().st_size == size
    assert build().fingerprint != before


def test_photographs_with_identical_bytes_on_both_sides_are_named(folder, build):
    assert not any("same bytes" in note for note in build().notes)
    (folder / "7.bmp").write_bytes((folder / "2.bmp").read_bytes())
    (folder / "8.bmp").write_bytes((folder / "2.bmp").read_bytes())
    (note,) = [note for note in build().notes if "same bytes" in note]
    assert note.startswith("2 of 4 validation photographs with the same bytes as a training photograph (7.bmp and 2.bmp)")


def test_beyond_the_limits_equal_sizes_are_read_together_and_the_rest_is_counted(folder, monkeypatch):
    for i in range(10):
        (folder / f"{i}.bmp").write_bytes(bytes([i]) * (1000 + i // 2))
    names = np.array([f"{i}.bmp" for i in range(10)])
    sizes = np.array([1000 + i // 2 for i in range(10)])
    monkeypatch.setattr(contents, "MOST_BYTES", 4100)
    read = content_hashes(FolderFiles(folder, names), sizes) != NOT_READ
    assert read.sum() == 4 and np.array_equal(read[::2], read[1::2])
    monkeypatch.setattr(contents, "MOST_FILES", 2)
    assert (content_hashes(FolderFiles(folder, names), sizes) != NOT_READ).sum() == 2
    note = contents.content_notes(names, np.where(read, 1, NOT_READ).astype(np.uint64), np.zeros(10, dtype=np.int8))[-1]
    assert note.startswith("photographs not read at the start: 6 of 10")
