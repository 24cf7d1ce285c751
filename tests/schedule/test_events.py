import math
import random
import re
from fractions import Fraction

import pytest

from linnaeus.config.schema_schedule import RampConfig
from linnaeus.errors import ConfigError
from linnaeus.schedule.events import Every, Ramp


def exact_steps(amount: str, unit: str, total: int, per_epoch: int) -> set[int]:
    """Return the steps of a cadence by its definition, in exact arithmetic."""
    period = Fraction(amount) * {"steps": 1, "epochs": per_epoch, "%": Fraction(total, 100)}[unit]
    return {s for k in range(1, math.floor(total / period) + 2) if (s := math.ceil(k * period)) <= total}


def random_duration(draw: random.Random) -> tuple[str, str]:
    unit = draw.choice(["steps", "epochs", "%"])
    if unit == "steps":
        return str(draw.randint(1, 40)), unit
    if unit == "epochs":
        return draw.choice(["1", "2", "3", "0.5", "0.25", "1.5", "0.1"]), unit
    return draw.choice(["1", "5", "7", "10", "12.5", "25", "30", "33.3", "50", "100"]), unit


@pytest.mark.parametrize("seed", range(150))
def test_steps_due_and_the_exact_reference_agree(seed: int) -> None:
    draw = random.Random(seed)
    total, per_epoch = draw.randint(1, 400), draw.randint(1, 60)
    durations = [random_duration(draw) for _ in range(draw.randint(0, 3))]
    first, at_end = draw.choice([1, draw.randint(1, 50)]), draw.random() < 0.5
    last = draw.choice([total, draw.randint(1, total)])
    every = Every.resolve([a + u for a, u in durations], "key", total, per_epoch, last, first=first, at_end=at_end)
    due = [step for step in range(-1, total + 3) if every.due(step)]
    expected = {s for a, u in durations for s in exact_steps(a, u, total, per_epoch) if first <= s <= last}
    if at_end and first <= last:
        expected.add(last)
    assert due == every.steps() == sorted(expected)
    assert every.ever_due == bool(due)
    for step in range(-1, total + 3):
        assert every.next_after(step) == min((at for at in due if at > step), default=None)


def test_clock_cadences_are_separate_from_steps() -> None:
    every = Every.resolve(["10%", "15min"], "schedule.checkpoint", 10, 5, 10, by_clock=True)
    assert every.seconds == (900.0,) and every.steps() == list(range(1, 11)) and every.cadences == ("10%", "15min")


# -- ramps ---------------------------------------------------------------------------------------------------------------------


def test_a_ramp_is_linear_inside_and_constant_outside() -> None:
    ramp = Ramp.resolve(RampConfig(0.2, 1.0, "10%", "50%"), "schedule.mixup_prob", 100, 10)
    assert (ramp.begin_step, ramp.until_step) == (10, 50)
    assert [ramp.at(s) for s in (0, 10, 50, 99)] == [0.2, 0.2, 1.0, 1.0]
    assert ramp.at(30) == pytest.approx(0.6) and ramp.at(11) == pytest.approx(0.22)


def test_a_falling_ramp_from_step_0_and_a_jump() -> None:
    assert [Ramp(1.0, 0.0, 0, 4).at(s) for s in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert [Ramp(0.0, 1.0, 7, 7).at(s) for s in (6, 7, 8)] == [0.0, 1.0, 1.0]


def test_a_ramp_that_ends_before_it_starts_raises() -> None:
    message = "schedule.mixup_prob.until=10% (step 10) comes before schedule.mixup_prob.begin=2epochs (step 20)"
    with pytest.raises(ConfigError, match=re.escape(message)):
        Ramp.resolve(RampConfig(0.0, 1.0, "2epochs", "10%"), "schedule.mixup_prob", 100, 10)
