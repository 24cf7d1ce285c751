"""Test masking in training: rates, combinations and weights of metadata; null labels, never counted in accuracies; keyed draws."""

import hashlib
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from linnaeus.config import compose
from linnaeus.config.schema_schedule import RampConfig
from linnaeus.data.samples import SampleIndex
from linnaeus.errors import ConfigError
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.workloads import build_workload
from linnaeus.workloads.taxonomy.inputs.masking import DEFAULT, MetadataMasking, NullPolicy, masking_notes, never_absent
from linnaeus.workloads.taxonomy.losses import LabelCounts
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests import runs

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
        ([["SPATIAL"], ["SPATIAL", "TEMPORAL"], ["TEMPORAL", "SPATIAL"]], [], "partial_mask_whitelist\\[2\\] is listed twice"),
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
    (note,) = masking_notes(schedule(partial=0.0, whitelist=[["TEMPORAL"]]), NAMES)
    assert note == "schedule.partial_mask_whitelist has no effect: schedule.partial_meta_mask_prob is 0"


@pytest.mark.parametrize("components", [(), ("SPATIAL",)])
def test_a_default_without_effect_has_neither_a_note_nor_a_curve(components, tmp_path):
    config = runs.configuration("biota", tmp_path, f"data.components=[{','.join(components)}]")
    assert config.schedule.meta_mask_prob == config.schedule.partial_meta_mask_prob == DEFAULT
    assert masking_notes(config.schedule, components) == ()
    workload = build_workload(config)
    assert "partial_meta_mask_prob" not in workload.schedule_probabilities
    assert ("meta_mask_prob" in workload.schedule_probabilities) == bool(components)


# -- null labels -------------------------------------------------------------------------------------------------------------------

RAMP = ["schedule.null_mask_prob.start=0.75", "schedule.null_mask_prob.end=0.25", "schedule.null_mask_prob.until=100steps"]
PHASE_IN = ["head.nulls=phase_in", *RAMP]
SMALL = ["data.train_samples=4000", "data.validation_samples=60", "data.image_size=16", "trainer.length=100steps"]


def workload(tmp_path, *overrides):
    config = compose([*SMALL, *overrides])
    built = build_workload(config)
    built.build_datasets(OpsSchedule(resolve_all_schedule_params(config, 100, 10, built.components)), tmp_path)
    return built


def labels(built, step):
    """Return the labels of the training set as they are at an update, without its images, which take a second."""
    blank = lambda index, observations, transforms: ({}, np.full(len(observations), -1))
    with mock.patch.object(built.train_set, "_images", blank):
        return built.train_set.__getitems__([SampleIndex(0, i, i, step) for i in range(4000)])["label"].numpy()


def test_null_labels_are_ignored_phased_in_or_always_learnt(tmp_path):
    ignoring, phasing = workload(tmp_path), workload(tmp_path, *PHASE_IN)
    sizes = np.array(phasing.data_source.tree.sizes)
    plain = labels(ignoring, 0)
    nulls = plain < 0
    assert nulls.sum() > 20
    shares = []
    for step in (0, 50, 100):
        found = labels(phasing, step)
        assert (found[~nulls] == plain[~nulls]).all()
        assert ((found == sizes) | (found == -1))[nulls].all()
        shares.append(float((found == sizes)[nulls].mean()))
    assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.08)  # three standard errors of some 320 nulls
    always = workload(tmp_path, "head.nulls=predict")
    assert all((labels(always, step) == np.where(nulls, sizes, plain)).all() for step in (0, 50))
    found = always.train_set.__getitems__([SampleIndex(0, 0, 0, 0), SampleIndex(0, 1, 1, 0, real=False)])["label"]
    assert (found[0] >= 0).all() and (found[1] == -1).all(), "a placeholder keeps no labels"


@pytest.mark.parametrize("head", ["linear", "conditional", "hierarchical_softmax", "marginal"])
def test_the_head_has_a_null_class_that_is_never_predicted(tmp_path, head):
    built = workload(tmp_path, *PHASE_IN, f"head={head}", "data.train_samples=200")
    sizes = built.data_source.tree.sizes
    batch = built.prepare(built.validation_set.__getitems__([SampleIndex(0, i, i, 0) for i in range(60)]))
    assert (batch["label"] < torch.tensor(sizes)).all() and (batch["label"] < 0).any(), "validation labels are not converted"
    scores = built.build_model()(batch)["scores"]
    assert [log_p.shape[1] for log_p in scores.log_probs()] == [size + 1 for size in sizes]
    assert all((path < size).all() for path, size in zip(scores.path().unbind(1), sizes, strict=True))


@pytest.mark.parametrize(
    "overrides, message",
    [
        (RAMP, "schedule.null_mask_prob has no effect with head.nulls=ignore; set head.nulls=phase_in"),
        (["head.nulls=predict", *RAMP], "schedule.null_mask_prob has no effect with head.nulls=predict; set head.nulls=phase_in"),
        (PHASE_IN[:1], "needs schedule.null_mask_prob below 1"),
    ],
)
def test_contradicting_settings_are_errors(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        workload(tmp_path, "data.train_samples=40", *overrides)
    assert "\n" not in str(error.value)


def test_no_learnable_null_labels_is_an_error():
    """A null label of a hole in a lineage is learnable for a linear head, and not for a head on the tree."""
    tree, found = TaxonomyTree.from_lineages(("order", "family", "species"), np.array([("o", "", "s1"), ("o", "f", "s2")]))

    def notes(head):
        policy = NullPolicy.from_config(compose([f"head={head}", "head.nulls=predict"]), tree)
        counts = LabelCounts.from_labels(tree, found, learnable=policy.learnable(found))
        return policy.notes(tree.ranks, [int(rank[-1]) for rank in counts.ranks])

    assert notes("linear") == ("head.nulls=predict: no training sample has a learnable null label at order, species",)
    with pytest.raises(ConfigError, match="below a taxon that has children, so there is nothing to learn"):
        notes("conditional")


NOTHING_MASKED = [f"schedule.{name}meta_mask_prob.{end}=0" for name in ("", "partial_") for end in ("start", "end")]


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ([], False),
        (["schedule.meta_mask_prob.start=0", "schedule.meta_mask_prob.end=0"], False),  # some combinations are masked
        (NOTHING_MASKED, True),
        ([*NOTHING_MASKED, "model=timm"], True),
        ([*NOTHING_MASKED, "model=timm", "model.fusion=separate"], False),
    ],
)
def test_a_run_that_never_sees_a_sample_without_metadata_is_warned_about(words: list[str], warned: bool) -> None:
    config = compose(words)
    present = np.array([[True, True, False], [True, False, False]])
    found = never_absent(config, ("SPATIAL", "TEMPORAL", "ELEVATION"), present)
    assert len(found) == warned
    if warned:
        assert "every training row has SPATIAL, and" in found[0] and ("fusion" in found[0]) == ("model=timm" in words)
    assert not never_absent(config, ("SPATIAL", "TEMPORAL"), present[1:, 1:]) and not never_absent(config, (), present[:, :0])


def test_one_component_has_no_combination_to_mask() -> None:
    config = compose(["schedule.meta_mask_prob.start=0", "schedule.meta_mask_prob.end=0"])
    assert never_absent(config, ("TEMPORAL",), np.ones((3, 1), bool))
    assert not never_absent(config, ("TEMPORAL",), np.array([[True], [False]]))


def test_the_training_rows_of_a_run_are_looked_at(caplog) -> None:
    """Also that the warning is logged. The stand-in names the rows that it got."""
    seen = lambda config, components, present: (f"{len(present)} rows, {', '.join(components)}",)
    config = compose(["data.train_samples=60", "data.validation_samples=20"])
    with mock.patch("linnaeus.workloads.taxonomy.workload.never_absent", seen):
        workload = build_workload(config)
    stopped = mock.patch("linnaeus.workloads.taxonomy.workload.Quarantine", side_effect=StopIteration)
    with caplog.at_level("WARNING"), stopped, pytest.raises(StopIteration):
        workload.build_datasets(None, None)
    assert f"{workload.train_size} rows, SPATIAL, TEMPORAL, ELEVATION" in caplog.text
