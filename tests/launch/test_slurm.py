"""`launch=slurm` without SLURM: the program inside a job, with a fake run and `scontrol`, and how jobs are submitted, found and followed.
`tests/slurm` uses a real SLURM."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from unittest import mock

import pytest

from linnaeus.config import compose
from linnaeus.config.command_line import parse_command_line
from linnaeus.errors import ConfigError
from linnaeus.launch import Job, slurm
from linnaeus.launch.slurm import job_name, run_in_job, sbatch_settings, slurm_directory
from linnaeus.launch.slurm_job import settled_status
from linnaeus.sweep.request import read_request
from linnaeus.sweep.trial import make_trial
from tests import runs
from tests.sweep.conftest import wait_until

# A fake run: at SIGTERM it `saves` a checkpoint, is `stuck` (exits without one), or `ignores` it; or it `fails` or is `finished` at once.
RUN = """
import json, pathlib, signal, sys, time
kind, run = sys.argv[1], pathlib.Path(sys.argv[2])
def receive(*_):
    with (run / "signals").open("a") as file:
        file.write("TERM ")
    if kind == "saves":
        steps = len(list((run / "checkpoints").glob("step-*")))
        (run / f"checkpoints/step-{steps + 1:08d}").mkdir(parents=True)
        sys.exit(75)
    if kind == "stuck":
        sys.exit(75)
signal.signal(signal.SIGTERM, receive)
if kind in ("fails", "finished"):
    print("output")
    sys.exit(1 if kind == "fails" else 0)
(run / "started").touch()
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
slurm_job.REQUEUE_SECONDS = 9.0
run = Path(sys.argv[2])
slurm_job.RunInJob(sys.argv[1:], 1, 1, run, run / "slurm", run / "log", 10, int(sys.argv[3]))()
"""


class FakeJob:
    """A SLURM job that a test can start several times."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        (self.run / "slurm").mkdir(parents=True)
        (folder / "run.py").write_text(RUN)
        (folder / "bin").mkdir()
        (folder / "bin/scontrol").write_text(SCONTROL.format(folder=folder))
        (folder / "bin/scontrol").chmod(0o755)

    def start(self, kind: str, max_requeues: int = 9) -> subprocess.Popen[bytes]:
        (self.run / "started").unlink(missing_ok=True)
        variables = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        code = IN_JOB.replace("sys.argv[1:]", repr([str(self.folder / "run.py"), kind, str(self.run)]))
        arguments = [sys.executable, "-c", code, kind, str(self.run), str(max_requeues)]
        process = subprocess.Popen(arguments, cwd=runs.ROOT, env={**os.environ, **variables})
        if kind not in ("fails", "finished"):
            wait_until((self.run / "started").exists)
        return process

    def status_after(self, kind: str, *signals: signal.Signals, max_requeues: int = 9) -> int:
        process = self.start(kind, max_requeues)
        for number in signals:
            process.send_signal(number)
        return process.wait(30)

    def requeues(self) -> int:
        path = self.folder / "scontrol"
        return path.read_text().count("requeue 7") if path.exists() else 0

    def ended(self) -> tuple[int, str] | None:
        path = self.run / "slurm/ended.json"
        found = json.loads(path.read_text()) if path.exists() else None
        assert found is None or found["job"] == "7"
        return found and (found["status"], found["reason"])


@pytest.fixture
def job_program(tmp_path):
    return FakeJob(tmp_path)


def test_before_the_time_limit_the_run_saves_and_the_job_is_requeued(job_program):
    for start in (1, 2):
        assert job_program.status_after("saves", signal.SIGUSR2, signal.SIGUSR2) == 75
        assert job_program.requeues() == start and job_program.ended() is None
    assert (job_program.run / "signals").read_text() == "TERM TERM "
    assert json.loads((job_program.run / "slurm/requeues.json").read_text())["requeues"] == 2


def test_a_run_that_finishes_or_fails_is_not_requeued(job_program):
    assert job_program.start("finished").wait(30) == 0 and job_program.ended() == (0, "")
    assert job_program.start("fails").wait(30) == 1 and job_program.ended() == (1, "")
    assert job_program.requeues() == 0
    assert (job_program.run / "log").read_text() == "output\n" * 2


def test_a_preempted_job_is_not_requeued_by_the_program(job_program):
    """SLURM signals every process of the job and requeues or cancels the job itself."""
    process = job_program.start("saves")
    pids = [int(line) for line in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    for pid in (process.pid, *pids):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(30) == 75
    assert job_program.requeues() == 0 and job_program.ended() == (75, "") and (job_program.run / "signals").read_text() == "TERM "


@pytest.mark.parametrize(
    ("kind", "file", "max_requeues", "ended"),
    [
        ("ignores", None, 9, None),  # not saved at the time limit
        ("saves", "run/slurm/stop", 9, (75, "")),
        ("saves", None, 0, (75, "launch.max_requeues=0 is reached")),
        ("saves", "refuses", 9, (75, "SLURM refuses to requeue the job: requeueing is disabled")),
    ],
)
def test_a_job_is_requeued_or_ends_with_a_reason(job_program, kind, file, max_requeues, ended):
    if file is not None:
        (job_program.folder / file).touch()
    assert job_program.status_after(kind, signal.SIGUSR2, max_requeues=max_requeues) == 75
    assert job_program.ended() == ended and job_program.requeues() == (ended is None or file == "refuses")


def test_after_three_starts_without_a_checkpoint_the_job_fails(job_program):
    starts = [job_program.status_after(kind, signal.SIGUSR2) for kind in ("saves", "stuck", "stuck", "stuck")]
    assert starts == [75, 75, 75, 1] and job_program.requeues() == 3
    assert job_program.ended()[1].startswith("no checkpoint was written in 3 starts in a row")
    assert (job_program.run / "log").read_text().startswith("error: no checkpoint was written")
    (job_program.run / "slurm/requeues.json").unlink()  # a new job, which continues the run
    assert [job_program.status_after("stuck", signal.SIGUSR2) for _ in range(3)] == [75, 75, 1]


@pytest.mark.parametrize(
    ("code", "status", "launches", "stop_requested", "settled"),
    [
        (0, "running", 2, False, 0),
        (2, None, 1, False, 2),
        (75, None, 1, False, 75),
        (143, "interrupted", 2, True, 75),  # torchrun after a stop request
        (143, "finished", 2, True, 0),
        (143, "failed", 2, True, 1),
        (143, "interrupted", 1, False, 1),  # the summary of an earlier start
        (143, "interrupted", 1, True, 75),  # stopped during start-up
        (1, "running", 2, False, 1),
        (None, "running", 2, True, 75),
    ],
)
def test_the_summary_of_the_run_decides_the_status(tmp_path, code, status, launches, stop_requested, settled):
    """`launches`: the number at the end; there was one before."""
    for number in range(1, launches + 1):
        (tmp_path / "launches" / str(number)).mkdir(parents=True)
    if status:
        (tmp_path / "summary.json").write_text(json.dumps({"status": status}))
    assert settled_status(code, tmp_path, 1, stop_requested) == settled


# -- the launcher ----------------------------------------------------------------------------------------------------------------


class FailedJobError(Exception):
    """Error of submitit for a job that sbatch refuses."""


class Cluster:
    """Answers of SLURM's programs and of submitit. `queue`: number -> (state, name)."""

    def __init__(self) -> None:
        self.queue: dict[str, tuple[str, str]] = {}
        self.calls: list[list[str]] = []
        self.answers, self.refuses = True, ""
        self.environment: dict[str, str] = {}

    def run(self, command: list[str], **_: object) -> types.SimpleNamespace:
        self.calls.append(command)
        lines = "\n".join(f"{number}|{state}|None|{name}" for number, (state, name) in self.queue.items())
        return types.SimpleNamespace(returncode=int(not self.answers), stdout=lines, stderr="slurm_load_jobs error: Unable to contact")

    def update(self, **settings: object) -> None:
        self.name = str(settings["job_name"])

    def submit(self, run: object) -> types.SimpleNamespace:
        self.environment = dict(os.environ)
        if self.refuses:
            raise FailedJobError(self.refuses)
        number = str(len(self.queue) + 1)
        self.queue[number] = ("RUNNING", self.name)
        return types.SimpleNamespace(job_id=number)


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster()
    submitit = mock.Mock(SlurmExecutor=lambda folder: types.SimpleNamespace(update_parameters=made.update, submit=made.submit))
    submitit.core.utils.FailedJobError = FailedJobError
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    monkeypatch.setattr(slurm.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(slurm.subprocess, "run", made.run)
    monkeypatch.setattr(slurm, "SETTLE_SECONDS", 0.0)
    return made


def launcher(*more: str) -> slurm.SlurmLauncher:
    return slurm.SlurmLauncher(compose(["launch=slurm", "launch.poll=0.001", *more]).launch)


@pytest.fixture
def job(tmp_path):
    return Job(["seed=1"], tmp_path / "runs/birds/run", None, tmp_path / "log")


def polled(handle: slurm.SlurmHandle) -> int | None:
    time.sleep(0.002)
    return handle.poll()


def test_a_job_is_polled_until_it_has_left_the_queue(cluster, job):
    handle = launcher().start(job)
    records = slurm_directory(job.directory)
    assert polled(handle) is None and handle.describe() == "SLURM job 1"
    (records / "ended.json").write_text(json.dumps({"job": "1", "status": 75, "reason": ""}))  # preempted: SLURM requeues it
    cluster.queue["1"] = ("PENDING", cluster.name)
    assert polled(handle) is None
    cluster.answers = False
    del cluster.queue["1"]
    assert polled(handle) is None, "squeue failed: the state of the job is unknown"
    cluster.answers = True
    (records / "ended.json").write_text(json.dumps({"job": "1", "status": 0, "reason": ""}))
    assert polled(handle) == 0


def test_a_later_command_finds_the_job_and_does_not_submit_it_again(cluster, job):
    launcher().start(job)
    other = Job(["seed=2"], job.directory.with_name("other"), None, job.log)
    again = launcher()
    assert [again.start(one).describe() for one in (job, other)] == ["SLURM job 1", "SLURM job 2"] and len(cluster.queue) == 2
    cluster.answers = False
    with pytest.raises(ConfigError, match="does not answer"):
        launcher().start(job)


def test_the_error_of_a_job_that_slurm_ended_names_the_log(cluster, job):
    handle = launcher().start(job)
    cluster.queue.clear()
    assert polled(handle) == 1
    assert "error: SLURM ended job 1 before the run ended; see" in job.log.read_text()
    (job.directory / "summary.json").write_text('{"status": "finished"}')
    assert polled(handle) == 0


def test_the_first_stop_signals_the_job_and_the_second_cancels_it(cluster, job):
    handle = launcher().start(job)
    handle.stop()
    assert (slurm_directory(job.directory) / "stop").exists()
    handle.stop()
    calls = [call for call in cluster.calls if call[0] == "scancel"]
    assert calls == [["scancel", "--state=PENDING", "1"], ["scancel", "--signal=USR2", "1"], ["scancel", "1"]]
    cluster.queue.clear()
    assert launcher().start(job).describe() == "SLURM job 1"
    assert not (slurm_directory(job.directory) / "stop").exists()


def test_a_job_does_not_inherit_the_variables_of_a_job_that_submits_it(cluster, job, monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    launcher().start(job)
    assert "SLURM_MEM_PER_CPU" not in cluster.environment and "SLURM_CONF" in cluster.environment
    assert os.environ["SLURM_MEM_PER_CPU"] == "1"


def test_a_value_of_the_environment_is_in_no_file_of_a_job_but_in_its_environment(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("LINNAEUS_TEXT", "/pa55word")
    request = read_request(parse_command_line(["workload=language", "data.path=${oc.env:LINNAEUS_TEXT}/a.txt", f"run.root={tmp_path}"]))
    trial = make_trial(request, 0, {})
    assert trial.config.data.path == "/pa55word/a.txt"
    job, config = Job(trial.overrides, trial.directory, None, None), compose(["launch=slurm"]).launch
    launcher().start(job)
    assert cluster.environment["LINNAEUS_TEXT"] == "/pa55word"
    assert b"LINNAEUS_TEXT" in pickle.dumps(run_in_job(config, job)) and b"pa55word" not in pickle.dumps(run_in_job(config, job))
    assert "pa55word" not in str(sbatch_settings(config, job))


def test_a_job_that_sbatch_refuses_is_one_line_and_leaves_no_files(cluster, job):
    cluster.refuses = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed"
    with pytest.raises(ConfigError, match=r"^sbatch refuses the job \(invalid partition specified: x Batch job submission failed\)"):
        launcher().start(job)
    assert not job.directory.exists()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("launch.time=30s", "launch.time is 30s; it must be at least 1min"),
        ("launch.time=2min launch.signal_before=120", "longer than launch.signal_before=120 s"),
        ("launch.time=4", "launch.time is 4; it needs a unit: 4s, 4min or 4h"),
        ("launch.time=2epochs", "launch.time is 2epochs; it must be a wall time"),
        ("launch.extra={time: 3}", "launch.extra.time: set launch.time instead"),
        ("launch.extra={no_requeue: true}", "launch.extra.no_requeue: the launcher sets it itself"),
    ],
)
def test_an_invalid_setting_is_one_line(cluster, settings, line):
    with pytest.raises(ConfigError) as error:
        launcher(*settings.split(" ", 1) if "extra" not in settings else [settings])
    assert line in str(error.value) and "\n" not in str(error.value)


def test_missing_programs_and_packages_are_named(monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="there is no sbatch on this machine"):
        launcher()
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install 'linnaeus\[slurm\]'"):
        launcher()


def test_options_of_sbatch(job):
    config = compose(["launch=slurm", "launch.time=90s", "launch.cpus=3", "launch.extra={account: birds, exclusive: true, hold: false}"])
    settings = sbatch_settings(config.launch, job)
    assert settings["time"] == 2 and settings["srun_args"] == ["--cpus-per-task=3"] and settings["job_name"] == job_name(job.directory)
    options = {"account": "birds", "exclusive": True, "cpus-per-task": 3, "signal": "USR2@120", "requeue": True}
    assert settings["additional_parameters"] == options
    assert job_name(job.directory) != job_name(job.directory.with_name("other"))


def test_rendezvous_of_the_processes_of_a_run(job, monkeypatch):
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
    assert arguments(nodes=3) != several, "another port: the one of the previous start may still be in use"
