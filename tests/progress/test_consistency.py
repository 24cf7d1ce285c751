import logging
from types import SimpleNamespace

import pytest

from linnaeus.progress import TrainingConsistencyChecker, TrainingProgress


def config(length: str = "4epochs", last_batch: str = "keep") -> SimpleNamespace:
    return SimpleNamespace(
        trainer=SimpleNamespace(length=length, global_batch_size=8, micro_batch_size=4, limit_train_samples=None),
        data=SimpleNamespace(name="biota", last_batch=last_batch),
    )


def checker_of(actual: int, length: str = "4epochs", size: int = 800) -> TrainingConsistencyChecker:
    checker = TrainingConsistencyChecker(config(length), world_size=1, accumulation_steps=2)
    checker.initialize_with_first_epoch(actual, size)
    return checker


def test_no_warning_when_the_loader_is_as_planned(caplog: pytest.LogCaptureFixture) -> None:
    checker = checker_of(100)
    assert all(checker.validate_epoch_steps(epoch, 100) for epoch in range(4))
    assert caplog.records == [] and checker.drift(250) == 0.0


def test_a_short_loader_gives_one_warning_with_both_numbers(caplog: pytest.LogCaptureFixture) -> None:
    checker = checker_of(90)
    assert not any(checker.validate_epoch_steps(epoch, 90) for epoch in range(4))
    (record,) = caplog.records
    assert record.name == "linnaeus" and record.levelno == logging.WARNING
    text = record.getMessage()
    assert "90 updates" in text and "100 were planned" in text and "-10.0 %" in text and "behind" in text and "\n" not in text


def test_an_epoch_with_a_wrong_number_of_updates_gives_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    checker = checker_of(100)
    assert checker.validate_epoch_steps(0, 100) and not checker.validate_epoch_steps(1, 112) and not checker.validate_epoch_steps(2, 90)
    (record,) = caplog.records
    assert record.getMessage().startswith("epoch 2 has 112 updates but 100 were planned (+12.0 %): training runs ahead")


def test_the_last_epoch_may_be_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    checker = checker_of(100, "250steps")
    assert checker.validate_epoch_steps(1, 100) and checker.validate_epoch_steps(2, 50) and caplog.records == []
    short = checker_of(40, "40steps")
    assert short.validate_epoch_steps(0, 40) and short.drift(20) == 0.0 and caplog.records == []


def test_expected_fractions_are_the_fraction_points_of_progress() -> None:
    for length, size in [("4epochs", 800), ("3epochs", 24), ("7steps", 800), ("1steps", 8)]:
        checker = checker_of(1, length, size)
        total = checker.plan.total_steps
        progress = TrainingProgress(config(length))
        progress.set_length(total, checker.plan.steps_per_epoch)
        crossed: dict[float, int] = {}
        for _ in range(total):
            progress.update_step(8, False)
            crossed |= {f: progress.global_step for f in (0.25, 0.5, 0.75) if progress.is_fraction_point(f)}
        assert checker.calculate_expected_fractions() == crossed


def test_drift_is_progress_in_data_minus_progress_in_schedule() -> None:
    checker = checker_of(90)
    assert checker.drift(0) == 0.0
    assert checker.drift(180) == pytest.approx(2 / 4 - 180 / 400)  # two passes over the data at 45 % of the steps
    assert checker_of(110).drift(220) == pytest.approx(-0.05)
    corrected = checker_of(100)
    corrected.validate_epoch_steps(0, 90)
    assert corrected.drift(180) == pytest.approx(0.05)


def test_initialize_with_first_epoch_must_be_called_first() -> None:
    with pytest.raises(AssertionError, match="initialize_with_first_epoch"):
        TrainingConsistencyChecker(config(), 1, 1).validate_epoch_steps(0, 100)
