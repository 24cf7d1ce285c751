"""Requests of a sweep are read, composed and refused before anything is written or started."""

import dataclasses
import itertools
import re
import shlex
import sys

import pytest

from linnaeus.config import compose
from linnaeus.config.command_line import parse_command_line
from linnaeus.config.precedence import parsed
from linnaeus.errors import ConfigError
from linnaeus.launch.launcher import SEE_ABOVE
from linnaeus.reporting.results import write_summary
from linnaeus.rundir import RunDirectory
from linnaeus.sweep.optuna_study import import_optuna
from linnaeus.sweep.parameters import Interval, read_parameter
from linnaeus.sweep.picture import sweep_picture
from linnaeus.sweep.request import read_request
from linnaeus.sweep.sweep_files import SweepFiles
from linnaeus.sweep.trial import make_trial, short_value
from linnaeus.sweep.trial_results import Metric, TrialResult, common_metric, finished_result, last_error, metric_of
from linnaeus.sweep.trial_source import Grid, TrialSource, sweep_name
from tests.runs import ROOT, VECTORS


def request(*arguments: str, multirun: bool = True):
    return read_request(parse_command_line([*(["-m"] if multirun else []), *arguments]))


def trials(*arguments: str):
    return Grid(request(*arguments)).trials


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
    found = read_parameter(parsed([text])[0], None)
    assert (found.interval if isinstance(choices, Interval) else found.choices) == choices
    assert f"{found.key}={found.text}" == text


def test_a_pattern_matches_the_groups_of_a_config_dir_too():
    assert read_parameter(parsed(["model=glob(m*)"])[0], str(VECTORS)).choices == ("matryoshka", "mformer", "mlp")


REFUSED = {
    "seed=0,1 launch=torchrun launch.processes=3": "trial 1 (seed=0): trainer.global_batch_size=32 cannot be divided among 3 processes",
    "optimizer.lr=1e-3,2e-3,3e-3,4e-3,-1": "trial 5 (optimizer.lr=-1): optimizer.lr is -1.0; it must be more than 0",
    "optimizer.lrr=1,2": "trial 1 (optimizer.lrr=1): unknown key optimizer.lrr; did you mean optimizer.lr?",
    "optimizer=adamw,adamv": "trial 2 (optimizer=adamv): there is no optimizer=adamv; did you mean adamw?",
    "seed=0,0": "seed=0,0 has the value 0 twice",
    "seed=interval(0,3)": "choose sweep=optuna, or set a list: seed=0,3",
    "seed=shuffle(1,2,3)": "leave shuffle out",
    "seed=tag(log,choice(1,2))": "the only tag is log, for an interval",
    "head=glob(z*)": "has no value",
    "optimizer.lr=tag(log,interval(0,1))": "both ends must be above 0",
    "optimizer.lr=interval(1,0)": "the lower end must be first",
    "logger.console=plain,quiet": "differ in nothing that alters the updates; leave one out, or set run.name",
    "hydra/sweeper=optuna seed=0,1": "hydra/sweeper=optuna has no effect here: Hydra only composes",
    "hydra.launcher.n_jobs=2 seed=0,1": "sweep=grid or optuna, and launch=process, torchrun or slurm start runs",
    "sweep.parallel=1,2": "has one value for a whole sweep",
    "run.root=a,b": "has one value for a whole sweep",
    "sweep.parallel=0": "must be at least 1",
    "sweep.trials=3 seed=0,1": "sweep.trials=3 has no effect on a grid",
    "sweep.seed=3 seed=0,1": "sweep.seed=3 has no effect on a grid",
    "sweep=optuna sweep.trials=null seed=0,1": "sweep.trials is null; sweep=optuna needs a number",
    "sweep.mode=max seed=0,1": "no effect without sweep.metric",
    "sweep.metric=val/r2 seed=0,1": "set sweep.mode=min or sweep.mode=max",
    "sweep.name=a/b seed=0,1": "is not a name for a directory",
    "sweep.name='\1' seed=0,1": "is not a name for a directory",
    "trainer.length=1epochs,0steps": "trial 2 (trainer.length=0steps): trainer.length is 0steps; it must be at least 1 step",
    "sweep.params={seed:[0,1]}": "sweep.params.seed is [0, 1]; it must be a text",
    "schedule.best_monitor=val/loss,val/species/top1 seed=0,1": "cannot be compared by both",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_a_mistake_is_one_line_with_the_fix(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        trials(*typed.split())
    assert REFUSED[typed] in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_parameters_of_a_file_and_the_command_line_are_combined():
    found = trials("sweep=seeds", "optimizer.lr=1e-3,1e-2", "launch=torchrun", "sweep.parallel=3", "trainer.length=7steps")
    assert [t.values for t in found[:2]] == [{"seed": "0", "optimizer.lr": "0.001"}, {"seed": "0", "optimizer.lr": "0.01"}]
    assert len(found) == 6 and found[0].overrides == ["trainer.length=7steps", "seed=0", "optimizer.lr=0.001"]
    assert [t.values["seed"] for t in trials("sweep=seeds", "seed=5,6")] == ["5", "6"], "the command line has precedence"
    assert trials("sweep=seeds", "seed=5")[0].overrides == ["seed=5"]


def test_the_launcher_of_an_experiment_is_used_by_the_parent_alone(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /launch: torchrun\nlaunch: {processes: 4}\nrun: {name: mine}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    parsed_request = request("--config-dir", str(tmp_path), "experiment=mine", "seed=0,1")
    assert (parsed_request.launch.name, parsed_request.launch.processes) == ("torchrun", 4)
    found = Grid(parsed_request).trials
    assert found[1].overrides == ["experiment=mine", "seed=1", "launch=process", "~launch.processes", "run.name=mine-2"]
    assert found[1].config.launch.name == "process" and found[1].directory.name == "mine-2"
    single = make_trial(request("--config-dir", str(tmp_path), "experiment=mine", multirun=False), 0, {})
    assert single.overrides == ["experiment=mine", "launch=process", "~launch.processes"] and single.directory.name == "mine"


@pytest.mark.parametrize(("seed", "multirun"), [("seed=1", False), ("seed=1,2", True)])
def test_a_plan_is_not_a_slurm_job(seed, multirun):
    parsed_request = request("launch=slurm", "plan=true", seed, multirun=multirun)
    values = {p.key: "1" for p in parsed_request.parameters}
    with pytest.raises(ConfigError, match=r"plan=true submits no SLURM job; leave out launch=slurm"):
        make_trial(parsed_request, int(multirun), values, check_directory=False)


def test_a_sweep_can_repeat_a_saved_run(tmp_path):
    run = RunDirectory(dataclasses.asdict(compose([f"run.root={tmp_path}", "run.name=saved", "trainer.length=7steps"])))
    run.start()
    run.release()
    found = trials(f"run.from={run.path}", "run.name=again", "seed=1,2")
    assert [(t.config.seed, t.config.trainer.length, t.directory.name) for t in found] == [
        (1, "7steps", "again-1"),
        (2, "7steps", "again-2"),
    ]


def test_the_name_of_a_sweep_depends_on_its_values_and_not_on_its_launcher():
    def name(*arguments: str) -> str:
        parsed_request = request("seed=0,1", *arguments)
        return sweep_name(parsed_request, make_trial(parsed_request, 1, {p.key: p.values_to_check()[0] for p in parsed_request.parameters}))

    assert name() == name("sweep.parallel=4", "launch=torchrun", "logger.console=quiet", "sweep.metric=val/x")
    assert len({name(), name("optimizer.lr=1e-2"), name("optimizer.lr=1e-2,1e-3")}) == 3
    assert name("sweep.name=mine") == "mine"
    assert name("plan=true") == name() + "-plan" and name("sweep.name=mine", "plan=true") == "mine-plan"


def test_metric_and_mode():
    config = compose(["schedule.best_monitor=val/species/top1"])
    assert metric_of(config.sweep, config) == Metric("val/species/top1", "max", True)
    assert metric_of(dataclasses.replace(config.sweep, metric="val/loss"), config) == Metric("val/loss", "min", False)
    assert metric_of(dataclasses.replace(config.sweep, metric="val/loss", mode="max"), config).mode == "max"


def test_trials_are_compared_by_one_metric():
    def swept(*typed):
        parsed_request = request(*typed)
        (p,) = parsed_request.parameters
        return parsed_request.sweep, [make_trial(parsed_request, 1, {p.key: v}, check_directory=False) for v in p.choices]

    averaged = common_metric(*swept("trainer.ema_decay=null,0.9"))
    assert averaged == Metric("val/loss", "min", True)
    for second in ("val/genus/top1", "val/loss"):
        typed = f"schedule.best_monitor=val/species/top1,{second}"
        with pytest.raises(ConfigError, match=f"by both val/species/top1 and {second}; choose one with sweep.metric"):
            common_metric(*swept(typed))
        assert common_metric(*swept(typed, "sweep.metric=val/loss")) == Metric("val/loss", "min", False)


@pytest.mark.parametrize("prefix, decay", [("val", "null"), ("val_ema", "0.9")])
def test_the_metric_and_columns_of_a_trial_that_validates_averaged_weights(tmp_path, prefix, decay):
    """Without the translation a sweep by `sweep.metric=val/...` ends with an error after its first trial with `trainer.ema_decay`."""
    parsed_request = request("sweep=taxonomy", "head=linear,marginal", f"trainer.ema_decay={decay}", f"run.root={tmp_path}")
    trial = make_trial(parsed_request, 1, {"head": "linear"}, check_directory=False)
    trial.directory.mkdir(parents=True)
    final = {f"{prefix}/hd1": 0.5, f"{prefix}/species/top1": 0.25}
    write_summary(trial.directory / "summary.json", "finished", 5, best={}, final=final, timings={})
    result = finished_result(trial, parsed_request.sweep)
    assert result.value == 0.5 and result.columns == {"val/species/top1": 0.25}


def test_values_in_tables():
    """`8049e72219` is a name; as a number it is infinite."""
    texts = {"1700000001": "1700000001", "-123456789": "-123456789", "0.0123456789": "0.01235", "8049e72219": "8049e72219", "1e-3": "1e-3"}
    assert {text: short_value(text) for text in texts} == texts


def test_the_error_of_a_trial_under_torchrun_is_that_of_its_process(tmp_path):
    log, of_torchrun = tmp_path / "trial-01.log", f"error: process rank 0 failed with exit status 1; {SEE_ABOVE}"
    log.write_text("error: of an earlier start\n")
    start = log.stat().st_size
    for lines, found in (
        ([], None),
        (["step 1", "step 2"], "step 2"),
        (["step 1", of_torchrun], of_torchrun),
        (["error: 2 updates skipped", "step 2 is saved", of_torchrun], "error: 2 updates skipped"),
    ):
        log.write_text("error: of an earlier start\n" + "".join(f"{line}\n" for line in lines))
        assert last_error(log, start) == found


def test_the_table_and_the_picture_of_measured_trials(tmp_path):
    parsed_request = request("optimizer=adamw,sgd", "optimizer.lr=1e-3,1e-2,1e-1", "seed=4,5")
    one = make_trial(parsed_request, 1, {p.key: p.values_to_check()[0] for p in parsed_request.parameters})
    values = itertools.product(*(p.choices or () for p in parsed_request.parameters))
    found = [dataclasses.replace(one, number=i, values=dict(zip(one.values, v))) for i, v in enumerate(values, 1)]
    source = TrialSource()
    source.trials, source.metric = found, Metric("val/top1", "max", True)
    assert sweep_picture(parsed_request.parameters, source) is None
    source.results = {t.number: TrialResult("finished", t.number / 7, step=5) for t in found[:9]} | {10: TrialResult("failed")}
    files = SweepFiles(tmp_path, tmp_path, source, ["optimizer", "optimizer.lr", "seed"])
    lines = files.table().splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["*", "8", "7"] and "failed" in lines[10] and "waiting" in lines[11]
    picture = sweep_picture(parsed_request.parameters, source)
    assert picture is not None and picture.count("<circle") == 27 and picture.count("#D55E00") == 4
    assert "optimizer.lr (logarithmic)" in picture and ">sgd</text>" in picture
    names = {"sweep.json", "trials.csv", "table.txt"}
    files.write({}, picture)
    assert {path.name for path in tmp_path.iterdir()} == names | {"means.txt", "sweep.svg"}
    source.results = {}  # of another sweep with this name
    files.write({}, None)
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_missing_optuna_is_a_mistake_with_its_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"needs the package optuna; install it with: pip install 'linnaeus\[sweep\]'"):
        import_optuna()


def commands():
    """Yield the commands with -m in the docs and conf/."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "conf").glob("*/*.yaml"))]:
        for found in re.finditer(r"^(?:# )?python main\.py (-m .*)$", page.read_text(), re.M):
            yield page.name, re.split(r"\s{2,}", found[1].split("#")[0].strip())[0]


def test_the_commands_in_the_docs_are_valid():
    """The sweeps that read photographs are checked by tests/e2e/test_documents.py, which writes some."""
    found = dict.fromkeys(line for _, line in commands() if "data=manifest" not in line)
    assert {"sweeps.md", "README.md", "optuna.yaml", "seeds.yaml"} <= {page for page, _ in commands()}
    for line in found:
        parsed_request = read_request(parse_command_line(shlex.split(line)))
        make_trial(parsed_request, 1, {p.key: p.values_to_check()[-1] for p in parsed_request.parameters}, check_directory=False)
