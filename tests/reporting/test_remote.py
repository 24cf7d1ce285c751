"""W&B and TensorBoard: every row is sent once over any number of launches, and their failures do not end a run."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from linnaeus.reporting import LogSinks
from linnaeus.reporting.sinks import wandb_logger
from linnaeus.reporting.sinks.tensorboard_logger import TensorBoardLogger
from linnaeus.reporting.sinks.wandb_logger import WandbLogger
from linnaeus.reporting.targets.replay_rows import main
from linnaeus.rundir.saved_config import dump_yaml


@pytest.fixture
def wandb_run(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a replacement for the run that `wandb.init` returns, without a process."""
    wandb, run = pytest.importorskip("wandb"), Mock(spec=["define_metric", "log", "status", "finish"])
    monkeypatch.setattr(wandb, "init", Mock(return_value=run))
    return run


def sent(run: Mock) -> list[tuple[int, int]]:
    """Return (step of W&B, global step) of every row that was sent."""
    return [(call.kwargs["step"], call.args[0]["global_step"]) for call in run.log.call_args_list]


def started(run: Path, mode: str = "online") -> WandbLogger:
    return WandbLogger(run, run_id="ab12cd34", mode=mode, project="tests", name="a run", config={"seed": 0})


def log_rows(logger: WandbLogger, *positions: int) -> None:
    for position in positions:
        logger.log(position, {"loss": 0.5}, stream="metrics", position=position)


def test_a_resumed_run_sends_each_row_once_with_increasing_steps(tmp_path: Path, wandb_run: Mock) -> None:
    for state, steps in (({}, (1, 2, 3)), ({"rows": 2}, (2, 3, 4))):  # killed after step 3; the checkpoint is that of step 1
        sinks = LogSinks(tmp_path, [started(tmp_path)])
        sinks.resume(state, steps[0] - 1)
        for step in steps:
            sinks.log(step, {"loss": float(step)})
            sinks.log(step, {"val": float(step)})  # two rows of one step: both are sent
            sinks.log(step, {"t": 0.0}, "timings")
        sinks.sync()
    steps = [step for step, _ in sent(wandb_run)]
    assert steps == sorted(set(steps))
    assert [global_step for _, global_step in sent(wandb_run)] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    calls = sys.modules["wandb"].init.call_args_list
    assert len(calls) == 2 and all((call.kwargs["id"], call.kwargs["resume"]) == ("ab12cd34", "allow") for call in calls)
    wandb_run.define_metric.assert_called_with("*", step_metric="global_step")
    assert json.loads((tmp_path / "wandb" / "sent.json").read_text()) == {"metrics": 8, "timings": 4}


def test_an_offline_launch_sends_the_rows_of_earlier_launches_too(tmp_path: Path, wandb_run: Mock) -> None:
    """A folder of a killed launch lacks its last rows; it is deleted once another one has all of them."""
    folders = [tmp_path / "wandb" / f"offline-run-{number}-ab12cd34" for number in (1, 2)]
    other = tmp_path / "wandb" / "offline-run-1-another"
    for path in (folders[0], other):
        path.mkdir(parents=True)
    state: dict[str, int] = {}
    for state, steps in (({}, (1, 2, 3)), ({"rows": 2}, (3, 4))):
        wandb_run.log.reset_mock()
        sinks = LogSinks(tmp_path, [started(tmp_path, "offline")])
        sinks.resume(state, steps[0] - 1)
        assert folders[0].exists()
        for step in steps:
            sinks.log(step, {"loss": math.nan if step == 2 else 0.5})
            sinks.log(step, {"t": 0.0}, "timings")
        sinks.sync()
    assert sent(wandb_run) == list(enumerate([1, 1, 2, 2, 3, 3, 4, 4], 1))
    assert math.isnan(next(call.args[0]["loss"] for call in wandb_run.log.call_args_list if call.args[0]["global_step"] == 2))
    folders[1].mkdir()
    sinks.close()
    assert not folders[0].exists() and folders[1].exists() and other.exists()


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("interrupted", 0), ("failed", 1)])
def test_a_failed_run_has_failed_at_wandb_too(tmp_path: Path, wandb_run: Mock, status: str, code: int) -> None:
    started(tmp_path).close(status)
    wandb_run.finish.assert_called_once_with(exit_code=code)


def test_a_replay_sends_the_rows_that_were_not_sent_although_an_earlier_line_is_damaged(
    tmp_path: Path, wandb_run: Mock, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "config.yaml").write_text(dump_yaml({"run": {"experiment": "biota"}, "logger": {"wandb_project": "tests"}}))
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "ab12cd34"}))
    lines = [json.dumps({"global_step": step, "loss": 0.5}) if step != 2 else "damaged" for step in range(1, 6)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "sent.json").write_text(json.dumps({"metrics": 3}))
    assert main([str(tmp_path), "--to", "wandb"]) == 0
    assert [step for _, step in sent(wandb_run)] == [4, 5] and "4 rows, 2 rows sent" in capsys.readouterr().out


def test_rows_that_wandb_did_not_take_are_sent_by_the_next_launch(tmp_path: Path, wandb_run: Mock, warnings: list[str]) -> None:
    """For example after a timeout: they are in metrics.jsonl, also those before the checkpoint."""
    wandb_run.log.side_effect = [None, ConnectionResetError("lost")]
    sinks = LogSinks(tmp_path, [started(tmp_path)])
    sinks.resume({}, 0)
    for step in (1, 2, 3, 4):
        sinks.log(step, {"loss": 0.5})
        sinks.sync()
    sinks.close()
    assert len(warnings) == 1
    wandb_run.log.reset_mock(side_effect=True)
    sinks = LogSinks(tmp_path, [started(tmp_path)])
    sinks.resume({"rows": 4}, 4)
    sinks.close()
    assert [global_step for _, global_step in sent(wandb_run)] == [3, 4]  # the second one was on its way


def test_negative_control_without_the_record_rows_are_sent_twice(tmp_path: Path, wandb_run: Mock) -> None:
    for _ in range(2):
        logger = started(tmp_path)
        log_rows(logger, 1)
        logger.close()
        (tmp_path / "wandb" / "sent.json").unlink()
    assert len(sent(wandb_run)) == 2


ERRORS = [ConnectionResetError("lost"), RuntimeError("lost\nlong explanation")]


@pytest.mark.parametrize("where", ["init", "define_metric", "log", "status", "finish"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_wandb_warns_once_and_training_continues(
    tmp_path: Path, wandb_run: Mock, warnings: list[str], where: str, error: Exception
) -> None:
    """wandb raises exceptions of several types when its process was killed."""
    getattr(sys.modules["wandb"] if where == "init" else wandb_run, where).side_effect = error
    logger = started(tmp_path)
    log_rows(logger, 1)
    logger.close()
    assert not logger.active and warnings == ["logger.wandb: W&B gets no more rows in this launch, training continues (lost)"]


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch, wandb_run: Mock) -> Iterator[Callable[[str], None]]:
    """Yield a function that makes a function of W&B, by its name, not return. Timeouts are short."""
    for name, limit in {"START": 0.2, "SEND": 0.1, "WAIT": 0.2, "FINISH": 0.2, "KILL": 0.1}.items():
        monkeypatch.setattr(wandb_logger, f"{name}_TIMEOUT", limit)
    released = threading.Event()

    def wait(*_: Any, **__: Any) -> None:
        assert released.wait(60)

    def block(name: str) -> None:
        getattr(sys.modules["wandb"] if name == "init" else wandb_run, name).side_effect = wait

    yield block
    released.set()


@pytest.mark.parametrize("where", ["init", "define_metric", "log", "status", "finish"])
def test_wandb_without_an_answer_does_not_block_the_run(tmp_path: Path, blocked: Any, warnings: list[str], where: str) -> None:
    blocked(where)
    began = time.monotonic()
    logger = started(tmp_path)
    assert logger.active == (where not in ("init", "define_metric"))
    for position in range(1, 8):
        log_rows(logger, position)
        time.sleep(0.03)
    logger.sync()
    logger.close()
    assert time.monotonic() - began < 3 and not logger.active
    assert len(warnings) == 1 and "training continues (no" in warnings[0]


def test_a_stop_while_wandb_starts(tmp_path: Path, blocked: Any, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed at once: the logger cannot be closed, and W&B's own exit would wait for it."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    killed: list[threading.Thread] = []
    blocked("init")
    monkeypatch.setattr(wandb_logger, "_kill_children_of", killed.append)
    monkeypatch.setattr(WandbLogger, "_wait", stop)
    with pytest.raises(KeyboardInterrupt):
        started(tmp_path)
    assert [thread.name for thread in killed] == ["wandb"] and warnings == []


def test_a_row_that_was_not_sent_is_not_recorded(tmp_path: Path, blocked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run sends it. A checkpoint waits for queued rows for a limited time."""
    monkeypatch.setattr(wandb_logger, "SEND_TIMEOUT", 60.0)  # a slow disk does not block the queue
    logger = started(tmp_path)
    log_rows(logger, 1)
    logger.sync()
    blocked("log")
    log_rows(logger, 2, 3, 4)
    began = time.monotonic()
    logger.sync()
    assert time.monotonic() - began > 0.1
    assert json.loads((tmp_path / "wandb" / "sent.json").read_text()) == {"metrics": 2}  # the call for the second one has not returned
    logger.close()


def test_a_full_queue_slows_logging_down_to_the_speed_of_wandb(
    tmp_path: Path, wandb_run: Mock, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    monkeypatch.setattr(wandb_logger, "MAX_QUEUED", 5)
    wandb_run.log.side_effect = lambda row, step: time.sleep(0.002)
    logger = started(tmp_path)
    longest = 0
    for position in range(1, 101):
        log_rows(logger, position)
        longest = max(longest, len(logger._queue))
    logger.close()
    assert sent(wandb_run) == [(step, step) for step in range(1, 101)]
    assert longest <= 7 and warnings == []


@pytest.mark.parametrize("record", [b'{"metrics": 3, "tim', b"[1]"])
def test_a_damaged_record_is_replaced_by_the_numbers_of_rows(tmp_path: Path, wandb_run: Mock, record: bytes) -> None:
    """A row is written to its file before it is sent, so no row is sent twice."""
    (tmp_path / "metrics.jsonl").write_text('{"global_step": 1}\n' * 3)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "sent.json").write_bytes(record)
    for _ in range(2):
        logger = started(tmp_path)
        log_rows(logger, 2, 3, 4)
        logger.close()
    assert sent(wandb_run) == [(4, 4)]
    assert json.loads((tmp_path / "wandb" / "sent.json").read_text()) == {"metrics": 4, "timings": 0}


STOPPED = """
import os, signal, sys, time
from pathlib import Path
import linnaeus.reporting.sinks.wandb_logger as module
if __name__ == "__main__":
    module.SEND_TIMEOUT, module.WAIT_TIMEOUT = 1.0, 1.0
    logger = module.WandbLogger(Path(sys.argv[1]), run_id="ab12cd34", mode="offline", project="tests", name="a run", config={})
    if not logger.active:
        sys.exit(3)
    logger.log(0, {"loss": 0.5}, stream="metrics", position=1)
    logger.sync()
    pid = int(Path(f"/proc/self/task/{logger._thread.native_id}/children").read_text())
    os.kill(pid, signal.Signals[sys.argv[2]])
    for position in range(2, 2 + int(sys.argv[3])):
        logger.log(position, {"loss": 0.5}, stream="metrics", position=position)
    print(pid, flush=True)
    if sys.argv[4] == "closed":
        logger.close()
"""


@pytest.mark.parametrize(
    "how",
    [
        ("SIGSTOP", "1", "left"),
        pytest.param(("SIGSTOP", "1500", "closed"), marks=pytest.mark.slow),
        pytest.param(("SIGKILL", "1", "left"), marks=pytest.mark.slow),
    ],
    ids=lambda how: "-".join(how),
)
def test_the_wandb_process_is_stopped_or_killed(tmp_path: Path, how: tuple[str, str, str]) -> None:
    """With the real wandb: the run ends with status 0 and one line, also without a call of `close`, and no process remains."""
    pytest.importorskip("wandb")
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", STOPPED, str(tmp_path), *how]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if found.returncode == 3:
        pytest.skip("wandb cannot start here")
    text = found.stdout + found.stderr
    assert found.returncode == 0, text
    assert text.count("W&B gets no more rows") == 1 and "Traceback" not in text, text
    pid = next(line for line in found.stdout.splitlines() if line.isdecimal())
    assert not Path(f"/proc/{pid}").exists()


def test_wandb_not_installed(tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    logger = started(tmp_path)
    log_rows(logger, 1)
    assert not logger.active and len(warnings) == 1


def test_tensorboard_has_the_rows_and_purges_those_that_are_logged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for start, rows in ((0, {1: 1.0, 2: 2.0, 3: 3.0}), (1, {2: 20.0})):
        # The files are read in the order of their names, which begin with the second and end with a number per process: 10 sorts before 9.
        monkeypatch.setattr(time, "time", lambda start=start: 1_800_000_000.0 + start)
        logger = TensorBoardLogger(tmp_path)
        logger.start(start)
        for step, value in rows.items():
            logger.log(step, {"train/loss": value, "note": "text"}, stream="metrics", position=step)
        logger.close()
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/loss"]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 1.0), (2, 20.0)]
