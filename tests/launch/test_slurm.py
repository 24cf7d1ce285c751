"""`launch=slurm` without a SLURM: what happens inside a job, with a pretended run and `scontrol`, and how jobs are submitted, found
again and followed. A real SLURM is in `tests/slurm`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from linnaeus.config import compose
from linnaeus.errors import ConfigError
from linnaeus.launch import base, slurm
from linnaeus.launch.slurm_job import settle
from linnaeus.launch.slurm_request import job_name, records_of, run_in_job, sbatch_settings
from tests import runs

# A run: `saves` at SIGTERM (a checkpoint of the next step), is `deaf` to it, `fails`, or has nothing left to do; it says when it is up.
RUN = """
import json, pathlib, signal, sys, time
what, run = sys.argv[1], pathlib.Path(sys.argv[2])
def saves(*_):
    with (run / "heard").open("a") as file:
        file.write("TERM ")
    if what == "saves":
        steps = len(list((run / "checkpoints").glob("step-*")))
        (run / f"checkpoints/step-{steps + 1:08d}").mkdir(parents=True)
        sys.exit(75)
    if what == "stuck":
        sys.exit(75)
signal.signal(signal.SIGTERM, saves)
if what in ("fails", "finished"):
    print("as it should")
    sys.exit(1 if what == "fails" else 0)
(run / "up").touch()
time.sleep(60)
"""
SCONTROL = """#!/bin/sh
echo "$@" >> {folder}/scontrol
test ! -e {folder}/refuses || {{ echo "requeueing is disabled" >&2; exit 1; }}
"""
IN_JOB = """
import sys
from pathlib import Path
from linnaeus.launch import slurm_job
slurm_job.TO_REQUEUE = 9.0
run = Path(sys.argv[2])
slurm_job.RunInJob(sys.argv[1:], 1, 1, run, run / "slurm", run / "log", 10, int(sys.argv[3]))()
"""


class Work:
    """A job of SLURM's that is started as often as it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        (self.run / "slurm").mkdir(parents=True)
        (folder / "run.py").write_text(RUN)
        (folder / "bin").mkdir()
        (folder / "bin/scontrol").write_text(SCONTROL.format(folder=folder))
        (folder / "bin/scontrol").chmod(0o755)

    def start(self, what: str, max_requeues: int = 9) -> subprocess.Popen[bytes]:
        (self.run / "up").unlink(missing_ok=True)
        variables = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        code = IN_JOB.replace("sys.argv[1:]", repr([str(self.folder / "run.py"), what, str(self.run)]))
        arguments = [sys.executable, "-c", code, what, str(self.run), str(max_requeues)]
        process = subprocess.Popen(arguments, cwd=runs.ROOT, env={**os.environ, **variables})
        end = time.monotonic() + 30
        while what not in ("fails", "finished") and not (self.run / "up").exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.02)
        return process

    def asked_to_requeue(self) -> int:
        path = self.folder / "scontrol"
        return path.read_text().count("requeue 7") if path.exists() else 0

    def ended(self) -> tuple[int, str] | None:
        path = self.run / "slurm/ended.json"
        found = json.loads(path.read_text()) if path.exists() else None
        assert found is None or found["job"] == "7"
        return found and (found["status"], found["why"])


@pytest.fixture
def work(tmp_path):
    return Work(tmp_path)


def after_the_signal(work: Work, what: str, *signals: signal.Signals, **settings: int) -> int:
    process = work.start(what, **settings)
    for number in signals or [signal.SIGUSR2]:
        process.send_signal(number)
    return process.wait(30)


def test_before_its_time_limit_a_run_is_asked_once_to_save_and_its_job_is_requeued(work):
    for start in (1, 2):
        assert after_the_signal(work, "saves", signal.SIGUSR2, signal.SIGUSR2) == 75
        assert work.asked_to_requeue() == start and work.ended() is None
    assert (work.run / "heard").read_text() == "TERM TERM "
    assert json.loads((work.run / "slurm/requeues.json").read_text())["requeues"] == 2


def test_a_run_that_ends_by_itself_is_not_requeued(work):
    assert work.start("finished").wait(30) == 0 and work.ended() == (0, "")
    assert work.start("fails").wait(30) == 1 and work.ended() == (1, "")
    assert work.asked_to_requeue() == 0
    assert (work.run / "log").read_text() == "as it should\n" * 2


def test_a_run_that_slurm_preempts_is_left_to_slurm(work):
    """It signals every process of the job itself, and requeues the job or cancels it."""
    process = work.start("saves")
    pids = [int(line) for line in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    for pid in (process.pid, *pids):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(30) == 75
    assert work.asked_to_requeue() == 0 and work.ended() == (75, "") and (work.run / "heard").read_text() == "TERM "


def test_a_run_that_has_not_saved_by_its_time_limit_is_requeued_all_the_same(work):
    assert after_the_signal(work, "deaf") == 75
    assert work.asked_to_requeue() == 1 and work.ended() is None


def test_a_stop_file_keeps_the_job_from_coming_back(work):
    (work.run / "slurm/stop").touch()
    assert after_the_signal(work, "saves") == 75
    assert work.asked_to_requeue() == 0 and work.ended() == (75, "")


def test_requeueing_has_its_limit_and_may_be_refused(work):
    assert after_the_signal(work, "saves", max_requeues=0) == 75
    assert work.asked_to_requeue() == 0 and work.ended() == (75, "launch.max_requeues=0 is reached")
    (work.folder / "refuses").touch()
    assert after_the_signal(work, "saves") == 75
    assert work.ended() == (75, "SLURM does not requeue it: requeueing is disabled")


def test_a_run_that_gets_nowhere_is_given_up(work):
    starts = [after_the_signal(work, "stuck") for _ in range(4)]
    assert starts == [75, 75, 75, 1] and work.asked_to_requeue() == 3
    assert work.ended()[1].startswith("no checkpoint was written in 3 starts in a row")
    assert (work.run / "log").read_text().startswith("error: no checkpoint was written")


@pytest.mark.parametrize(
    ("code", "status", "launches", "asked", "settled"),
    [
        (0, "running", 2, False, 0),
        (2, None, 1, False, 2),
        (75, None, 1, False, 75),
        (143, "interrupted", 2, True, 75),  # torchrun after a request to stop
        (143, "finished", 2, True, 0),
        (143, "failed", 2, True, 1),
        (143, "interrupted", 1, False, 1),  # of an earlier start
        (143, "interrupted", 1, True, 75),  # stopped while it still started up
        (1, "running", 2, False, 1),
        (None, "running", 2, True, 75),
    ],
)
def test_what_a_run_has_written_decides_how_it_ended(tmp_path, code, status, launches, asked, settled):
    """`launches`: how many there are at the end; there was one before."""
    for number in range(1, launches + 1):
        (tmp_path / "launches" / str(number)).mkdir(parents=True)
    if status:
        (tmp_path / "summary.json").write_text(json.dumps({"status": status}))
    assert settle(code, tmp_path, 1, asked) == settled


# -- from outside ----------------------------------------------------------------------------------------------------------------


class Submitit(types.ModuleType):
    """Takes jobs as submitit does."""

    class FailedJobError(Exception):
        pass

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("submitit")
        self.core = types.SimpleNamespace(utils=types.SimpleNamespace(FailedJobError=self.FailedJobError))
        self.SlurmExecutor = lambda folder: types.SimpleNamespace(update_parameters=cluster.expects, submit=cluster.takes)


class Cluster:
    """What SLURM's programs and submitit say: `queue` is number -> (state, name)."""

    def __init__(self) -> None:
        self.queue: dict[str, tuple[str, str]] = {}
        self.calls: list[list[str]] = []
        self.answers, self.refuses = True, ""
        self.environment: dict[str, str] = {}

    def run(self, command: list[str], **_: object) -> types.SimpleNamespace:
        self.calls.append(command)
        lines = "\n".join(f"{number}|{state}|None|{name}" for number, (state, name) in self.queue.items())
        return types.SimpleNamespace(returncode=int(not self.answers), stdout=lines, stderr="slurm_load_jobs error: Unable to contact")

    def expects(self, **settings: object) -> None:
        self.name = str(settings["job_name"])

    def takes(self, run: object) -> types.SimpleNamespace:
        self.environment = dict(os.environ)
        if self.refuses:
            raise Submitit.FailedJobError(self.refuses)
        number = str(len(self.queue) + 1)
        self.queue[number] = ("RUNNING", self.name)
        return types.SimpleNamespace(job_id=number)


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster()
    monkeypatch.setitem(sys.modules, "submitit", Submitit(made))
    monkeypatch.setattr(slurm.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(slurm.subprocess, "run", made.run)
    monkeypatch.setattr(slurm, "SETTLING", 0.0)
    return made


def launcher(*more: str) -> slurm.SlurmLauncher:
    return slurm.SlurmLauncher(compose(["launch=slurm", "launch.poll=0.001", *more]).launch)


@pytest.fixture
def job(tmp_path):
    return base.Job(["seed=1"], tmp_path / "runs/birds/run", None, tmp_path / "log")


def polled(handle: slurm.SlurmHandle) -> int | None:
    time.sleep(0.002)
    return handle.poll()


def test_a_job_is_followed_until_it_has_left_the_queue(cluster, job):
    handle = launcher().start(job)
    records = records_of(job.directory)
    assert polled(handle) is None and handle.describe() == "SLURM job 1"
    (records / "ended.json").write_text(json.dumps({"job": "1", "status": 75, "why": ""}))  # preempted: it will be back
    cluster.queue["1"] = ("PENDING", cluster.name)
    assert polled(handle) is None
    cluster.answers = False
    del cluster.queue["1"]
    assert polled(handle) is None, "a controller that does not answer says nothing of a job"
    cluster.answers = True
    (records / "ended.json").write_text(json.dumps({"job": "1", "status": 0, "why": ""}))
    assert polled(handle) == 0


def test_a_later_command_finds_the_job_instead_of_submitting_a_second_one(cluster, job):
    launcher().start(job)
    other = base.Job(["seed=2"], job.directory.with_name("other"), None, job.log)
    again = launcher()
    assert [again.start(one).describe() for one in (job, other)] == ["SLURM job 1", "SLURM job 2"] and len(cluster.queue) == 2
    cluster.answers = False
    with pytest.raises(ConfigError, match="does not answer"):
        launcher().start(job)


def test_a_job_that_slurm_ended_tells_where_to_look(cluster, job):
    handle = launcher().start(job)
    cluster.queue.clear()
    assert polled(handle) == 1
    assert "error: SLURM ended job 1 before the run could; see" in job.log.read_text()
    (job.directory / "summary.json").write_text('{"status": "finished"}')
    assert polled(handle) == 0


def test_stopping_asks_first_and_cancels_then(cluster, job):
    handle = launcher().start(job)
    handle.stop()
    assert (records_of(job.directory) / "stop").exists()
    handle.stop()
    asked = [call for call in cluster.calls if call[0] == "scancel"]
    assert asked == [["scancel", "--state=PENDING", "1"], ["scancel", "--signal=USR2", "1"], ["scancel", "1"]]
    cluster.queue.clear()
    assert launcher().start(job).describe() == "SLURM job 1"
    assert not (records_of(job.directory) / "stop").exists()


def test_a_job_submitted_from_within_a_job_inherits_nothing_of_it(cluster, job, monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    launcher().start(job)
    assert "SLURM_MEM_PER_CPU" not in cluster.environment and "SLURM_CONF" in cluster.environment
    assert os.environ["SLURM_MEM_PER_CPU"] == "1"


def test_a_job_that_sbatch_refuses_is_one_line_and_leaves_nothing(cluster, job):
    cluster.refuses = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed"
    with pytest.raises(ConfigError, match=r"^sbatch refuses the job \(invalid partition specified: x Batch job submission failed\)"):
        launcher().start(job)
    assert not job.directory.exists()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("launch.time=30s", "launch.time is 30s; give at least a minute"),
        ("launch.time=2min launch.signal_before=120", "more than launch.signal_before=120 seconds"),
        ("launch.time=4", "launch.time is 4; it needs a unit: 4s, 4min or 4h"),
        ("launch.time=2epochs", "launch.time is 2epochs; it must be a wall time"),
        ("launch.extra={time: 3}", "launch.extra.time: set launch.time instead"),
        ("launch.extra={no_requeue: true}", "launch.extra.no_requeue: the launcher sets it itself"),
    ],
)
def test_a_wrong_setting_is_one_line(cluster, settings, line):
    with pytest.raises(ConfigError) as error:
        launcher(*settings.split(" ", 1) if "extra" not in settings else [settings])
    assert line in str(error.value) and "\n" not in str(error.value)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="there is no sbatch on this machine"):
        launcher()
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[slurm\]'"):
        launcher()


def test_what_is_asked_of_slurm(job):
    config = compose(["launch=slurm", "launch.time=90s", "launch.cpus=3", "launch.extra={account: birds, exclusive: true, hold: false}"])
    asked = sbatch_settings(config.launch, job)
    assert asked["time"] == 2 and asked["srun_args"] == ["--cpus-per-task=3"] and asked["job_name"] == job_name(job.directory)
    options = {"account": "birds", "exclusive": True, "cpus-per-task": 3, "signal": "USR2@120", "requeue": True}
    assert asked["additional_parameters"] == options
    assert job_name(job.directory) != job_name(job.directory.with_name("other"))


def test_where_processes_of_a_run_find_each_other(job, monkeypatch):
    def arguments(**settings: int) -> list[str]:
        config = compose(["launch=slurm", *(f"launch.{key}={value}" for key, value in settings.items())])
        return run_in_job(config.launch, job).arguments()

    for name, value in {"JOB_ID": "41", "NODEID": "1", "LAUNCH_NODE_IPADDR": "10.0.0.3", "RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert arguments() == [sys.executable, *job.arguments()]
    assert "--rdzv-endpoint=127.0.0.1:0" in arguments(processes=4) and "--nproc-per-node=4" in arguments(processes=4)
    several = arguments(nodes=3)
    assert {"--nnodes=3", "--node-rank=1", "--master-addr=10.0.0.3"} <= set(several) and several[-len(job.arguments()) :] == job.arguments()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert arguments(nodes=3) != several, "another port: the one of the start before may still be taken"
