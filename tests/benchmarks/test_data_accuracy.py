"""The plugin that makes pixels by Pillow, and the table of accuracies."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.data_accuracy import FAST, PILLOW, table
from tests import fork_server

ROOT = Path(__file__).resolve().parents[2]
COMPARE = """
import numpy as np
from linnaeus.workloads.taxonomy.augment import geometry
photograph = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
boxes = geometry.central_squares(geometry.sizes_of([photograph]), 1.0)
ours = geometry.resample([photograph], boxes, 32).astype(int)
import benchmarks.pillow_pixels
difference = abs(geometry.resample([photograph], boxes, 32) - ours)
from linnaeus.workloads.taxonomy.images import decoding
assert decoding.resize is geometry.resize is benchmarks.pillow_pixels.resize and decoding.decode_jpeg(b"", (1, 1), 1) is None
print(difference.max(), difference.any())
"""


def test_the_plugin_replaces_the_pixels_by_pillows_which_differ_by_one_level():
    done = fork_server.run([sys.executable, "-c", COMPARE], cwd=ROOT)
    assert done.stdout.split() == ["1", "True"], done.stderr


def test_the_table_compares_by_seed_and_the_bar_is_on_the_same_weights():
    accuracies = [{"species/top1": value} for value in (0.5, 0.7)]
    results = {PILLOW: accuracies, FAST: [{"species/top1": value} for value in (0.51, 0.71)]}
    again = {FAST: results[FAST], PILLOW: [{"species/top1": value} for value in (0.515, 0.715)]}
    lines, loss = table(results, again, ["species"])
    assert lines[3] == "| fast path | 61.00 | +1.00 (+1.00 to +1.00) |"
    assert round(loss, 3) == 0.5
