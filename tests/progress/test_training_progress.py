import json
import random
from types import SimpleNamespace

import pytest

from linnaeus.progress import TrainingProgress, TrainingStage

NORMAL, MASK, PARTIAL = TrainingStage.VALIDATION_NORMAL, TrainingStage.VALIDATION_MASK_META, TrainingStage.VALIDATION_PARTIAL_MASK_META


def config(length: str) -> SimpleNamespace:
    return SimpleNamespace(trainer=SimpleNamespace(length=length))


def progress_of(total: int, per_epoch: int = 10) -> TrainingProgress:
    progress = TrainingProgress(config("10epochs"), world_size=1, accumulation_steps=1)
    progress.set_length(total, per_epoch)
    return progress


def test_a_window_is_one_step_with_its_number_of_samples() -> None:
    progress = TrainingProgress(config("10epochs"), world_size=2, accumulation_steps=3)
    progress.update_window(24, 3, 240)
    progress.update_window(5, 3, 41)  # a partial last batch
    assert (progress.step, progress.global_step, progress.samples_seen, progress.units_seen) == (6, 2, 29, 281)


def test_progress_fraction_and_its_fallbacks() -> None:
    progress = progress_of(200)
    progress.global_step = 50
    assert progress.get_progress_fraction() == 0.25
    progress.global_step = 300
    assert progress.get_progress_fraction() == 1.0
    by_epochs = TrainingProgress(config("4epochs"))
    by_epochs.start_epoch(3)
    assert by_epochs.expected_total_steps == 0 and by_epochs.get_progress_fraction() == 0.75
    assert TrainingProgress(config("400steps")).expected_total_steps == 400
    assert TrainingProgress().get_progress_fraction() == 0.0


def test_a_run_of_unknown_length_has_no_fraction_points() -> None:
    progress = TrainingProgress(config("4epochs"))
    for _ in range(3):
        progress.update_step(1, False)
        assert not any(progress.is_fraction_point(fraction) for fraction in (0.0, 0.25, 0.5, 1.0))


def test_epochs_as_a_person_counts_them() -> None:
    progress = progress_of(25, 10)
    assert (progress.epoch, progress.total_epochs, TrainingProgress(config("4epochs")).total_epochs) == (1, 3, 4)
    for epoch in (1, 2, 3):
        progress.start_epoch()  # the epoch of the next update
        assert progress.epoch == epoch
        for _ in range(10):
            progress.update_step(1, False)


@pytest.mark.parametrize("total", [1, 2, 3, 7, 9, 10, 99, 100, 1000])
@pytest.mark.parametrize("fraction", [0.01, 0.07, 0.1, 0.25, 1 / 3, 0.5, 2 / 3, 0.75, 0.9, 1.0])
def test_a_fraction_point_is_the_one_step_that_crosses_it(total: int, fraction: float) -> None:
    progress, hits = progress_of(total), []
    assert not progress.is_fraction_point(0.0) and not progress.is_fraction_point(fraction), "before the first step"
    for _ in range(total):
        before = progress.get_progress_fraction()
        progress.update_step(1, False)
        answers = {progress.is_fraction_point(fraction) for _ in range(3)}  # the same for any number of callers
        assert answers == {before + 1e-9 < fraction <= progress.get_progress_fraction() + 1e-9}
        hits += [progress.global_step] * answers.pop()
    assert len(hits) == 1


def test_position_in_epoch_is_a_function_of_global_step() -> None:
    progress = progress_of(25, 10)
    seen = []
    while progress.global_step < 25:
        progress.start_training_epoch(progress.next_epoch)
        assert progress.position_in_epoch == 0
        for _ in range(min(10, 25 - progress.global_step)):
            progress.update_step(1, False)
            seen.append((progress.current_epoch, progress.position_in_epoch))
        progress.end_epoch()
    assert seen == [(e, p) for e in range(3) for p in range(1, 11)][:25]


def test_a_resume_in_the_middle_of_an_epoch() -> None:
    progress = progress_of(30, 10)
    progress.load_state_dict({**progress.state_dict(), "global_step": 17, "current_epoch": 1})
    assert progress.next_epoch == 1
    progress.start_training_epoch(progress.next_epoch)
    assert progress.position_in_epoch == 7
    with pytest.raises(AssertionError, match="epoch 0 is over"):
        progress.start_training_epoch(0)


def test_pending_validations_survive_a_kill_at_any_point() -> None:
    progress = progress_of(30)
    progress.global_step = 5
    passes = [(NORMAL, None), (MASK, None), (PARTIAL, 2), (PARTIAL, 0)]
    for stage, index in passes:
        progress.schedule_validation(stage, index)
    done = []
    while progress.has_pending_validations():
        saved = json.loads(json.dumps(progress.state_dict()))
        progress.start_validation(*progress.pending_validations[0])  # killed here: the pass is pending after the resume
        progress = progress_of(30)
        progress.load_state_dict(saved)
        assert progress.state_dict() == saved
        stage, index = progress.pending_validations[0]
        progress.start_validation(stage, index)
        assert progress.current_stage is stage
        progress.complete_validation(stage, index)
        assert progress.current_stage is (stage if progress.has_pending_validations() else TrainingStage.TRAINING)
        done.append((stage, index))
        assert progress.partial_validation_indices == [index for _, index in passes[len(done) :] if index is not None]
    assert done == progress.completed_validations == passes


def test_a_pass_is_scheduled_once_per_step() -> None:
    progress = progress_of(30)
    progress.global_step = 5
    for _ in range(2):
        progress.schedule_validation(NORMAL)
    assert progress.pending_validations == [(NORMAL, None)]
    progress.complete_validation(NORMAL)  # a second call has no effect
    progress.complete_validation(NORMAL)
    progress.schedule_validation(NORMAL)  # completed at this step
    assert not progress.has_pending_validations()
    progress.global_step = 6
    progress.schedule_validation(NORMAL)
    assert progress.pending_validations == [(NORMAL, None)] and progress.completed_validations == []


def test_invalid_calls_are_refused() -> None:
    progress = progress_of(30)
    for wrong in (
        lambda: progress.start_validation(NORMAL),
        lambda: progress.complete_validation(NORMAL),
        lambda: progress.schedule_validation(TrainingStage.TRAINING),
        lambda: progress.schedule_validation(PARTIAL),
        lambda: progress.schedule_validation(NORMAL, 0),
    ):
        with pytest.raises(AssertionError):
            wrong()
    progress.schedule_validation(NORMAL)
    with pytest.raises(AssertionError, match="has pending validations"):
        progress.start_training_epoch(0)
    progress.global_step = 1
    with pytest.raises(AssertionError, match="has pending validations"):
        progress.schedule_validation(MASK)


def test_state_holds_plain_values_and_a_longer_run_keeps_its_length() -> None:
    progress = progress_of(30)
    progress.update_window(4, 1, 11)
    state = progress.state_dict()
    assert json.loads(json.dumps(state)) == state
    longer = progress_of(60)
    longer.load_state_dict(state)
    assert longer.expected_total_steps == 60 and longer.global_step == 1 and longer.units_seen == 11
    del state["units_seen"]  # as in older checkpoints
    longer.load_state_dict(state)
    assert longer.units_seen == 0
    unknown = TrainingProgress()
    unknown.load_state_dict(state)
    assert unknown.expected_total_steps == 30


def test_any_split_into_windows_counts_the_same_updates() -> None:
    draw = random.Random(0)
    for _ in range(20):
        windows = [draw.randint(1, 5) for _ in range(10)]
        progress = TrainingProgress(None, world_size=draw.randint(1, 4), accumulation_steps=1)
        for n in windows:
            for m in range(n):
                assert progress.update_step(1, m + 1 < n) == (m + 1 == n)
        assert progress.global_step == 10 and progress.step == sum(windows)
        assert progress.samples_seen == sum(windows) * progress.world_size


def test_the_stage_returns_to_training_once_no_pass_is_pending() -> None:
    progress = progress_of(20)
    for stage in (NORMAL, MASK):
        progress.schedule_validation(validation_type=stage)
    progress.start_validation(validation_type=NORMAL)
    progress.complete_validation(validation_type=NORMAL)
    assert progress.current_stage is NORMAL and progress.has_pending_validations()
    progress.start_validation(MASK)
    progress.complete_validation(MASK)
    assert progress.current_stage is TrainingStage.TRAINING
