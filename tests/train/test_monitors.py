"""A monitored metric must be measured, and its direction known: `auto` never guesses."""

import pytest

from linnaeus.errors import ConfigError
from tests import runs
from tests.vectors import config


def test_a_measured_metric_without_a_direction_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "DIRECTIONS", {"mse": "min"})
    with pytest.raises(ConfigError, match=r"schedule\.best_mode is auto, but it is not known whether a smaller val/r2 is better"):
        runs.run("vectors", tmp_path, "schedule.best_monitor=val/r2")
    assert list(tmp_path.iterdir()) == []
    runs.run("vectors", tmp_path, "schedule.best_monitor=val/r2", "schedule.best_mode=max")
