"""Progressive resizing: stages of equal length as a function of the step, their lines in the plan, and refusals."""

from pathlib import Path

import pytest

from linnaeus.config import compose
from linnaeus.errors import ConfigError
from linnaeus.reporting.plans.plan import schedule_summary, unreached
from linnaeus.reporting.plans.schedule_chart import schedule_picture
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.schedule.image_sizes import image_sizes
from tests.schedule.configs import make_config, resolve


def sides(**changes: object) -> list[int | None]:
    ops = OpsSchedule(resolve(**changes))
    return [ops.get_image_size(step) for step in range(100)]


def test_the_size_grows_in_equal_stages_and_is_whole_from_until_on() -> None:
    assert sides(start_size=(128, 32, "0%", "75%")) == [128] * 25 + [160] * 25 + [192] * 25 + [224] * 25
    assert sides(start_size=(128, 32, "10steps", "4epochs")) == [128] * 20 + [160] * 10 + [192] * 10 + [224] * 60
    assert sides(start_size=(196, 14, "0%", "50%")) == [196] * 25 + [210] * 25 + [224] * 50
    assert sides(start_size=(128, 64, "0%", "50%")) == [128] * 25 + [192] * 25 + [224] * 50, "the last step need not be a multiple"
    assert sides(start_size=(128, 32, "30%", "30%")) == [128] * 30 + [224] * 70
    assert sides(start_size=(8, 1, "0%", "100%"))[-1] == 221 and len(set(sides(start_size=(8, 1, "0%", "2%")))) == 3
    assert sides() == [None] * 100 and image_sizes(make_config()) == (224,)


def test_the_plan_and_the_picture(tmp_path: Path) -> None:
    resolved = resolve(start_size=(128, 32, "0%", "75%"))
    text = schedule_summary(resolved)
    assert "image size" in text and "128, 160 from step 25, 192 from step 50, 224 from step 75" in text
    schedule_picture(resolved, lambda step: 0.1, tmp_path / "schedule.svg")
    assert "image size" in (tmp_path / "schedule.svg").read_text()
    assert "image size" not in schedule_summary(resolve())
    many = schedule_summary(resolve(start_size=(32, 32, "0%", "100%")))
    assert "32, 64 from step 17, 96 from step 34, 128 from step 50, ... 224 from step 100" in many


def test_a_size_that_is_not_reached_is_noted() -> None:
    notes = unreached(resolve(start_size=(128, 32, "0%", "75%"), early_stop={"max_steps": 75}))
    assert notes == ["schedule.image_size: 224 would start at step 75, not before the last step 75; it reaches 192"]
    assert unreached(resolve(start_size=(128, 32, "0%", "75%"), early_stop={"max_steps": 76})) == []


@pytest.mark.parametrize(
    "size, message",
    [
        ((224, 32, "0%", "75%"), "start=224 is not below data.image_size=224; use a smaller start, or null for a constant size"),
        ((130, 32, "0%", "75%"), "start=130 is not a multiple of schedule.image_size.multiple=32; use 128"),
        ((128, 32, "50%", "40%"), r"until=40% \(step 40\) comes before schedule.image_size.begin=50% \(step 50\)"),
        ((128, 32, "0%", "0%"), "until=0% is step 0, before the first update; set a later one"),
        ((128, 32, "0%", "5min"), "a time cannot be converted to steps"),
    ],
)
def test_an_impossible_ramp_is_one_line(size: tuple[int, int, str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(start_size=size)


def test_a_workload_without_images_refuses_it() -> None:
    config = compose(["workload=language", "data.path=text", "schedule.image_size.start=128"])
    with pytest.raises(
        ConfigError, match=r"schedule.image_size.start=128 has no effect, since this workload has no images; set it to null"
    ):
        resolve_all_schedule_params(config, 100, 10)
