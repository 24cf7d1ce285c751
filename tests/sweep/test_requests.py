"""What a sweep is asked for: read, composed and refused before anything is written or started."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import sys

import pytest

from linnaeus.config import compose
from linnaeus.config.command_line import parse_command_line
from linnaeus.errors import ConfigError
from linnaeus.sweep.outcomes import Metric, Outcome, common_metric, metric_of
from linnaeus.sweep.parameters import Interval, parameter, parse
from linnaeus.sweep.picture import sweep_picture
from linnaeus.sweep.request import read_request
from linnaeus.sweep.study import import_optuna
from linnaeus.sweep.study_record import SweepRecord
from linnaeus.sweep.trials import grid, make_trial, only_trial, sweep_name
from tests.runs import ROOT, VECTORS


def request(*arguments: str, multirun: bool = True):
    return read_request(parse_command_line([*(["-m"] if multirun else []), *arguments]))


def trials(*arguments: str):
    return grid(request(*arguments))


@pytest.mark.parametrize(
    "text, choices",
    [
        ("seed=1,2", ("1", "2")),
        ("seed=range(1,5)", ("1", "2", "3", "4")),
        ("optimizer.lr=choice(1e-3,3e-4)", ("0.001", "0.0003")),
        ("optimizer=glob([a*,s*])", ("adamw", "sgd")),
        ("data.ranks=[a,b],[c]", ("[a,b]", "[c]")),
        ("optimizer.lr=tag(log,interval(1e-4,1))", Interval(1e-4, 1.0, True)),
        ("trainer.threads=int(interval(1,8))", Interval(1, 8, False)),
    ],
)
def test_values_in_the_grammar_of_the_command_line(text, choices):
    found = parameter(parse(text), None)
    assert (found.interval if isinstance(choices, Interval) else found.choices) == choices
    assert f"{found.key}={found.text}" == text


def test_a_folder_of_groups_joins_those_a_pattern_is_matched_with():
    assert parameter(parse("model=glob(*)"), str(VECTORS)).choices == ("gpt", "mformer", "mlp", "timm")


REFUSED = {
    "optimizer.lr=1e-3,2e-3,3e-3,4e-3,-1": "trial 5 (optimizer.lr=-1): optimizer.lr is -1.0; it must be more than 0",
    "optimizer.lrr=1,2": "trial 1 (optimizer.lrr=1): unknown key optimizer.lrr; did you mean optimizer.lr?",
    "optimizer=adamw,adamv": "trial 2 (optimizer=adamv): there is no optimizer=adamv; did you mean adamw?",
    "seed=0,0": "seed=0,0 has the value 0 twice",
    "seed=interval(0,3)": "choose sweep=optuna, or give some: seed=0.0,3.0",
    "seed=shuffle(1,2,3)": "leave shuffle out",
    "seed=tag(log,choice(1,2))": "the only tag is log, of an interval",
    "head=glob(z*)": "has no value",
    "optimizer.lr=tag(log,interval(0,1))": "ends above 0",
    "optimizer.lr=interval(1,0)": "the lower end comes first",
    "logger.console=plain,quiet": "differ in nothing that alters the updates; leave one out, or give run.name",
    "hydra/sweeper=optuna seed=0,1": "has no effect: trials are started by this program",
    "hydra.launcher.n_jobs=2 seed=0,1": "launch=process, launch=torchrun or launch=slurm",
    "sweep.parallel=1,2": "has one value for a whole sweep",
    "run.root=a,b": "has one value for a whole sweep",
    "sweep.parallel=0": "must be at least 1",
    "sweep.trials=3 seed=0,1": "sweep.trials=3 has no effect on a grid",
    "sweep.seed=3 seed=0,1": "sweep.seed=3 has no effect on a grid",
    "sweep=optuna sweep.trials=null seed=0,1": "sweep.trials is null; sweep=optuna needs a number",
    "sweep.mode=max seed=0,1": "no effect without sweep.metric",
    "sweep.name=a/b seed=0,1": "no name for a directory",
    "sweep.params={seed:[0,1]}": "sweep.params.seed is [0, 1]; it must be a text",
    "schedule.best_monitor=val/loss,val/species/top1 seed=0,1": "cannot be compared by both",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_one_line_says_what_is_wrong_and_what_would_be_right(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        asked = request(*typed.split())
        common_metric(asked.sweep, grid(asked))
    assert REFUSED[typed] in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_neither_a_launched_process_nor_a_single_run_sweeps(monkeypatch):
    with pytest.raises(ConfigError, match="has no effect without -m"):
        parse_command_line(["sweep.parallel=2"])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="cannot run under torchrun"):
        request("launch=torchrun", multirun=False)


def test_a_file_of_parameters_and_the_command_line_join():
    found = trials("sweep=seeds", "optimizer.lr=1e-3,1e-2", "launch=torchrun", "sweep.parallel=3", "trainer.length=7steps")
    assert [t.values for t in found[:2]] == [{"seed": "0", "optimizer.lr": "0.001"}, {"seed": "0", "optimizer.lr": "0.01"}]
    assert len(found) == 6 and found[0].overrides == ["trainer.length=7steps", "seed=0", "optimizer.lr=0.001"]
    assert [t.values["seed"] for t in trials("sweep=seeds", "seed=5,6")] == ["5", "6"], "the command line goes before"
    assert trials("sweep=seeds", "seed=5")[0].overrides == ["seed=5"]


def test_an_experiment_that_says_how_it_is_launched_says_so_to_the_parent_only(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /launch: torchrun\nlaunch: {processes: 3}\nrun: {name: mine}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    asked = request("--config-dir", str(tmp_path), "experiment=mine", "seed=0,1")
    assert (asked.launch.name, asked.launch.processes) == ("torchrun", 3)
    found = grid(asked)
    assert found[1].overrides == ["experiment=mine", "seed=1", "launch=process", "~launch.processes", "run.name=mine-2"]
    assert found[1].config.launch.name == "process" and found[1].directory.name == "mine-2"
    alone = only_trial(request("--config-dir", str(tmp_path), "experiment=mine", multirun=False))
    assert alone.overrides == ["experiment=mine", "launch=process", "~launch.processes"] and alone.directory.name == "mine"


def test_a_sweep_is_named_by_what_is_swept_and_not_by_how_it_is_launched():
    def name(*arguments: str) -> str:
        asked = request("seed=0,1", *arguments)
        return sweep_name(asked, make_trial(asked, 1, {p.key: p.ends()[0] for p in asked.parameters}))

    assert name() == name("sweep.parallel=4", "launch=torchrun", "logger.console=quiet", "sweep.metric=val/x")
    assert len({name(), name("optimizer.lr=1e-2"), name("optimizer.lr=1e-2,1e-3")}) == 3
    assert name("sweep.name=mine") == "mine"


def test_what_is_compared_and_which_way():
    config = compose(["schedule.best_monitor=val/species/top1"])
    assert metric_of(config.sweep, config) == Metric("val/species/top1", "max", True)
    assert metric_of(dataclasses.replace(config.sweep, metric="val/loss"), config) == Metric("val/loss", "min", False)
    assert metric_of(dataclasses.replace(config.sweep, metric="val/loss", mode="max"), config).mode == "max"


def test_the_table_ranks_what_was_measured_and_the_picture_shows_it(tmp_path):
    asked = request("optimizer=adamw,sgd", "optimizer.lr=1e-3,1e-2,1e-1", "seed=4,5")
    one = make_trial(asked, 1, {p.key: p.ends()[0] for p in asked.parameters})
    values = itertools.product(*(p.choices or () for p in asked.parameters))
    found = [dataclasses.replace(one, number=i, values=dict(zip(one.values, v))) for i, v in enumerate(values, 1)]
    outcomes = {t.number: Outcome("finished", t.number / 7, 5) for t in found[:9]} | {10: Outcome("failed")}
    table = SweepRecord(tmp_path, tmp_path, Metric("val/top1", "max", True), ["optimizer", "optimizer.lr", "seed"])
    lines = table.table(found, outcomes).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["*", "8", "7"] and "failed" in lines[10] and "waiting" in lines[11]
    picture = sweep_picture(asked.parameters, found, outcomes, Metric("val/top1", "max", True))
    assert picture is not None and picture.count("<circle") == 27 and picture.count("#D55E00") == 4
    assert "optimizer.lr (logarithmic)" in picture and ">sgd</text>" in picture
    assert sweep_picture(asked.parameters, found, {}, Metric("val/top1", "max", True)) is None


def test_optuna_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"needs the package optuna; install it with: pip install -e '\.\[sweep\]'"):
        import_optuna()


def commands():
    """What the pages tell a user to type with -m."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "conf").glob("*/*.yaml"))]:
        for found in re.finditer(r"^(?:# )?python main\.py (-m .*)$", page.read_text(), re.M):
            yield page.name, re.split(r"\s{2,}", found[1].split("#")[0].strip())[0]


def test_commands_of_the_pages_can_be_read():
    found = dict.fromkeys(line for _, line in commands())
    assert {"sweeps.md", "README.md", "optuna.yaml", "seeds.yaml"} <= {page for page, _ in commands()}
    for line in found:
        asked = read_request(parse_command_line(shlex.split(line)))
        make_trial(asked, 1, {p.key: p.ends()[-1] for p in asked.parameters}, look=False)
