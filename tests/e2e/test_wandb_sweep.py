"""Sweeps of W&B: the sweep.yaml of docs/sweeps.md is started by the code of W&B's own agent, without its server.

The agent fills the command of sweep.yaml in with the values of a trial, sets its environment variables, and starts the process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from torch.distributed.run import parse_args

from linnaeus.config import command_line
from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.rundir.directory import RunDirectory
from tests import runs
from tests.e2e.test_wandb_restarts import sent

wandb_agent = pytest.importorskip("wandb.wandb_agent")

PAGE = (runs.ROOT / "docs" / "sweeps.md").read_text()
SWEEP = yaml.safe_load(re.search(r"```yaml\n(program: .*?)```", PAGE, re.S)[1])  # type: ignore[index]
TRIAL = "w7h2k1ab"
TYPES = {"optimizer.lr": 0.003, "model.dropout": 0.1, "trainer.deterministic": True, "schedule.validate": ["50%", "100%"]}
OWN = ("run.name", "trainer.length", "schedule.log")  # keys that the test of a real run sets itself
Start = Callable[..., tuple[list[str], dict[str, str]]]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a function that lets the agent start a trial and returns its command and its environment. The process is not
    started."""
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):
        monkeypatch.setenv(name, "")  # restores what the agent sets
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep123")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def start(command: list[str], values: dict[str, Any], *, trial: str = TRIAL, kind: str = "run") -> tuple[list[str], dict[str, str]]:
        found = wandb_agent.Agent(mock.Mock(), None, sweep_id="sweep123")
        found._sweep_command = list(command)
        arguments = {key: {"value": value} for key, value in values.items()}
        with mock.patch.object(wandb_agent, "AgentProcess") as process:
            response = found._process_command({"type": kind, "run_id": trial, "program": SWEEP["program"], "args": arguments})
        assert "exception" not in response, response
        return process.call_args.kwargs["command"], process.call_args.kwargs["env"]

    return start


def parsed(words: list[str]) -> list[str]:
    """Return the settings of a command that starts with /usr/bin/env python main.py."""
    assert words[:3] == ["/usr/bin/env", "python", "main.py"]
    return command_line.parse_command_line(words[3:]).overrides


def drawn() -> dict[str, Any]:
    """Return values for the parameters of the documented sweep, as W&B's server may choose them."""
    return {
        key: (p["value"] if "value" in p else p["values"][0] if "values" in p else (p["min"] + p["max"]) / 2)
        for key, p in SWEEP["parameters"].items()
    }


def test_the_documented_sweep_is_composed_with_the_values_of_the_trial(agent: Start) -> None:
    command, environment = agent(SWEEP["command"], drawn())
    assert (environment["WANDB_SWEEP_ID"], environment["WANDB_RUN_ID"]) == ("sweep123", TRIAL)
    config = compose(parsed(command))
    assert (config.run.name, config.run.experiment, config.logger.wandb) == (TRIAL, "biota_hard", "online")
    assert config.optimizer.lr == pytest.approx(0.00505) and config.trainer.max_grad_norm is None
    assert (config.trainer.deterministic, config.model.dropout, config.schedule.validate) == (True, 0.0, ["50%", "100%"])
    assert SWEEP["project"] == config.logger.wandb_project, "a trial that is continued without an agent would be in another project"


@pytest.mark.parametrize("form", ["args_no_hyphens", "args_override_hydra"])
def test_values_of_every_type(agent: Start, form: str) -> None:
    values = TYPES | {"run.experiment": "two words", "run.root": "'a,b'", "optimizer.weight_decay": 1e-05, "seed": 3, "logger.csv": False}
    config = compose(parsed(agent(["${env}", "${interpreter}", "${program}", "${" + form + "}"], values)[0]))
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.seed, config.logger.csv) == (0.003, 1e-05, 3, False)
    assert (config.run.experiment, config.run.root, config.schedule.validate) == ("two words", "a,b", ["50%", "100%"])


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("args", "--optimizer.lr=0.003; settings have no hyphens: optimizer.lr=0.003 (W&B's sweep.yaml: ${args_no_hyphens})"),
        ("args_no_equals", "there is not an option --optimizer.lr; "),
        ("args_no_boolean_flags", "there is not an option --optimizer.lr=0.003; "),
        ("args_json", "is not a setting; give it as key=value"),
        ("args_append_hydra", "+optimizer.lr: the key exists already"),
    ],
)  # fmt: skip
def test_another_form_is_one_line_and_exit_status_2(
    form: str, line: str, agent: Start, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    from main import main

    words, _ = agent(["${env}", "${interpreter}", "${program}", "${" + form + "}"], TYPES)
    monkeypatch.setattr(sys, "argv", [*words[2:], f"run.root={tmp_path}/runs"])
    with pytest.raises(SystemExit) as ended:
        main()
    text = capsys.readouterr().err
    assert ended.value.code == 2 and line in text and text.count("\n") == 1, text
    assert not (tmp_path / "runs").exists()


def test_several_processes(agent: Start) -> None:
    config = compose(parsed(agent([*SWEEP["command"], "launch=torchrun", "launch.processes=4"], drawn())[0]))
    assert (config.launch.name, config.run.name) == ("torchrun", TRIAL)
    words = ["torchrun", "--nproc-per-node=4", *SWEEP["command"][2:]]
    options = parse_args(agent(words, drawn())[0][1:])
    assert options.training_script == "main.py" and options.nproc_per_node == "4"
    assert compose(command_line.parse_command_line(options.training_script_args).overrides).run.name == TRIAL


def test_nested_parameters_and_a_key_given_twice_are_one_line(agent: Start) -> None:
    with pytest.raises(ConfigError, match=r"is a nested parameter of W&B; call it optimizer.lr in sweep.yaml"):
        parsed(agent(SWEEP["command"], {"optimizer": {"lr": 0.1, "weight_decay": 0.0}})[0])
    with pytest.raises(ConfigError, match="experiment is given twice"):
        parsed(agent(SWEEP["command"], {"experiment": "plants480"})[0])


def test_the_name_of_the_trial_is_a_default_only_and_only_of_a_trial(agent: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    command, _ = agent(SWEEP["command"], {"run.name": "mine"})
    assert compose(parsed(command)).run.name == "mine"
    assert not any("run.name" in text for text in command_line.parse_command_line(["-m", "seed=0,1"]).overrides)
    monkeypatch.delenv("WANDB_SWEEP_ID")  # WANDB_RUN_ID alone is set by hand
    assert not any("run.name" in text for text in command_line.parse_command_line(["seed=0"]).overrides)


def test_the_directory_of_another_run_of_wandb_is_refused(agent: Start, tmp_path: Path) -> None:
    """W&B would write to the run of the agent, which would lack the rows that the other one has."""
    config = {
        "run": {"experiment": "e", "name": "mine", "root": str(tmp_path), "resume": "auto", "allow": []},
        "logger": {"wandb": "online"},
    }
    agent(SWEEP["command"], {})
    directory = RunDirectory(config)
    directory.start()
    directory.release()
    assert directory.run_id == TRIAL == RunDirectory(config).record["run_id"]
    agent(SWEEP["command"], {}, trial="another1")
    with pytest.raises(ConfigError, match=f"contains the W&B run {TRIAL}, and the agent has started another1; leave run.name out"):
        RunDirectory(config)
    assert RunDirectory(config | {"logger": {"wandb": "disabled"}}).record["run_id"] == TRIAL


@pytest.mark.slow
def test_a_trial_is_trained_and_resumed_in_one_run_of_wandb(agent: Start, tmp_path: Path) -> None:
    """The command as the agent fills it in, with a tiny configuration and `offline`, stopped, started again, and continued without the
    agent. The rows are in the W&B run of the trial."""
    fixed = [text for text in SWEEP["command"] if text != "logger.wandb=online" and not text.startswith("experiment=")]
    tiny = [text for text in runs.overrides("biota", tmp_path / "runs") if text.partition("=")[0] not in {*drawn(), *OWN}]
    run = tmp_path / "runs" / "biota" / TRIAL
    long, end = "trainer.length=100000steps", ["run.allow=[trainer.length]"]
    command, environment = agent([*fixed, *tiny, long, "schedule.log=[1steps]", "logger.wandb=offline"], drawn())
    first = start(command, environment)
    runs.wait_until(lambda: first.poll() is not None or ((run / "metrics.jsonl").exists() and len(runs.rows(run / "metrics.jsonl")) > 1))
    first.terminate()  # as the agent does if the server says stop
    assert first.wait(120) == 75, first.communicate()
    step = runs.summary(run)["global_step"]
    assert step > 1
    for more, without in ((1, ()), (2, ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"))):
        shorter = [f"trainer.length={step + more}steps", *end]
        command, environment = agent([*fixed, *tiny, *shorter, "schedule.log=[1steps]", "logger.wandb=offline"], drawn(), kind="resume")
        words = [*command, f"run.name={TRIAL}"] if without else command
        again = start(words, {key: value for key, value in environment.items() if key not in without})
        text = "".join(again.communicate(timeout=240))
        assert again.returncode == 0 and "Ignoring" not in text, text
    assert runs.summary(run)["global_step"] == step + 2 and [path.name for path in run.parent.iterdir()] == [TRIAL]
    assert len(list((run / "launches").iterdir())) == 3
    rows = list(sent(run))
    assert {run_id for run_id, *_ in rows} == {TRIAL} == {json.loads((run / "run.json").read_text())["run_id"]}
    assert len(rows) == sum(len(runs.rows(run / f"{name}.jsonl")) for name in ("metrics", "timings"))


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a command of the agent, with the interpreter of the tests as `python`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    variables = environment | {"PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=variables, cwd=runs.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
