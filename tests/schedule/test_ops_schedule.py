import pickle
import random
from types import SimpleNamespace

import pytest

from linnaeus.config.schema import Config
from linnaeus.config.schema_schedule import RampConfig
from linnaeus.reporting.plans.plan import abbreviate, schedule_summary
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params, training_length
from linnaeus.schedule.ops_schedule import RATIO_EVERY
from tests.schedule.configs import COMPONENTS, make_config, resolve

CADENCES = ["", "1steps", "7steps", "1epochs", "2epochs", "0.3epochs", "25%", "10% 1epochs", "33.3%", "4steps 6steps"]


def random_config(draw: random.Random) -> Config:
    cadence = lambda: draw.choice(CADENCES).split()
    return make_config(
        {"length": draw.choice(["3epochs", "2.5epochs", "41steps", "1steps"])},
        {"max_steps": draw.choice([None, None, 17])},
        gradnorm=(cadence(), draw.choice(["0steps", "10%", "1epochs"])), conflict=cadence(),
        last_batch=draw.choice(["keep", "drop"]),
        log=cadence(), report=cadence(), validate=cadence(), validate_mask_meta=cadence(), validate_partial_mask_meta=cadence(),
        checkpoint=cadence(), checkpoint_at_end=draw.random() < 0.5, validate_at_end=draw.random() < 0.5,
        all_combinations_at_end=draw.random() < 0.3,
    )  # fmt: skip


def events_in(text: str) -> dict[str, str]:
    """Return event -> its steps, as printed in the summary."""
    lines = text.split("events\n")[1].split("probabilities\n")[0].splitlines()
    pairs = (line[2:].split(maxsplit=1) for line in lines if not line.startswith("    "))
    return {name: rest.split(": ")[-1].split("  (every")[0] for name, rest in pairs}


@pytest.mark.parametrize("seed", range(60))
def test_the_summary_lists_the_steps_at_which_events_are_due(seed: int) -> None:
    draw = random.Random(seed)
    config = random_config(draw)
    length = training_length(config, draw.randint(8, 200))
    components = draw.choice([COMPONENTS, COMPONENTS, ()])
    resolved = resolve_all_schedule_params(config, length.total_steps, length.steps_per_epoch, components)
    ops = OpsSchedule(resolved)
    at = lambda step: SimpleNamespace(global_step=step)  # a `TrainingProgress`
    checks = {
        "validate": lambda step: ops.should_validate(step) and ops.should_validate(at(step)),
        "validate_mask_meta": ops.should_validate_mask_meta,
        "validate_partial_mask_meta": lambda step: len(ops.partial_validations_due(step)) > 0,
        "checkpoint": ops.should_save_checkpoint,
        "weighting": ops.should_update_gradnorm,
        "conflict": ops.resolved.conflict.due,
        "report": ops.should_report,
        "log": ops.should_log_metrics,
    }
    listed = events_in(schedule_summary(resolved))
    assert checks.keys() - listed.keys() == (set() if components else {"validate_mask_meta", "validate_partial_mask_meta"})
    logged = [step for step in range(1, resolved.last_step + 1) if ops.should_log_metrics(step)]
    measured = [step for step in logged if ops.should_measure_update_ratio(step)]
    assert 1 <= ops.ratio_every <= RATIO_EVERY
    assert measured == list({(step - 1) // ops.ratio_every: step for step in reversed(logged)}.values())[::-1]
    assert not any(ops.should_measure_update_ratio(step) for step in range(1, resolved.last_step + 1) if step not in logged)
    looked_at, step = set[int](), 0
    while step < resolved.last_step:
        step = ops.next_event(step)
        looked_at.add(step)
    due_by_steps = [is_due for name, is_due in checks.items() if name not in ("weighting", "conflict")]
    assert looked_at == {s for s in range(1, resolved.last_step + 1) if any(due(s) for due in due_by_steps)} | {resolved.last_step}
    for name, is_due in checks.items():
        due = [step for step in range(1, resolved.last_step + 1) if is_due(step)]
        if name not in listed:  # the data have no metadata
            assert due == []
            continue
        assert due == resolved.events()[name].steps()
        assert listed[name] == (abbreviate(due) if due else "never")
        assert not is_due(resolved.last_step + 1) and not is_due(0)


def test_partial_passes_due_and_passes_at_end() -> None:
    ops = OpsSchedule(resolve(validate_partial_mask_meta=["50%"], all_combinations_at_end=True))
    assert [list(ops.partial_validations_due(step)) for step in (50, 51, 100)] == [[0, 1], [], [*range(6)]]
    partial = [("validate_partial_mask_meta", index) for index in (0, 1)]
    assert OpsSchedule(resolve()).passes_at_end() == [("validate", None), ("validate_mask_meta", None), *partial]
    assert OpsSchedule(resolve(validate_at_end=False)).passes_at_end() == []


def test_probabilities_follow_their_ramps() -> None:
    """In a copy too, as loader workers receive one."""
    resolved = resolve(
        checkpoint=["15min"],
        meta_mask_prob=RampConfig(1.0, 0.0, "0%", "50%"),
        partial_meta_mask_prob=RampConfig(0.0, 0.5, "50%", "100%"),
        null_mask_prob=RampConfig(0.25, 0.25, "0%", "100%"),
        mixup_prob=RampConfig(0.0, 1.0, "2epochs", "2epochs"),
    )
    assert pickle.loads(pickle.dumps(resolved)) == resolved
    ops = pickle.loads(pickle.dumps(OpsSchedule(resolved)))
    assert [ops.get_meta_mask_prob(s) for s in (0, 25, 50, 99)] == [1.0, 0.5, 0.0, 0.0]
    assert [ops.get_partial_meta_mask_prob(s) for s in (0, 50, 75)] == [0.0, 0.0, 0.25]
    assert ops.get_null_mask_prob(60) == 0.25 and [ops.get_mixup_prob(s) for s in (19, 20)] == [0.0, 1.0]


def test_mixup_group_level_by_epoch() -> None:
    levels = [{"from": "10%", "level": "family"}, {"from": "45steps", "level": "genus"}]
    ops = OpsSchedule(resolve(mixup_group_level=levels))
    assert [ops.get_mixup_group_level(e) for e in (0, 1, 4, 5, 9)] == [None, "family", "family", "genus", "genus"]
    assert OpsSchedule(resolve()).get_mixup_group_level(3) is None


def test_checkpoints_and_reports_by_the_clock() -> None:
    now = [0.0]
    clocked = resolve(checkpoint=["50%", "1min"], checkpoint_at_end=False, report=["50%", "30s"])
    ops, other = (OpsSchedule(clocked, clock=lambda: now[0]) for _ in range(2))
    # seconds, step, saved: step 50 is due by its step, which restarts the interval of a minute
    for seconds, step, saved in ((0, 3, False), (61, 4, True), (61, 5, False), (110, 50, True), (130, 51, False), (171, 52, True)):
        now[0] = seconds
        assert ops.should_save_checkpoint(step, ops.checkpoint_due_by_clock()) == saved, step
    assert other.report_due_by_clock() and other.report_due_by_clock(), "asking does not restart the interval"
    assert [other.should_report(s) for s in (49, 49, 50)] == [True, False, True]
    assert not other.report_due_by_clock()
    now[0] += 31.0
    assert other.should_report(51) and not other.should_report(52)
    # another rank saves when rank 0 does, which restarts its own interval
    assert not other.should_save_checkpoint(9) and other.should_save_checkpoint(10, by_clock=True)
    assert not other.checkpoint_due_by_clock()
