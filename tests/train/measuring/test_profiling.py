"""`profile=steps:50-60`: the times of the parts of an update on a simulated clock, the files, and their absence without the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.train import loop
from linnaeus.train.measuring import profiling, sections
from linnaeus.train.measuring.profiling import profile_notes, profiled_steps
from linnaeus.train.measuring.sections import PARTS, Sections
from tests import runs
from tests.vectors.workload import VectorsWorkload

ROUNDING = 1e-6  # seconds; of sums of floats
PLANTED = {  # (owner, method) -> (part, seconds that each call takes on the simulated clock)
    "valid_counts": ("inputs", 0.001),
    "prepare": ("inputs", 0.002),
    "loss_sums": ("loss", 0.004),
}


def test_the_range_is_read_or_refused() -> None:
    assert profiled_steps("steps:50-60") == (50, 60) and profiled_steps("steps:7") == (7, 7)
    for text in ("50-60", "steps:0-3", "steps:9-3", "steps:", "steps:1-x"):
        with pytest.raises(ConfigError, match=r"profile=.*such as steps:50-60"):
            profiled_steps(text)


def test_a_run_that_ends_before_the_profile_logs_a_line() -> None:
    assert profile_notes("steps:11-20", 4) == ["profile=steps:11-20: no profile is written, because the last update is 4"]
    assert profile_notes("steps:11-20", 20) == profile_notes(None, 4) == []


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A simulated clock for the marks. Only the methods of `PLANTED`, model, backward and the log row move it."""
    now = {"now": 0.0}
    monkeypatch.setattr(sections, "clock", lambda: now["now"])
    for name, (_, taken) in PLANTED.items():
        monkeypatch.setattr(VectorsWorkload, name, _slow(getattr(VectorsWorkload, name), now, taken))
    from linnaeus.optim.update import Precision, Update
    from linnaeus.train.measuring import readings
    from tests.vectors.workload import MLP

    monkeypatch.setattr(MLP, "forward", _slow(MLP.forward, now, 0.1))
    monkeypatch.setattr(Precision, "backward", _slow(Precision.backward, now, 0.2))
    monkeypatch.setattr(Update, "__call__", _slow(Update.__call__, now, 0.05))
    monkeypatch.setattr(readings, "metrics_row", _slow(readings.metrics_row, now, 0.03))
    return now


def _slow(function: Any, now: dict[str, float], taken: float) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        now["now"] += taken
        return function(*args, **kwargs)

    return call


def test_each_part_has_its_time_and_the_parts_add_up(tmp_path: Path, seconds: dict[str, float]) -> None:
    """4 micro-batches an update; validation at step 5 is kept apart. Updates 4 to 6 are timed, 7 to 9 traced."""
    run = runs.run("vectors", tmp_path, "profile=steps:4-9", "schedule.validate=[5steps]", "schedule.log=[1steps]")
    found = json.loads((run / "profile" / "parts.json").read_text())
    assert found["timed"] == [4, 6] and found["traced"] == [7, 9] and list(found["parts"]) == list(PARTS)
    expected = {"inputs": 4 * 0.003, "forward": 0.4, "loss": 0.016, "backward": 0.8, "update": 0.05, "step end": 0.03}
    assert {name: value for name, value in found["parts"].items() if value > 1e-9} == pytest.approx(expected)
    assert found["seconds_per_step"] == pytest.approx(sum(found["parts"].values())) == pytest.approx(sum(expected.values()))
    assert found["aside"]["validation"] > 0 and [update["step"] for update in found["updates"]] == [4, 5, 6]
    text = (run / "profile" / "summary.txt").read_text()
    assert "3 updates (4 to 6), mean 1.31 s each" in text and max(map(len, text.splitlines())) <= 100 and text.count("\n") <= 24
    assert "backward        800 ms" in text and "not in the total" in text and text in (run / "train.log").read_text()


def test_negative_control_a_part_that_is_not_timed_is_in_the_rest(
    tmp_path: Path, seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sections, "_timed_backward", lambda self, backward, waits: backward)
    run = runs.run("vectors", tmp_path, "profile=steps:4")
    parts = json.loads((run / "profile" / "parts.json").read_text())["parts"]
    assert parts["backward"] == 0 and parts["rest"] == pytest.approx(0.8)


def test_the_parts_add_up_to_the_real_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the sum of the parts is a time between two readings of the clock, one in each of two calls of `between_steps`: at least
    from the end of the first call to the start of the second, at most from the start of the first to the end of the second."""
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    original = Sections.between_steps

    def between_steps(self: Sections, t: Any) -> None:
        starts.setdefault(t.progress.global_step, sections.clock())
        original(self, t)
        ends[t.progress.global_step] = sections.clock()

    monkeypatch.setattr(Sections, "between_steps", between_steps)
    run = runs.run("vectors", tmp_path, "profile=steps:3-8", "schedule.checkpoint=[4steps]")
    for update in json.loads((run / "profile" / "parts.json").read_text())["updates"]:
        step = update["step"]
        whole = update["seconds"] + update["validation"] + update["saving"]
        assert starts[step] - ends[step - 1] - ROUNDING <= whole <= ends[step] - starts[step - 1] + ROUNDING


def test_a_profile_changes_no_update_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    original = loop.train_one_step

    def train_one_step(t: Any, window: Any) -> None:
        seen.append({"step": t.progress.global_step + 1, "runner": type(t.runner).__name__, "update": type(t.update).__name__})
        assert ("measure" in vars(t.clock)) == (type(t.runner).__name__ == "TimedCall")
        original(t, window)

    monkeypatch.setattr(loop, "train_one_step", train_one_step)
    plain = runs.run("vectors", tmp_path / "plain")
    assert {one["runner"] for one in seen} == {"MLP"} and not (plain / "profile").exists()
    seen.clear()
    run = runs.run("vectors", tmp_path / "profiled", "profile=steps:2-5")
    assert [one["step"] for one in seen if one["runner"] == "TimedCall"] == [2, 3, 4, 5]
    assert [one["step"] for one in seen if one["update"] != "Update"] == [2, 3, 4, 5]
    assert runs.rows(plain / "metrics.jsonl") == runs.rows(run / "metrics.jsonl")
    events = json.loads((run / "profile" / "trace.json").read_text())["traceEvents"]
    assert {"forward", "loss", "backward", "update"} <= {event.get("name") for event in events}
    assert "aten::" in (run / "profile" / "operations.txt").read_text()


def test_a_run_that_ends_within_the_traced_updates_stops_the_profiler(tmp_path: Path) -> None:
    """A profiler that runs at the exit of the process ends it with a segmentation fault, whatever the exit status would have been."""
    runs.run("vectors", tmp_path, "profile=steps:2-9", "schedule.early_stop.max_steps=7")
    assert not torch.autograd._profiler_enabled()


def test_a_disk_error_of_the_profile_does_not_end_the_run(tmp_path: Path) -> None:
    with patch.object(profiling, "write_atomic", side_effect=OSError(28, "No space left on device")):
        run = runs.run("vectors", tmp_path, "profile=steps:2-5")
    assert runs.summary(run)["status"] == "finished"
    assert f"ERROR {run / 'profile'} could not be written (No space left on device)" in (run / "train.log").read_text()


def test_an_impossible_range_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"profile=steps:3-2: it must be the first and the last update"):
        runs.run("vectors", tmp_path, "profile=steps:3-2")
