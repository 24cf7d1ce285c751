"""`linnaeus replay` and the live sinks: a destination holds each row of the files once, after any number of replays, kills and resumes.

Every destination is read back with its own reader. Those whose package is not installed are skipped; CSV and TensorBoard always run."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from linnaeus.files import to_json
from linnaeus.reporting import LogSinks, loggers
from linnaeus.reporting.jsonl.rows import format_row
from linnaeus.reporting.sinks import csv_logger, follower
from linnaeus.reporting.sinks.csv_logger import CsvLogger
from linnaeus.reporting.sinks.follower import Follower
from linnaeus.reporting.sinks.tensorboard_logger import TensorBoardLogger
from linnaeus.reporting.targets import replay_rows
from linnaeus.reporting.targets.replay_rows import main
from linnaeus.rundir.lock import RunLock
from linnaeus.rundir.saved_config import dump_yaml
from tests import runs, watching

Found = Counter[tuple[int, str, str]]  # (step, name, value as text) -> how often

ROWS = [
    {"global_step": 1, "train/loss": 2.5, "train/skipped_updates": 0},
    {"global_step": 2, "train/loss": 1 / 3, "train/skipped_updates": 1},
    {"global_step": 2, "val/loss": math.nan, "val/species/top1": math.inf},
    {"global_step": 3, "train/loss": 1e-30, "train/skipped_updates": 1},
]
CLOCK = [{"global_step": step, "time/wall_seconds": 1.5 * step} for step in (1, 2, 3)]


def write_rows(run: Path, rows: list[dict[str, Any]] = ROWS, clock: list[dict[str, Any]] = CLOCK) -> None:
    for name, content in (("metrics", rows), ("timings", clock)):
        lines = [format_row(row["global_step"], {k: v for k, v in row.items() if k != "global_step"}) for row in content]
        (run / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run directory with rows. Databases of the destinations are in the same temporary folder."""
    path = tmp_path / "biota" / "first"
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(dump_yaml({"run": {"experiment": "biota"}, "logger": {"wandb_project": "tests"}, "seed": 0}))
    (path / "run.json").write_text(to_json({"run_id": "ab12cd34", "created": "2026-11-24T05:43:55+0000"}))
    write_rows(path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    if importlib.util.find_spec("trackio") is not None:  # read once, at its import
        monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return path


def values(rows: list[dict[str, Any]]) -> Found:
    """Return the values of rows. A null is NaN; an infinity is the largest number, which databases keep in its place."""
    found: Found = Counter()
    for row in rows:
        step = int(row.get("global_step", row.get("step", -1)))
        for name, value in row.items():
            if name not in ("global_step", "step", "timestamp", "_step"):
                number = math.nan if value in (None, "NaN") else float(value)
                found[step, name, repr(math.copysign(sys.float_info.max, number) if math.isinf(number) else number)] += 1
    return found


def in_files(run: Path) -> Found:
    lines = [line for name in ("metrics", "timings") for line in (run / f"{name}.jsonl").read_text().splitlines()]
    return values([json.loads(line) for line in lines])


# -- the readers of the destinations -------------------------------------------------------------------------------------------


def in_csv(run: Path) -> Found:
    found: Found = Counter()
    for name in ("metrics", "timings"):
        with open(run / "csv" / f"{name}.csv", newline="") as file:
            found += values([{key: text for key, text in row.items() if text != ""} for row in csv.DictReader(file)])
    return found


def in_tensorboard(run: Path) -> Found:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    return values([{"global_step": e.step, name: e.value} for name in accumulator.Tags()["scalars"] for e in accumulator.Scalars(name)])


def in_wandb(run: Path) -> Found:
    from tests.e2e.test_wandb_restarts import sent

    rows = [{k: v for k, v in row.items() if not k.startswith("_")} for _, _, row in sent(run)]
    return values([{k: {"NaN": math.nan, "Infinity": math.inf}.get(v, v) if isinstance(v, str) else v for k, v in r.items()} for r in rows])


def in_mlflow(run: Path) -> Found:
    from mlflow import MlflowClient

    client, rows = MlflowClient(), []
    experiment = client.get_experiment_by_name("biota")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "first" and found.data.params["logger.wandb_project"] == "tests"
    for name in found.data.metrics:
        rows += [{"global_step": m.step, name: m.value} for m in client.get_metric_history(found.info.run_id, name)]
    return values(rows)


def in_trackio(run: Path) -> Found:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    (found,) = trackio.Api().runs("tests")
    assert (found.name, found.id) == ("biota/first", "ab12cd34")
    return values(SQLiteStorage.get_logs("tests", found.name, run_id=found.id))


READERS: dict[str, Callable[[Path], Found]] = {
    "csv": in_csv, "tensorboard": in_tensorboard, "wandb": in_wandb, "mlflow": in_mlflow, "trackio": in_trackio,
}  # fmt: skip


def sent_to(target: str, run: Path) -> int:
    return main([str(run), "--to", target, *(["--offline"] if target == "wandb" else [])])


def rounded(found: Found) -> Found:
    """Return values in float32, in which TensorBoard keeps them."""
    import numpy as np

    with np.errstate(all="ignore"):
        return Counter({(step, name, repr(float(np.float32(float(text))))): n for (step, name, text), n in found.items()})


@pytest.mark.parametrize("target", READERS)
def test_replayed_twice_and_after_a_resume_it_holds_the_rows_of_the_files(run: Path, target: str, capsys: pytest.CaptureFixture) -> None:
    """The resumed run has cut a row away that an earlier replay sent, and written others."""
    if target != "csv":
        pytest.importorskip(target)
    same = (lambda found: rounded(found)) if target == "tensorboard" else (lambda found: found)
    later = [ROWS[:3], [*ROWS[:3], {"global_step": 3, "train/loss": 0.25}, {"global_step": 4, "train/loss": 0.125}]]
    for rows in (ROWS, ROWS, *later):
        write_rows(run, rows)
        assert sent_to(target, run) == 0
        assert same(READERS[target](run)) == same(in_files(run))
    out = capsys.readouterr().out
    if target in ("mlflow", "trackio"):
        assert ", 0 " in out.splitlines()[1], out


@pytest.mark.parametrize("target", ["mlflow", "trackio"])
def test_a_replay_that_was_cut_off_is_completed(run: Path, target: str) -> None:
    pytest.importorskip(target)
    write_rows(run, ROWS[:2], CLOCK[:1])
    assert sent_to(target, run) == 0
    write_rows(run)
    assert sent_to(target, run) == 0
    assert READERS[target](run) == in_files(run)


def test_negative_control_rows_are_sent_twice_if_the_destination_is_not_read(run: Path) -> None:
    pytest.importorskip("trackio")
    from linnaeus.reporting.targets.trackio_run import TrackioRun

    with mock.patch.object(TrackioRun, "_read", lambda *_: []):
        assert sent_to("trackio", run) == sent_to("trackio", run) == 0
    assert in_trackio(run) == Counter({key: 2 * n for key, n in in_files(run).items()})


# -- mistakes and failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--to", "csv", "--uri", "x"], "--uri has no effect with --to csv; it belongs to --to mlflow"),
        (["--to", "mlflow", "--offline"], "--offline has no effect"),
        (["--to", "excel"], "invalid choice: 'excel'"),
        (["--to", "wnadb"], "did you mean wandb?"),
    ],
)
def test_a_mistake_is_one_line_with_status_2(run: Path, words: list[str], line: str, capsys: pytest.CaptureFixture) -> None:
    before = sorted(run.parent.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main([str(run), *words])
    (printed,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line in printed and printed.startswith("error: ") and sorted(run.parent.rglob("*")) == before


def test_a_folder_that_is_not_a_run_and_a_package_that_is_missing(
    run: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(run.parent), "--to", "csv"])
    assert ended.value.code == 2 and "is not a run directory" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main([str(run), "--to", "mlflow"])
    assert ended.value.code == 2 and "pip install 'linnaeus[mlflow]'" in capsys.readouterr().err


def test_a_destination_that_fails_is_one_line_with_status_1(run: Path, capsys: pytest.CaptureFixture) -> None:
    (run / "csv").write_text("a file in the way")
    with pytest.raises(SystemExit) as ended:
        main([str(run), "--to", "csv"])
    err = capsys.readouterr().err
    assert ended.value.code == 1 and err.startswith("error: --to csv: ") and len(err.splitlines()) == 1


# -- while a run trains ---------------------------------------------------------------------------------------------------------


def test_the_tables_of_a_resumed_run_are_its_rows(tmp_path: Path) -> None:
    (tmp_path / "biota").mkdir()
    for state, steps in (({}, (1, 2, 3)), ({"rows": 4}, (3, 4))):  # killed after step 3; the checkpoint is that of step 2
        sinks = LogSinks(tmp_path / "biota", [CsvLogger(tmp_path / "biota")])
        sinks.resume(state, steps[0] - 1)
        for step in steps:
            sinks.log(step, {"train/loss": 1 / step})
            sinks.log(step, {f"val/{step}": math.nan, "val/loss": math.inf})  # a new column at each step
            sinks.log(step, {"time/wall_seconds": 1.0}, "timings")
        sinks.sync()
        assert in_csv(tmp_path / "biota") == in_files(tmp_path / "biota")
        sinks.close()


def test_tables_that_are_replaced_or_deleted_while_a_run_trains_have_its_rows(run: Path) -> None:
    sinks = LogSinks(run, [CsvLogger(run)])
    sinks.resume({}, 0)
    for step in range(1, 6):
        sinks.log(step, {"train/loss": 1 / step, "train/grad_norm": float(step)})  # a file has its names in alphabetical order
        sinks.log(step, {"time/wall_seconds": float(step)}, "timings")
        if step == 2:
            sent_to("csv", run)
        elif step == 3:
            (run / "csv" / "metrics.csv").unlink()
    assert in_csv(run) == in_files(run)


@pytest.mark.parametrize(
    ("target", "value", "words"),
    [
        ("tensorboard", True, []),
        ("wandb", "offline", ["--offline"]),
        ("wandb", "offline", []),  # it would remove the folder that the launch writes
        ("wandb", "online", []),  # rows that wait would be sent twice
    ],
)
def test_the_place_that_a_running_launch_writes_to_is_refused(
    run: Path, target: str, value: Any, words: list[str], capsys: pytest.CaptureFixture
) -> None:
    """The launch has its files open: its later rows would be lost with the old folder."""
    (run / "config.yaml").write_text(dump_yaml({"run": {"experiment": "biota"}, "logger": {target: value}, "seed": 0}))
    lock = RunLock(run / "lock")
    lock.acquire()
    with pytest.raises(SystemExit) as ended:
        main([str(run), "--to", target, *words])
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(lines) == 1 and f"trains with logger.{target}=" in lines[0] and not (run / target).exists()
    lock.release()
    assert sent_to(target, run) == 0


def test_a_place_that_the_launch_does_not_write_to_is_not_refused(run: Path) -> None:
    """Replay to a folder and to tables while the launch sends to the server."""
    pytest.importorskip("wandb")
    (run / "config.yaml").write_text(dump_yaml({"run": {"experiment": "biota"}, "logger": {"wandb": "online"}, "seed": 0}))
    lock = RunLock(run / "lock")
    lock.acquire()
    assert sent_to("wandb", run) == sent_to("csv", run) == 0
    lock.release()


@pytest.mark.parametrize("target", ["mlflow", "trackio", "csv"])
def test_a_replay_beside_another_process_that_sends_is_one_line(
    run: Path, target: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with `logger.mlflow=true` has such a process until its end, for which a second replay would wait in silence."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    opened, flock = mock.Mock(return_value=mock.Mock(send=lambda run: 0, place="there")), fcntl.flock
    monkeypatch.setattr(replay_rows, "_open", opened)

    def not_waiting(descriptor: int, how: int) -> None:
        assert how & fcntl.LOCK_NB
        flock(descriptor, how)

    with replay_rows.exclusive(run, target, wait=True), pytest.raises(SystemExit) as ended:
        monkeypatch.setattr(replay_rows.fcntl, "flock", not_waiting)
        main([str(run), "--to", target])
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(lines) == 1 and f"another process sends its rows to {target}" in lines[0]
    assert (f"logger.{target}=true" in lines[0]) == (target != "csv") and not opened.called
    assert main([str(run), "--to", target]) == 0 and opened.called


def test_the_process_beside_a_run_waits_for_a_replay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the rows of the launch although a replay is running at its start."""
    closed, waits, flock = mock.Mock(), threading.Event(), replay_rows.fcntl.flock

    def locking(descriptor: int, how: int) -> None:
        waits.set()
        flock(descriptor, how)

    monkeypatch.setattr(replay_rows, "_open", lambda *_: mock.Mock(close=closed))
    monkeypatch.setattr(replay_rows.signal, "signal", lambda *_: None)  # not in a thread
    options = replay_rows.parse([str(run), "--to", "trackio", "--follow"])
    thread = threading.Thread(target=replay_rows.follow, args=(run, options))
    with open(os.devnull) as ended:
        monkeypatch.setattr(sys, "stdin", ended)
        with replay_rows.exclusive(run, "trackio", wait=False):
            monkeypatch.setattr(replay_rows.fcntl, "flock", locking)
            thread.start()
            assert waits.wait(60) and not closed.called
        thread.join(60)
    assert closed.called


def test_names_that_mlflow_refuses_have_underscores(run: Path) -> None:
    pytest.importorskip("mlflow")
    write_rows(run, [{"global_step": 1, "val/Rank (1=best)/top1": 0.5}])
    sent_to("mlflow", run)
    assert (1, "val/Rank _1_best_/top1", "0.5") in in_mlflow(run)


def test_event_files_have_the_rows_of_launches_without_them(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches 2 and 4 write no event files; each launch ends at a checkpoint."""
    names = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    # names of one second end in this number, which TensorBoard sorts as text
    monkeypatch.setattr(names, "_global_uid", names.AtomicCounter(0))
    saved: dict[str, int] = {}
    for launch in range(1, 7):
        sinks = LogSinks(run, [] if launch in (2, 4) else [TensorBoardLogger(run)])
        sinks.resume(saved, launch - 1)
        sinks.log(launch, {"train/loss": 1 / launch})
        sinks.log(launch, {"time/wall_seconds": float(launch)}, "timings")
        saved = sinks.state_dict()
        sinks.close()
        if launch not in (2, 4):
            assert in_tensorboard(run) == rounded(in_files(run))
        files = len(list((run / "tensorboard").iterdir()))
        assert files == {1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 3}[launch]  # launches 3 and 5 replace the earlier ones


def test_event_files_have_a_row_once_that_was_written_after_the_checkpoint_of_its_step(run: Path) -> None:
    """A launch saves at step 1, writes the row of a validation at this step, and is killed. The next launch writes this row again."""
    saved: dict[str, int] = {}
    for step in (0, 1):
        sinks = LogSinks(run, [TensorBoardLogger(run)])
        sinks.resume(saved, step)
        if step == 0:
            sinks.log(1, {"train/loss": 1.0})
            saved = sinks.state_dict()
        sinks.log(1, {"val/loss": 0.5})
        sinks.close()
    assert in_tensorboard(run) == in_files(run)


def test_a_disk_error_of_the_tables_is_one_line(tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_logger, "write_atomic", mock.Mock(side_effect=OSError(28, "No space left on device")))
    sinks = LogSinks(tmp_path, [CsvLogger(tmp_path)])
    sinks.resume({}, 0)
    for step in (1, 2):
        sinks.log(step, {"loss": 1.0})
    sinks.close()
    assert warnings == ["logger.csv: no more rows are written to csv/, training continues ([Errno 28] No space left on device)"]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_the_process_beside_a_run_sends_its_rows_and_may_be_killed(run: Path, warnings: list[str]) -> None:
    pytest.importorskip("trackio")
    for killed in (True, False):
        sinks = LogSinks(run, [Follower(run, "trackio")])
        sinks.resume({"rows": 3}, 2)
        sinks.log(3, {"train/loss": 0.5})
        if killed:
            process = sinks.sinks[0]._process
            process.kill()
            process.wait()
        sinks.log(4, {"train/loss": 0.25})
        sinks.sync()
        sinks.close()
    assert in_trackio(run) == in_files(run)
    assert len(warnings) == 1 and "`linnaeus replay` sends the rest" in warnings[0] and "training continues" in warnings[0]


@pytest.mark.parametrize("target", ["mlflow", "trackio"])
def test_a_missing_package_is_one_line_at_the_start(
    target: str, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = runs.configuration("vectors", tmp_path, f"logger.{target}=true")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert loggers.build_loggers(config, mock.Mock(path=tmp_path)) == []
    line = f"logger.{target} needs the package {target}: pip install 'linnaeus[{target}]'; no rows are sent, and training continues"
    assert warnings == [line]


@pytest.mark.parametrize(
    ("program", "line"),
    [("import sys; print('error: it is full'); sys.exit(1)", "it is full"), ("import time; time.sleep(60)", "not sent after 0 s")],
    ids=["fails", "hangs"],
)
def test_a_process_that_fails_or_hangs_is_one_line_and_blocks_nothing(
    run: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch, program: str, line: str
) -> None:
    monkeypatch.setattr(follower, "END_TIMEOUT", 0.3)
    sink = Follower(run, "mlflow")
    sink._command = [sys.executable, "-c", program]
    sink.start(0, [])
    process = sink._process
    assert process is not None
    if line == "it is full":
        process.wait()
    for position in range(3):
        sink.log(1, {}, stream="metrics", position=position)
    sink.close()
    process.kill()
    process.wait()
    assert len(warnings) == 1 and line in warnings[0] and "training continues" in warnings[0]


def test_the_process_is_told_the_status_that_summary_json_does_not_contain_yet(run: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from unittest.mock import Mock; from linnaeus.reporting.targets import replay_rows as r; "
        "r._open = lambda run, options: Mock(close=lambda status: print('closed as', status)); "
        "r.follow(Path(sys.argv[1]), r.parse([sys.argv[1], '--to', 'trackio', '--follow']))"
    )
    sink = Follower(run, "trackio")
    sink._command = [sys.executable, "-c", script, str(run)]
    sink.start(0, [])
    sink.close("finished")
    assert (run / "trackio.log").read_text() == "closed as finished\n"


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
def test_a_destination_is_told_how_the_run_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    sink = mock.Mock(spec=CsvLogger)
    monkeypatch.setattr("linnaeus.train.outputs.build_loggers", lambda config, directory: [sink])
    config = runs.configuration("vectors", tmp_path, "trainer.length=2steps")
    if status == "failed":
        sink.log.side_effect = RuntimeError("out of order")
        with pytest.raises(RuntimeError, match="out of order"):
            runs.start(config)
    else:
        with watching.stopped_at(1) if status == "interrupted" else contextlib.nullcontext():
            runs.start(config)
    assert runs.summary(runs.run_path(config))["status"] == status
    assert {call.args for call in sink.close.call_args_list} == {(status,)}


def test_the_process_ends_when_the_run_is_killed(run: Path) -> None:
    """The pipe ends with the run, in whatever way it ends."""
    script = "import sys, time; from pathlib import Path; from linnaeus.reporting.sinks.follower import Follower; "
    script += "f = Follower(Path(sys.argv[1]), 'mlflow'); f._command = [sys.executable, '-c', 'import sys; sys.stdin.read()']; "
    script += "f.start(0, []); print(f._process.pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script, str(run)], stdout=subprocess.PIPE, text=True, cwd=runs.ROOT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()

    def ended() -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    runs.wait_until(ended)
