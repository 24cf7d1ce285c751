"""Shuffled labels and other label frequencies in validation are named; labels without these problems raise no alarm."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from linnaeus.health import HealthMonitor, ValidationNumbers, label_statistics
from linnaeus.health.alarm import KINDS
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.reporting.report.run_report import report_page
from linnaeus.workloads.language.token_array import COUNTED, TokensInMemory, token_counts
from linnaeus.workloads.taxonomy import workload
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Source
from tests import runs

SETTINGS = [
    "data.train_samples=400",
    "data.validation_samples=120",
    "trainer.length=120steps",
    "data.image_size=8",
    "schedule.validate=[50%]",
]
SETTINGS += ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]", "trainer.micro_batch_size=null"]
SETTINGS += ["data.validation_batch=null", "schedule.report=[]"]


def shuffled(source: Source) -> None:
    """Permute the labels of the training rows among them."""
    rows = np.flatnonzero(source.split == TRAIN)
    source.labels[rows] = source.labels[np.random.default_rng(0).permutation(rows)]


def shifted(source: Source) -> None:
    """Leave only the later half of the orders in validation; the others are trained on."""
    source.split[(source.split == VALIDATION) & (source.labels[:, 0] < source.tree.sizes[0] // 2)] = TRAIN


@pytest.mark.slow  # the conditions are tested below
@pytest.mark.parametrize("change, expected", [(None, []), (shuffled, [("shuffled_labels", 60)]), (shifted, [("label_shift", 60)])])
def test_a_run_with_planted_labels(change, expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = workload.build_data_source

    def planted(*args, **options):
        source, ceilings = original(*args, **options)
        if change is not None:
            change(source)
        return source, ceilings

    monkeypatch.setattr(workload, "build_data_source", planted)
    run = runs.run("biota", tmp_path, *SETTINGS)
    alarms = runs.alarms(run)
    assert [(alarm.kind, alarm.step) for alarm in alarms] == expected
    report = report_page(RunFiles(run), [])
    assert all(alarm.text in report for alarm in alarms)


# -- conditions ----------------------------------------------------------------------------------------------------------------


def monitor_of(counts: dict) -> HealthMonitor:
    return HealthMonitor(list(counts), labels=label_statistics({name: tuple(map(np.array, both)) for name, both in counts.items()}))


def kinds(counts: dict, losses: dict, top1: dict, fraction: float = 0.5) -> list[str]:
    monitor = monitor_of({name: counts.get(name, ([], [])) for name in losses})
    results = ValidationNumbers(10, fraction, None, losses, top1)
    found = [alarm.kind for alarm in monitor.observe_validation(results)]
    assert monitor.observe_validation(results) == [] or fraction < 0.5  # once
    return found


EVEN = {"a": ([500, 500], [100, 100])}
LOSS = math.log(2)


@pytest.mark.parametrize(
    "losses, top1, fraction, expected",
    [
        ({"a": LOSS}, {"a": 0.5}, 0.5, ["shuffled_labels"]),
        ({"a": 3 * LOSS}, {}, 0.5, ["shuffled_labels"]),
        ({"a": LOSS}, {"a": 0.5}, 0.4, []),  # too early
        ({"a": 20 * LOSS}, {"a": 0.5}, 0.5, []),  # ruined by another cause, such as the learning rate
        ({"a": 0.9 * LOSS}, {"a": 0.5}, 0.5, []),
        ({"a": 3 * LOSS}, {"a": 0.6}, 1.0, []),  # too confident, but often right
        ({"a": math.nan}, {"a": 0.5}, 0.5, []),
        ({"a": LOSS, "b": 9.0}, {"a": 0.5}, 0.5, []),  # the labels of one task are unknown
    ],
)
def test_results_of_the_label_frequencies(losses: dict, top1: dict, fraction: float, expected: list) -> None:
    assert kinds(EVEN, losses, top1, fraction) == expected


def test_a_single_class_has_nothing_to_learn() -> None:
    one = {"a": ([500], [100])}
    assert kinds(one, {"a": 0.0}, {"a": 1.0}) == []
    assert kinds({**EVEN, "b": one["a"]}, {"a": LOSS, "b": 0.0}, {"a": 0.5, "b": 1.0}) == ["shuffled_labels"]


def test_two_successive_early_validations_without_skill_are_needed() -> None:
    results = [
        ValidationNumbers(step, step / 100, None, {"a": loss * LOSS}) for step, loss in ((10, 1), (20, 1), (25, 0.8), (30, 1), (40, 1))
    ]
    whole, first, second = (monitor_of(EVEN) for _ in range(3))
    found = [[alarm.kind for alarm in whole.observe_validation(one)] for one in results]
    assert found == [[], [], [], [], ["shuffled_labels"]]
    for one in results[:4]:
        first.observe_validation(one)
    second.load_state_dict(first.state_dict())
    assert [alarm.step for alarm in second.observe_validation(results[4])] == [40]


def test_one_task_that_has_learned_something_is_enough() -> None:
    counts = {name: EVEN["a"] for name in ("a", "b")}
    assert kinds(counts, {"a": LOSS, "b": 0.5}, {}) == [] and kinds(counts, {"a": LOSS, "b": LOSS}, {}) == ["shuffled_labels"]


@pytest.mark.parametrize(
    "training, validation, expected",
    [
        ([500, 500], [150, 50], ["label_shift"]),
        ([500, 500], [110, 90], []),
        ([900, 100, 10], [10, 10, 10], ["label_shift"]),  # a balanced validation set
        ([500, 500], [5, 1], []),  # too few to tell
        ([5, 0], [0, 0], []),
    ],
)
def test_label_frequencies(training: list, validation: list, expected: list) -> None:
    assert kinds({"a": (training, validation)}, {"a": 0.1}, {}) == expected


def test_random_splits_of_the_same_labels_raise_no_alarm() -> None:
    draws = np.random.default_rng(0)
    for classes, size in ((2, 60), (5, 200), (100, 300), (1000, 5000), (10_000, 20_000)):
        share = 1 / np.arange(1, classes + 1)
        for _ in range(20):
            both = (draws.multinomial(5 * size, share / share.sum()), draws.multinomial(size, share / share.sum()))
            assert kinds({"a": both}, {"a": 0.1}, {}) == [], (classes, size)


def test_counts_of_a_long_text_are_of_all_its_parts() -> None:
    tokens = np.repeat(np.arange(4, dtype=np.uint16), COUNTED)
    counts = token_counts(TokensInMemory(tokens), 5)
    assert counts.sum() <= COUNTED and counts[4] == 0 and all(0.24 < share < 0.26 for share in counts[:4] / counts.sum())
    assert token_counts(TokensInMemory(np.array([1, 1, 2])), 4).tolist() == [0, 2, 1, 0]


def test_the_advice_of_an_alarm_names_no_key_that_only_some_workloads_have() -> None:
    assert not [text for text in KINDS.values() if re.search(r"\b(data|model|head|loss|augment)\.", text)]
