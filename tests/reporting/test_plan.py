import io
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from linnaeus.config.schema_optimization import LinearGrowthConfig
from linnaeus.config.schema_schedule import RampConfig
from linnaeus.errors import ConfigError
from linnaeus.reporting.formatting import ASCII_BARS, BARS
from linnaeus.reporting.plans.plan import schedule_summary
from linnaeus.reporting.plans.schedule_chart import LEFT, RIGHT, WIDTH, schedule_picture
from linnaeus.reporting.plans.schedule_rows import schedule_rows
from linnaeus.schedule import ResolvedSchedule, resolve_all_schedule_params
from tests.schedule.configs import make_config, resolve

SVG = "{http://www.w3.org/2000/svg}"


def test_the_plan_of_a_run_with_every_setting() -> None:
    config = make_config(
        {"global_batch_size": 64, "micro_batch_size": 8},
        {"patience": 5, "min_lr": 1e-6},
        checkpoint=["10%", "15min"],
        mixup_prob=RampConfig(0.0, 0.6, "10%", "60%"),
        mixup_group_level=[{"from": "0%", "level": "family"}, {"from": "50%", "level": "genus"}],
    )
    text = schedule_summary(resolve_all_schedule_params(config, 105, 10, ("SPATIAL", "TEMPORAL")), world_size=2)
    for part in (
        "64 = micro-batch 8 x 4 accumulation steps x 2 processes",
        "105 = 10 epochs of 10 steps and 5 more",
        "25% at step 27, 50% at step 53, 75% at step 79, 100% at step 105",
        "5 times: 21, 42, 63, 84, 105  (every 20%)",
        "10 times: 11, 21, 32, 42, 53, ... 105, and every 15min of wall time  (every 10%)",
        "0 -> 0.6, from step 11 to step 63",
        "family from epoch 1 (step 0), genus from epoch 7 (step 60)",
        "after 5 validations without a better val/loss (mode min, min_delta 0)",
        "learning rate below 1e-06 after step 0",
    ):
        assert part in text, text


def test_each_line_is_under_its_title() -> None:
    growth = LinearGrowthConfig("linear", 0.1, 1.0, "0%", "50%", ["10%"], "random")
    lines = schedule_summary(resolve(growth=growth)).splitlines()
    under: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith(" "):
            title, words = [*under][-1], line.split("  ")
            under[title].append(words[1])
        else:
            under[line] = []
    assert under["probabilities"] == ["meta_mask_prob", "partial_meta_mask_prob", "null_mask_prob", "mixup_prob", "mixing level"]
    assert under["growth"] == ["connected weights"] and under["events"][-1] == "early stop"


def test_the_end_of_augmentation_is_in_the_plan_and_in_the_picture(tmp_path: Path) -> None:
    mixed = {"mixup_prob": RampConfig(0.5, 0.5, "0%", "100%"), "mixup_group_level": [{"from": "0%", "level": "genus"}]}
    resolved = resolve(off_last="10%", **mixed)
    lines = [line.split(maxsplit=1) for line in schedule_summary(resolved).splitlines()]
    assert ["augmentation", "on; off from step 90 to step 100 (augment.off_last)"] in lines
    assert ["mixup_prob", "0.5; 0 from step 90"] in lines
    schedule_picture(resolved, lambda step: 0.1, tmp_path / "schedule.svg")
    texts = [element.text for element in ElementTree.parse(tmp_path / "schedule.svg").iter(f"{SVG}text")]
    assert {"augmentation", "on", "off"} <= set(texts)
    schedule_picture(resolve(**mixed), lambda step: 0.1, tmp_path / "schedule.svg")
    assert "augmentation" not in (tmp_path / "schedule.svg").read_text() + schedule_summary(resolve(**mixed))


def test_settings_without_effect_are_left_out() -> None:
    masking = ("meta_mask_prob", "null_mask_prob", "mixup_prob", "validate_mask_meta", "validate_partial_mask_meta", "probabilities")
    text = schedule_summary(resolve(100, 10, 1, (), components=()))
    assert not [word for word in masking if word in text] and "validate " in text and "early stop" in text
    mixing_alone = schedule_summary(resolve(100, 10, 1, ("mixup_prob",), components=()))
    assert "mixing level" in mixing_alone and "null_mask_prob" not in mixing_alone and "meta_mask_prob" not in mixing_alone
    everything = schedule_summary(resolve())
    assert all(word in everything for word in masking)
    for name in ("mixup_prob", "null_mask_prob"):
        with pytest.raises(ConfigError, match=rf"schedule\.{name} has no effect on this data"):
            resolve(100, 10, 1, (), **{name: RampConfig(0.5, 0.5, "0%", "100%")}, components=())


@pytest.mark.parametrize("total, per_epoch", [(1, 1), (2, 5), (105, 10), (100_000, 37)])
def test_the_picture_is_valid_and_marks_events_at_their_steps(tmp_path: Path, total: int, per_epoch: int) -> None:
    config = make_config(
        validate=["25%"], mixup_prob=RampConfig(0.0, 0.6, "10%", "60%"), mixup_group_level=[{"from": "0%", "level": "a & b"}]
    )
    resolved = resolve_all_schedule_params(config, total, per_epoch, ("SPATIAL", "TEMPORAL"))
    schedule_picture(resolved, lambda step: 1 - step / total, tmp_path / "schedule.svg")
    root = ElementTree.parse(tmp_path / "schedule.svg").getroot()
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert {"learning rate", "validate", "checkpoint", "mixup_prob", "step (optimizer updates)"} <= set(texts)
    assert any(str(text).startswith("25%") for text in texts), "one label for marks at one step"
    ticks = next(p for p in root.iter(f"{SVG}path") if p.get("class") == "events").get("d")  # the first row is `validate`
    drawn = [float(piece.split()[0]) for piece in ticks.split("M")[1:]]
    expected = sorted({LEFT + (WIDTH - LEFT - RIGHT) * step / total for step in resolved.validate.steps()})
    assert drawn == pytest.approx(expected, abs=0.5)


def test_the_learning_rate_is_drawn_as_given(tmp_path: Path) -> None:
    resolved = resolve()
    steps: list[int] = []
    schedule_picture(resolved, lambda step: steps.append(step) or 0.5, tmp_path / "flat.svg")
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == 99
    line = next(ElementTree.parse(tmp_path / "flat.svg").getroot().iter(f"{SVG}path")).get("d")
    assert len({point.split()[1] for point in line[1:].split("L")}) == 1


def picture(resolved: ResolvedSchedule, lr_at: Callable[[int], float], columns: int, ascii_only: bool = False) -> dict[str, list[str]]:
    """Return {name of the row: [picture, note]} of the picture for a terminal. Its lines fit into the terminal."""
    lines = schedule_rows(resolved, lr_at, columns, ascii_only).splitlines()
    assert lines[0] == "picture" and max(map(len, lines)) == max(columns, 80) and (not ascii_only or "".join(lines).isascii())
    return {name: rest for name, *rest in (re.split("  +", line.strip()) for line in lines[1:-1])}


@pytest.mark.parametrize(("columns", "ascii_only"), [(80, False), (200, False), (80, True), (40, True)])
def test_the_picture_on_the_terminal_shows_values_and_events_at_their_steps(columns: int, ascii_only: bool) -> None:
    mixing = {"mixup_prob": RampConfig(0.0, 0.5, "20%", "60%"), "null_mask_prob": RampConfig(0.0, 0.0, "0%", "100%")}
    resolved = resolve(1000, 50, validate=["25%"], checkpoint=["100%"], **mixing)
    rows = picture(resolved, lambda step: 0.1 * (step >= 500), columns, ascii_only)
    bars, empty = (ASCII_BARS, ".") if ascii_only else (BARS, "·")
    assert set(rows) == {
        *("learning rate", "meta_mask_prob", "partial_meta_mask_prob", "mixup_prob"),
        *("validate", "validate_mask_meta", "validate_partial_mask_meta", "checkpoint"),
    }, "null_mask_prob is always 0"
    (lr, peak), width = rows["learning rate"], len(rows["learning rate"][0])
    half = -(-width // 2)
    assert (lr, peak) == (bars[0] * half + bars[-1] * (width - half), "up to 0.1") and width >= 30
    mixed, note = rows["mixup_prob"]
    assert note == "0 to 0.5" and mixed[: width // 5] == bars[0] * (width // 5) and mixed[-width // 3 :] == bars[4] * -(-width // 3)
    assert list(map(bars.index, mixed)) == sorted(map(bars.index, mixed))
    marked, number = rows["validate"]
    expected = [math.ceil(quarter * width / 4) - 1 for quarter in (1, 2, 3, 4)]
    assert [i for i, mark in enumerate(marked) if mark == "|"] == expected and set(marked) == {"|", empty} and number == "4 x"
    assert rows["checkpoint"] == [empty * (width - 1) + "|", "1 x"]


@pytest.mark.parametrize("total", [1, 3, 10**7])
def test_the_picture_on_the_terminal_of_a_very_short_and_a_very_long_run(total: int) -> None:
    rows = picture(resolve(total, 10, validate=["1steps"] if total < 10 else ["50%"]), lambda step: 0.0, 80)
    assert set(rows["learning rate"][0]) == {BARS[0]} and rows["validate"][0].count("|") == min(total, 2 if total > 10 else total)


@pytest.mark.parametrize(("encoding", "plain"), [("utf-8", False), ("ascii", True), ("cp1252", True)])
def test_a_console_without_the_characters_gets_ascii(encoding: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    monkeypatch.setenv("COLUMNS", "100")
    text = schedule_rows(resolve(), lambda step: 0.1)
    assert text.isascii() == plain and max(map(len, text.splitlines())) == 100
