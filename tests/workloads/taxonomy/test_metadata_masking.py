"""Test metadata masking in training: rates, combinations and weights, keyed draws, configuration errors."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from linnaeus.config.schema_schedule import RampConfig
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.masking import MetadataMasking, masking_notes

NAMES = ("SPATIAL", "TEMPORAL", "ELEVATION")


def schedule(full=0.1, partial=0.2, whitelist=(), weights=()):
    ramps = {"meta_mask_prob": RampConfig(full, full, "0%", "100%"), "partial_meta_mask_prob": RampConfig(partial, partial, "0%", "100%")}
    return SimpleNamespace(**ramps, partial_mask_whitelist=list(whitelist), partial_mask_weights=list(weights))


def draw(config, full, partial, count=20000, step=4, components=NAMES, seed=2):
    masking = MetadataMasking(config, components, seed)
    positions = np.arange(count)
    return masking.draw(np.full(count, step), positions, np.full(count, full), np.full(count, partial))


def shares(mask):
    rows, counts = np.unique(mask, axis=0, return_counts=True)
    return {tuple(row.astype(int).tolist()): count / len(mask) for row, count in zip(rows, counts, strict=True)}


def test_rates_of_full_and_partial_masking():
    found = shares(draw(schedule(), 0.1, 0.3))
    assert abs(found[1, 1, 1] - 0.1) < 0.01
    assert abs(found[0, 0, 0] - 0.9 * 0.7) < 0.01
    proper = {k: v for k, v in found.items() if 0 < sum(k) < 3}
    assert len(proper) == 6 and all(abs(v - 0.9 * 0.3 / 6) < 0.008 for v in proper.values())
    assert draw(schedule(), 1.0, 0.0).all() and not draw(schedule(), 0.0, 0.0).any()


def test_whitelist_and_weights_of_combinations():
    config = schedule(whitelist=[["SPATIAL"], ["TEMPORAL", "ELEVATION"], ["ELEVATION"]], weights=[3.0, 1.0, 0.0])
    found = shares(draw(config, 0.0, 0.8))
    assert set(found) == {(0, 0, 0), (1, 0, 0), (0, 1, 1)}
    assert abs(found[1, 0, 0] - 0.6) < 0.015 and abs(found[0, 1, 1] - 0.2) < 0.015


def test_masks_depend_on_step_position_and_seed_only():
    masking = MetadataMasking(schedule(), NAMES, 2)
    steps, positions = np.repeat([3, 4], 32), np.tile(np.arange(32), 2)
    p = np.full(64, 0.4)
    whole = masking.draw(steps, positions, p, p)
    parts = [masking.draw(steps[i : i + 8], positions[i : i + 8], p[:8], p[:8]) for i in range(0, 64, 8)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(whole[:32], whole[32:])  # another step
    assert not np.array_equal(draw(schedule(), 0.4, 0.4, 64, seed=3), draw(schedule(), 0.4, 0.4, 64))  # another seed


def test_golden_masks():
    mask = draw(schedule(), 0.3, 0.5, 64, step=9, seed=11)
    assert hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:16] == "1f84abea1f86e597"


@pytest.mark.parametrize(
    "whitelist, weights, words",
    [
        ([["WEATHER"]], [], "partial_mask_whitelist: 'WEATHER'"),
        ([["SPATIAL", "SPATIAL"]], [], "partial_mask_whitelist"),
        ([[]], [], "partial_mask_whitelist"),
        ([["SPATIAL"]], [1.0, 2.0], "partial_mask_weights has 2 weights for the 1"),
        ([], [1.0], "partial_mask_weights"),
        ([["SPATIAL"]], [0.0], "partial_mask_weights"),
        ([["SPATIAL"], ["TEMPORAL"]], [2.0, -1.0], "partial_mask_weights"),
    ],
)
def test_errors_name_the_key(whitelist, weights, words):
    with pytest.raises(ConfigError, match=words) as error:
        MetadataMasking(schedule(whitelist=whitelist, weights=weights), NAMES, 0)
    assert "\n" not in str(error.value)


def test_masking_without_maskable_components_has_no_effect_and_a_note():
    single = draw(schedule(), 0.0, 1.0, 100, components=("TEMPORAL",))
    assert not single.any() and draw(schedule(), 0.0, 1.0, 100, components=()).shape == (100, 0)
    assert [note.split()[0] for note in masking_notes(schedule(), ())] == ["schedule.meta_mask_prob", "schedule.partial_meta_mask_prob"]
    assert [note.split()[0] for note in masking_notes(schedule(), ("TEMPORAL",))] == ["schedule.partial_meta_mask_prob"]
    assert masking_notes(schedule(whitelist=[["TEMPORAL"]]), ("TEMPORAL",)) == masking_notes(schedule(), NAMES) == ()
    assert masking_notes(schedule(full=0.0, partial=0.0), ()) == ()
