import re
from dataclasses import replace

import pytest

from linnaeus.errors import ConfigError
from linnaeus.schedule.length import TrainingLength, accumulation_steps, micro_batch_size, training_length, validation_batch_size
from tests.schedule.configs import make_config


@pytest.mark.parametrize(
    "size, length, last_batch, expected",
    [
        (80, "10epochs", "keep", (10, 100)),
        (81, "10epochs", "keep", (11, 110)),
        (87, "10epochs", "drop", (10, 100)),
        (80, "25steps", "keep", (10, 25)),
        (80, "1.5epochs", "keep", (10, 15)),
        (3, "1epoch", "keep", (1, 1)),
    ],
)
def test_training_length(size: int, length: str, last_batch: str, expected: tuple[int, int]) -> None:
    assert training_length(make_config({"length": length}, last_batch=last_batch), size) == TrainingLength(*expected)
    with pytest.raises(ConfigError, match="no training samples"):
        training_length(make_config({"length": length}, last_batch=last_batch), 0)


@pytest.mark.parametrize("batch, micro, world, steps", [(64, 64, 1, 1), (64, 8, 2, 4), (12, 2, 3, 2), (12, None, 1, 1), (12, None, 4, 1)])
def test_accumulation_steps(batch: int, micro: int | None, world: int, steps: int) -> None:
    assert accumulation_steps(make_config({"global_batch_size": batch, "micro_batch_size": micro}), world) == steps


def test_without_a_micro_batch_size_the_global_batch_is_divided_among_processes() -> None:
    config = make_config({"global_batch_size": 32, "micro_batch_size": None})
    assert [micro_batch_size(config, world) for world in (1, 2, 4)] == [32, 16, 8]
    with pytest.raises(ConfigError, match="global_batch_size=32 cannot be divided among 3 processes; use 30 or 33"):
        accumulation_steps(config, 3)


@pytest.mark.parametrize("validation, micro, expected", [(10, 8, 10), (None, 8, 8), (None, None, 32)])
def test_validation_batches_follow_the_micro_batch(validation: int | None, micro: int | None, expected: int) -> None:
    config = make_config({"global_batch_size": 32, "micro_batch_size": micro})
    config = replace(config, data=replace(config.data, validation_batch=validation))
    assert validation_batch_size(config) == expected
    large = replace(config, trainer=replace(config.trainer, global_batch_size=480))
    assert validation_batch_size(large) == (expected if validation or micro else 64)  # 480 are the share of several processes


@pytest.mark.parametrize(
    "batch, micro, world, advice",
    [
        (100, 16, 3, "use trainer.global_batch_size=96 or 144"),
        (100, 16, 2, "use trainer.global_batch_size=96 or 128, or trainer.micro_batch_size=10"),
        (8, 16, 1, "use trainer.global_batch_size=16, or trainer.micro_batch_size=8"),
    ],
)
def test_accumulation_error_names_the_nearest_valid_values(batch: int, micro: int, world: int, advice: str) -> None:
    with pytest.raises(ConfigError) as error:
        accumulation_steps(make_config({"global_batch_size": batch, "micro_batch_size": micro}), world)
    text = str(error.value)
    line = f"trainer.global_batch_size={batch} is not a multiple of .* = {micro} x {world} = {micro * world}; {advice}"
    assert re.fullmatch(line, text)
    for word in advice.replace(",", "").split():
        if word.startswith("trainer.micro_batch_size="):
            micro = int(word.split("=")[1])
            assert accumulation_steps(make_config({"global_batch_size": batch, "micro_batch_size": micro}), world) >= 1
