"""Compare the table of changes of a run that continues with another configuration with both resolved schedules."""

import dataclasses
import math
import re
from typing import Any

from linnaeus.config import compose
from linnaeus.config.schema import Config
from linnaeus.config.schema_optimization import PlateauConfig, StepConfig
from linnaeus.config.schema_schedule import RampConfig
from linnaeus.reporting.plans.changes import describe_changes
from tests.schedule.configs import COMPONENTS, make_config


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Return name -> (before, after) of the rows of the table."""
    found = {}
    for line in text.splitlines():
        columns = re.split(r" {2,}", line.strip())
        if line.startswith("  ") and len(columns) == 3:
            found[columns[0]] = (columns[1], columns[2])
    return found


def unchanged(text: str) -> set[str]:
    lines = [line.partition("unchanged: ")[2] for line in text.splitlines() if "unchanged: " in line]
    return {name for line in lines for name in line.split(", ")}


def changes(old: Config, new: Config, step: int, size: int = 80, **more: Any) -> str:
    return describe_changes(dataclasses.asdict(old), new, size, COMPONENTS[:2], step, **more)


def test_a_longer_run() -> None:
    """80 samples in batches of 8; 10 epochs become 20 at step 55."""
    ramp = RampConfig(0.0, 0.5, "0%", "100%")
    old = make_config({"length": "10epochs"}, mixup_prob=ramp, checkpoint=["10%", "15min"])
    new = make_config({"length": "20epochs"}, mixup_prob=ramp, checkpoint=["10%", "15min"])
    text = changes(old, new, 55)
    found = rows(text)
    assert text.splitlines()[0] == 'changes from step 55 with trainer.length: "10epochs" -> "20epochs"'
    assert found["total steps"] == ("100", "200") and found["epochs"] == ("10", "20") and found["completed"] == ("55.0%", "27.5%")
    assert found["validate"] == ("3: 60, 80, 100", "4: 80, 120, 160, 200")
    assert found["validate_mask_meta"] == ("1: 100", "1: 200")
    assert found["checkpoint"] == ("5: 60, 70 ... 100; every 15min", "8: 60, 80 ... 200; every 15min")
    assert found["log"] == ("9: 60, 65 ... 100", "29: 60, 65 ... 200")
    assert found["mixup_prob"] == ("0.275 now: 0 -> 0.5, from step 0 to step 100", "0.1375 now: 0 -> 0.5, from step 0 to step 200")
    assert {"steps per epoch", "position", "weighting", "meta_mask_prob", "null_mask_prob"} <= unchanged(text)

    def cosine(step: int, total: int) -> str:
        return f"{0.1 * 0.5 * (1 + math.cos(math.pi * step / total)):.6g}"

    assert found["at step 55 (now)"] == (cosine(55, 100), cosine(55, 200))
    assert found["at step 100 (50%)"] == ("ended", cosine(100, 200)) and found["at step 199 (100%)"] == ("ended", cosine(199, 200))
    assert "at step 50 (25%)" not in found, "that step has passed"
    assert rows(changes(old, new, 60))["validate"] == ("2: 80, 100", "4: 80, 120, 160, 200"), "step 60 itself is done"
    early = rows(changes(old, new, 5))
    assert early["at step 50 (25%)"] == (cosine(50, 100), cosine(50, 200))


def test_another_batch_size_changes_the_position() -> None:
    text = changes(make_config(), make_config({"global_batch_size": 16, "micro_batch_size": 16}), 33)
    found = rows(text)
    assert found["position"] == ("epoch 4, after 3 of 10 updates", "epoch 7, after 3 of 5 updates")
    assert found["global batch size"] == ("8", "16") and found["steps per epoch"] == ("10", "5")


def test_another_number_of_samples_changes_the_length() -> None:
    config = make_config()
    assert rows(changes(config, config, 5)) == {}
    assert rows(changes(config, config, 5, size=160, old_train_size=80))["total steps"] == ("100", "200")


def test_negative_control_another_seed_changes_no_step() -> None:
    text = changes(make_config(), dataclasses.replace(make_config(), seed=1), 5)
    assert rows(text) == {} and "with seed: 0 -> 1" in text
    assert {"validate", "at step 5 (now)", "at step 99 (100%)", "total steps"} <= unchanged(text)


def test_a_run_after_its_new_end_makes_no_update() -> None:
    text = changes(make_config(), make_config({"length": "3epochs"}), 30)
    assert text.splitlines()[-1] == "step 30 is at or after the new last step 30: no further update is made"
    assert rows(text)["validate"] == ("4: 40, 60, 80, 100", "none") and rows(text)["at step 30 (now)"][1] == "ended"
    assert "new last step" not in changes(make_config(), make_config({"length": "3epochs"}), 29)
    stopped = changes(make_config(), make_config(early_stop={"max_steps": 20}), 20)
    assert rows(stopped)["last step"] == ("100", "20") and "after the new last step 20" in stopped


def test_another_scheduler_changes_the_learning_rates() -> None:
    step = StepConfig("step", "0steps", ["60%"], 0.1)
    plateau = PlateauConfig("plateau", "0steps", "val/loss", "min", 0.5, 2, 0.0)
    found = rows(changes(make_config(scheduler=step), make_config(scheduler=plateau), 40))
    assert found["at step 40 (now)"] == ("0.1", "0.1, before plateau reductions")
    assert found["at step 75 (75%)"] == ("0.01", "0.1, before plateau reductions")


def test_gradients_of_a_single_task_are_not_compared() -> None:
    """In the printed schedule of such a run the event never occurs."""
    old, new = (make_config({"length": length}, conflict=("10%",)) for length in ("10epochs", "20epochs"))
    assert rows(changes(old, new, 55, tasks=2))["conflict"] == ("5: 60, 70 ... 100", "8: 60, 80 ... 200")
    assert "conflict" in unchanged(changes(old, new, 55, tasks=1))


def test_components_missing_from_the_data_now() -> None:
    old = make_config(partial_combinations=[["ELEVATION"]])
    assert rows(changes(old, make_config({"length": "20epochs"}), 5))["total steps"] == ("100", "200")


def test_an_old_configuration_that_this_version_cannot_read() -> None:
    new = compose(["trainer.length=5epochs"])
    saved = dataclasses.asdict(compose())
    assert rows(describe_changes(saved, new, 85, None, 1))["epochs"] == ("4", "5")
    saved["trainer"]["gone"] = 1
    text = describe_changes(saved, new, 85, None, 1)
    assert "trainer.gone" in text.splitlines()[0] and text.splitlines()[1].startswith("  unknown: ") and len(text.splitlines()) == 2
