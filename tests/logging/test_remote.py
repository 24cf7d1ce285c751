"""W&B and TensorBoard: the same rows, each sent once over any number of starts, and no failure of theirs ends a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from linnaeus.logging import LogSinks
from linnaeus.logging.tensorboard import TensorBoardLogger
from linnaeus.logging.wandb import WandbLogger

ARGUMENTS: dict[str, Any] = {"run_id": "ab12cd34", "project": "tests", "name": "a run", "config": {"seed": 0}}


class FakeRun:
    """What `wandb.init` gives, without the process behind it."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.metrics: list[tuple[str, Any]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: dict[str, Any], step: int) -> None:
        self.rows.append((step, row))

    def finish(self, exit_code: int = 0) -> None: ...


@pytest.fixture
def inits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of every `wandb.init`; each `run` is a FakeRun."""
    wandb = pytest.importorskip("wandb")
    calls: list[dict[str, Any]] = []

    def init(**arguments: Any) -> FakeRun:
        calls.append({**arguments, "run": FakeRun()})
        return calls[-1]["run"]

    monkeypatch.setattr(wandb, "init", init)
    return calls


def test_a_resumed_run_sends_each_row_once_and_its_steps_never_go_back(tmp_path: Path, inits: list[dict[str, Any]]) -> None:
    sinks = LogSinks(tmp_path, [WandbLogger(tmp_path, mode="offline", **ARGUMENTS)])
    for step in (1, 2, 3):
        sinks.log(step, {"loss": float(step)})
        sinks.log(step, {"val": float(step)})  # two rows of one step: both go out
        sinks.log_timings(step, {"t": 0.0})
        if step == 1:
            state = sinks.state_dict()
    # killed here, without a close; the checkpoint is that of step 1
    again = LogSinks(tmp_path, [WandbLogger(tmp_path, mode="offline", **ARGUMENTS)])
    again.resume(state, 1)
    for step in (2, 3, 4):
        again.log(step, {"loss": float(step)})
        again.log(step, {"val": float(step)})
        again.log_timings(step, {"t": 0.0})
    first, second = inits[0]["run"].rows, inits[1]["run"].rows
    assert len(first) == 9 and [row["global_step"] for _, row in second] == [4, 4, 4]
    steps = [step for step, _ in first + second]
    assert steps == sorted(set(steps))
    assert {call["id"] for call in inits} == {"ab12cd34"} and all(call["resume"] == "allow" for call in inits)
    assert ("*", "global_step") in inits[0]["run"].metrics
    assert json.loads((tmp_path / "wandb" / "sent.json").read_text()) == {"metrics": 8, "timings": 4}


def test_negative_control_without_the_note_rows_are_sent_twice(tmp_path: Path, inits: list[dict[str, Any]]) -> None:
    for _ in range(2):
        logger = WandbLogger(tmp_path, mode="offline", **ARGUMENTS)
        logger.log(1, {}, stream="metrics", position=1)
        logger.close()
        (tmp_path / "wandb" / "sent.json").unlink()
    assert [len(call["run"].rows) for call in inits] == [1, 1]


def test_a_failing_init_warns_once_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")

    def fail(**_: Any) -> None:
        raise wandb.errors.UsageError("no API key\nlong explanation")

    warnings: list[str] = []
    monkeypatch.setattr(wandb, "init", fail)
    monkeypatch.setattr("linnaeus.logging.wandb.LOGGER.warning", warnings.append)
    logger = WandbLogger(tmp_path, mode="online", **ARGUMENTS)
    logger.log(1, {"x": 1.0}, stream="metrics", position=1)
    logger.close()
    assert not logger.active and warnings == ["logger.wandb: no W&B from here on, training continues (no API key)"]


@pytest.mark.parametrize("where", ["define_metric", "log", "finish"])
@pytest.mark.parametrize("error", [ConnectionResetError("lost"), RuntimeError("lost")], ids=lambda error: type(error).__name__)
def test_a_w_and_b_that_dies_ends_nothing(tmp_path: Path, inits: list, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception) -> None:
    """Its process may be killed at any moment: what its library raises then is of many kinds."""
    warnings: list[str] = []
    monkeypatch.setattr("linnaeus.logging.wandb.LOGGER.warning", warnings.append)

    def dies(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(FakeRun, where, dies)
    logger = WandbLogger(tmp_path, mode="offline", **ARGUMENTS)
    logger.log(1, {"loss": 0.5}, stream="metrics", position=1)
    logger.close()
    assert not logger.active and warnings == ["logger.wandb: no W&B from here on, training continues (lost)"]


def test_wandb_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("linnaeus.logging.wandb.LOGGER.warning", warnings.append)
    logger = WandbLogger(tmp_path, mode="offline", **ARGUMENTS)
    logger.log(1, {"x": 1.0}, stream="metrics", position=1)
    assert not logger.active and len(warnings) == 1


def test_offline_without_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing: every folder of two starts has the one id."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for start in (1, 2):
        logger = WandbLogger(tmp_path, mode="offline", **ARGUMENTS)
        if not logger.active:
            pytest.skip("wandb cannot start here")
        logger.log(start, {"loss": 0.5}, stream="metrics", position=start)
        logger.close()
    folders = [p for p in (tmp_path / "wandb").iterdir() if p.name.startswith("offline-run-")]
    assert folders and all(p.name.endswith("-ab12cd34") for p in folders)


def test_tensorboard_has_the_rows_and_purges_what_is_replayed(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = TensorBoardLogger(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"train/loss": float(step), "note": "text"}, stream="metrics", position=step)
    first.close()
    second = TensorBoardLogger(tmp_path)
    second.begin(1)
    second.log(2, {"train/loss": 20.0}, stream="metrics", position=2)
    second.close()
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/loss"]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 1.0), (2, 20.0)]
