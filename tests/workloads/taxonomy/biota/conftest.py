"""Configuration of biota for its tests."""

from collections.abc import Callable

import pytest

from linnaeus.workloads.taxonomy.config import BiotaConfig


def _config(train_samples: int = 300, validation_samples: int = 100, image_size: int = 24, world: int = 0) -> BiotaConfig:
    return BiotaConfig(
        name="biota",
        last_batch="keep",
        validation_batch=50,
        max_bad_fraction=0.0,
        ranks=None,
        components=["SPATIAL", "TEMPORAL", "ELEVATION"],
        sampling="natural",
        sampling_rank=None,
        image_size=image_size,
        train_samples=train_samples,
        validation_samples=validation_samples,
        world=world,
    )


@pytest.fixture(scope="session")
def biota() -> Callable[..., BiotaConfig]:
    """Return a function that builds a config of the source."""
    return _config
