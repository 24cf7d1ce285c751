import pytest

from linnaeus.durations import Duration, first_step_at
from linnaeus.errors import ConfigError


@pytest.mark.parametrize(
    "text, total, per_epoch, steps",
    [
        ("500steps", 1000, 10, 500),
        ("1step", 1000, 10, 1),
        ("0steps", 1000, 10, 0),
        ("2epochs", 1000, 13, 26),
        ("1epoch", 1000, 13, 13),
        ("0.5epochs", 1000, 13, 7),
        ("0%", 1000, 13, 0),
        ("10%", 1000, 13, 100),
        ("10%", 105, 13, 11),  # the first step at which 10.5 steps have passed
        ("7%", 100, 13, 7),  # 0.07 * 100 is 7.000000000000001 in floats
        ("33.3%", 1000, 13, 333),
        ("100%", 37, 13, 37),
        (" 2.5 EPOCHS ", 1000, 4, 10),
    ],
)
def test_durations_in_steps(text: str, total: int, per_epoch: int, steps: int) -> None:
    assert Duration.parse(text).to_steps(total, per_epoch) == steps


@pytest.mark.parametrize("text, seconds", [("30s", 30), ("15min", 900), ("2h", 7200), ("1.5hours", 5400), ("1minute", 60)])
def test_clock_durations_in_seconds(text: str, seconds: float) -> None:
    duration = Duration.parse(text)
    assert duration.is_time and duration.seconds == seconds


@pytest.mark.parametrize(
    "text", ["", "500", "steps", "5 parsecs", "-1epochs", "101%", "2.5steps", "nan%", "1e3steps", "5min 3s", "%", 50, None, True]
)
def test_an_invalid_duration_raises_one_line_that_names_the_key(text: object) -> None:
    with pytest.raises(ConfigError) as error:
        Duration.parse(text, "schedule.log")
    assert "\n" not in str(error.value) and str(error.value).startswith("schedule.log is ") and repr(text) in str(error.value)


def test_a_float_just_above_a_whole_step_is_that_step() -> None:
    for total in (3, 7, 10, 30, 97, 1000, 10**6):
        for step in range(1, min(total, 1000) + 1):
            assert first_step_at(step / total * total) == step


def test_equality_does_not_depend_on_the_key() -> None:
    assert Duration.parse("2epochs", "a") == Duration.parse("2epoch", "b") != Duration.parse("2steps")
