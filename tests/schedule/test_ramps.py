import pytest

from linnaeus.config.schema_schedule import RampConfig
from linnaeus.errors import ConfigError
from linnaeus.schedule.events import Ramp


def test_linear_between_and_constant_outside() -> None:
    ramp = Ramp.resolve(RampConfig(0.2, 1.0, "10%", "50%"), "schedule.mixup_prob", 100, 10)
    assert (ramp.begin_step, ramp.until_step) == (10, 50)
    assert [ramp.at(s) for s in (0, 10, 50, 99)] == [0.2, 0.2, 1.0, 1.0]
    assert ramp.at(30) == pytest.approx(0.6) and ramp.at(11) == pytest.approx(0.22)


def test_from_the_first_step_and_down() -> None:
    ramp = Ramp(1.0, 0.0, 0, 4)
    assert [ramp.at(s) for s in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_an_empty_ramp_is_a_jump() -> None:
    ramp = Ramp(0.0, 1.0, 7, 7)
    assert [ramp.at(s) for s in (6, 7, 8)] == [0.0, 1.0, 1.0]


def test_a_ramp_that_ends_before_it_begins() -> None:
    with pytest.raises(
        ConfigError, match=r"schedule\.mixup_prob\.until=10% \(step 10\) comes before schedule\.mixup_prob\.begin=2epochs \(step 20\)"
    ):
        Ramp.resolve(RampConfig(0.0, 1.0, "2epochs", "10%"), "schedule.mixup_prob", 100, 10)
