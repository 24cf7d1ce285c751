"""The command line has precedence over an experiment: its mappings in braces and its choices of groups replace those of the file."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from linnaeus.config.command_line import parse_command_line
from linnaeus.config.load import compose_tree
from linnaeus.config.precedence import note
from linnaeus.errors import ConfigError
from linnaeus.rundir.repeat import run_config as compose
from linnaeus.sweep.request import read_request
from linnaeus.sweep.trial_source import Grid
from tests import runs

EXPERIMENT = """# @package _global_
defaults:
  - override /workload: language
  - override /optimizer: adamw

run: {experiment: mine}
data:
  tokenizer: byte
  sources: {birds: ['birds/**'], moths: ['moths/**']}
model: {size: gpt_nano, dimensions: [calm]}
optimizer: {lr: 0.01, beta2: 0.9}
lr_scheduler: {warmup: 2steps, final_scale: 0.2}
weighting: {weights: {text: 3, other: 2}}
schedule:
  mixup_prob: {start: 0.1, end: 0.2}
  phases:
    dawn: {start: 0%, end: 60%, lr: 2, data: {birds: 1}, dimensions: {calm: 2}}
    dusk: {start: 50%, end: 100%, data: {moths: 1}}
"""
ONE = "schedule.phases={noon: {start: 0%, end: 100%}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of groups with `experiment=mine`."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(EXPERIMENT)
    note.cache_clear()
    return tmp_path / "conf"


@pytest.fixture
def mine(folder: Path) -> Any:
    return lambda *overrides: compose(["experiment=mine", *overrides], folder)


def phases_of(config: Any) -> dict[str, Any]:
    return {name: (phase.start, phase.lr, phase.data, phase.dimensions) for name, phase in config.schedule.phases.items()}


DAWN, DUSK = ("0%", 2.0, {"birds": 1.0}, {"calm": 2.0}), ("50%", 1.0, {"moths": 1.0}, {})


# -- mappings that are given whole ---------------------------------------------------------------------------------------------


def test_a_mapping_in_braces_replaces_the_mapping_of_the_experiment(mine: Any) -> None:
    assert mine().data.sources == {"birds": ["birds/**"], "moths": ["moths/**"]} and phases_of(mine()) == {"dawn": DAWN, "dusk": DUSK}
    assert mine("data.sources={poems: [p/*], birds: [b/*]}").data.sources == {"poems": ["p/*"], "birds": ["b/*"]}
    assert phases_of(mine(ONE)) == {"noon": ("0%", 1.0, {}, {})}
    assert mine("weighting.weights={text: 1}").weighting.weights == {"text": 1.0}
    assert mine("weighting.weights={}").weighting.weights == {}


def test_an_entry_in_braces_changes_its_keys_and_replaces_its_mappings(mine: Any) -> None:
    assert phases_of(mine("schedule.phases.dawn={lr: 3}"))["dawn"] == ("0%", 3.0, *DAWN[2:])
    assert phases_of(mine("schedule.phases.dawn={data: {moths: 2}}"))["dawn"] == ("0%", 2.0, {"moths": 2.0}, DAWN[3])
    assert phases_of(mine("schedule.phases.dawn.dimensions={brisk: 1}"))["dawn"] == (*DAWN[:3], {"brisk": 1.0})
    assert phases_of(mine("schedule={phases: {noon: {start: 0%, end: 100%}}}")) == phases_of(mine(ONE))


def test_groups_of_fixed_keys_keep_the_others(mine: Any) -> None:
    """The negative control: other keys of the group do not change."""
    mixing = mine("schedule.mixup_prob={end: 0.5}").schedule.mixup_prob
    assert (mixing.start, mixing.end, mixing.until) == (0.1, 0.5, "100%")
    assert mine("trainer={length: 7steps}").trainer.length == "7steps"


@pytest.mark.parametrize("first", [True, False])
def test_single_values_are_added_to_a_mapping_in_braces_in_any_order(mine: Any, first: bool) -> None:
    single = ["schedule.phases.noon.lr=4", "schedule.phases.noon.data.moths=1"]
    assert phases_of(mine(*single, ONE) if first else mine(ONE, *single)) == {"noon": ("0%", 4.0, {"moths": 1.0}, {})}


def test_single_values_change_or_add_an_entry(mine: Any) -> None:
    config = mine("schedule.phases.dusk.lr=5", "schedule.phases.dusk.data.birds=3", "data.sources.fish=[f/*]", "weighting.weights.text=7")
    assert phases_of(config) == {"dawn": DAWN, "dusk": ("50%", 5.0, {"moths": 1.0, "birds": 3.0}, {})}
    assert config.data.sources == {"birds": ["birds/**"], "moths": ["moths/**"], "fish": ["f/*"]}
    assert config.weighting.weights == {"text": 7.0, "other": 2.0}
    assert mine("++weighting.weights={third: 1}").weighting.weights == {"text": 3.0, "other": 2.0, "third": 1.0}, "as ++ says"


def test_null_removes_a_mapping_or_an_entry(mine: Any) -> None:
    assert mine("schedule.phases=null").schedule.phases is None and mine("data.sources=null").data.sources is None
    assert mine("weighting.weights=null").weighting.weights == {}
    assert phases_of(mine("schedule.phases.dawn.data=null", "schedule.phases.dusk.data=null"))["dawn"] == (*DAWN[:2], {}, DAWN[3])
    for away in ("schedule.phases.dawn=null", "~schedule.phases.dawn"):
        assert phases_of(mine(away)) == {"dusk": DUSK}
    for away in ("data.sources.birds=null", "~data.sources.birds"):
        assert mine(away).data.sources == {"moths": ["moths/**"]}


def test_an_experiment_may_remove_an_entry_of_the_experiment_that_it_extends(folder: Path) -> None:
    text = "# @package _global_\ndefaults: [mine]\nschedule: {phases: {dawn: null}}\n"
    (folder / "experiment" / "less.yaml").write_text(text)
    assert phases_of(compose(["experiment=less"], folder)) == {"dusk": DUSK}


@pytest.mark.parametrize("typed", ["schedule.phases.down=null", "~schedule.phases.down", "~data.sources.fish", "data.sources.fish=null"])
def test_an_entry_that_does_not_exist_cannot_be_removed(typed: str, start: Any, folder: Path) -> None:
    status, _, err = start("--config-dir", str(folder), "experiment=mine", typed)
    key = typed.strip("~").removesuffix("=null")
    shown = f"`linnaeus --cfg job --package {key.rpartition('.')[0]}` without this setting shows which there are"
    assert (status, err) == (2, f"error: unknown key {key}; {shown}\n")


@pytest.mark.parametrize(
    "typed, message",
    {
        "schedule.phases.noon.lr=2": "schedule.phases.noon.start is missing",
        "schedule.phases.dawn.learning_rate=2": "unknown key schedule.phases.dawn.learning_rate; the keys there are start",
        "weighting.weights.text=much": "weighting.weights.text is 'much'; it must be a number",
        "weighting.weights.text.x=1": "weighting.weights.text is {'x': 1}",
        "data.block.x=1": "data.block is {'x': 1}; it must be an integer",
        "data.source={birds: [b/*]}": "unknown key data.source; did you mean data.sources?",
    }.items(),
)
def test_an_unknown_or_invalid_key_is_named(mine: Any, typed: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mine(typed)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_shipped_experiment_with_the_user_s_own_sources(start: Any, tmp_path: Path) -> None:
    for name in ("poems", "prose"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.txt").write_text(f"a text of {name}, and on and on. " * 400)
    sources = "data.sources={poems: ['poems/*'], prose: ['prose/*']}"
    phases = "schedule.phases={one: {start: 0%, end: 100%, data: {prose: 1}}}"
    given = ["experiment=nanecho_folder", f"data.path={tmp_path}", sources, "plan=true", "logger.console=plain", "model.size=gpt_nano"]
    for curriculum in (phases, "schedule.phases=null"):
        status, out, err = start(*given, curriculum)
        assert (status, err) == (0, "")
        assert ("(one)" in out or " one" in out) == (curriculum == phases) and "basic_awareness" not in out
    status, _, err = start(*given)
    assert status == 2 and "schedule.phases.basic_awareness.data names basics" in err, "phases of other sources are not dropped"


# -- keys of another choice ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed, left",
    {
        "lr_scheduler=constant": "lr_scheduler.final_scale (lr_scheduler=constant)",
        "optimizer=sgd": "optimizer.beta2 (optimizer=sgd)",
        "data=tokens data.path=F": "data.tokenizer (data=tokens), data.sources (data=tokens)",
        "optimizer=sgd lr_scheduler=step": "optimizer.beta2 (optimizer=sgd), lr_scheduler.final_scale (lr_scheduler=step)",
    }.items(),
)
def test_keys_of_the_experiment_s_choice_are_left_out_with_another_choice(
    mine: Any, typed: str, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = mine(*typed.split())
    assert config == mine(*typed.split())
    assert [record.getMessage() for record in caplog.records] == [f"settings of the experiment that do not apply, left out: {left}"]
    assert config.optimizer.lr == 0.01 and config.lr_scheduler.warmup == "2steps", "keys of both choices stay"


def test_no_key_is_left_out_if_all_apply(mine: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The negative control."""
    assert mine("lr_scheduler=linear", "optimizer=muon").lr_scheduler.final_scale == 0.2
    assert mine("optimizer=adamw") == mine()
    assert caplog.text == ""


@pytest.mark.parametrize(
    "typed, message",
    {
        "optimizer=sgd optimizer.beta2=0.9": "optimizer=sgd does not have it; leave it out, or choose optimizer=adamw or optimizer=muon",
        "optimizer=sgd +optimizer.beta1=0.9": "unknown key optimizer.beta1; optimizer=sgd does not have it; leave it out, or choose",
        "optimizer=sgd optimizer.beta1=0.9": "unknown key optimizer.beta1; choose optimizer=adamw or optimizer=muon for it",
        "optimizer=sgd optimizer.betta2=0.9": "unknown key optimizer.betta2",
        "optimizer=sgd optimizer.momentun=0.1": "unknown key optimizer.momentun; did you mean optimizer.momentum?",
        "optimizer=sgd optimizer.zzz=0.1": "unknown key optimizer.zzz; the keys there are fused, layer_decay, lr, lr_reference_batch, lr_",
        "optimizer={momentum:0.9}": "optimizer=adamw does not have it; leave it out, or choose optimizer=sgd",
        "data=tokens data.path=F data.sources={a:[b]}": "data=tokens does not have it; leave it out, or choose data=text",
        "data=tokens data.path=F data.sources.a=[b]": "data=tokens does not have it; leave it out, or choose data=text",
    }.items(),
)
def test_a_key_that_was_typed_is_never_left_out(start: Any, folder: Path, typed: str, message: str) -> None:
    status, _, err = start("--config-dir", str(folder), "experiment=mine", *typed.split())
    assert status == 2 and message in err and err.count("\n") == 1, err


def test_a_key_that_no_choice_has_is_a_mistake_in_the_file(folder: Path) -> None:
    """Another negative control: only keys of other choices are left out, and only where a choice was typed."""
    text = "# @package _global_\noptimizer: {betta2: 0.9}\nlr_scheduler: {milestones: [50%]}\n"
    (folder / "experiment" / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"unknown key optimizer\.betta2"):
        compose(["experiment=wrong", "optimizer=adamw"], folder)
    with pytest.raises(
        ConfigError, match=r"unknown key lr_scheduler\.milestones; lr_scheduler=cosine does not have it; leave it out, or choose"
    ):
        compose(["experiment=wrong", "~optimizer.betta2"], folder)


def test_a_required_value_is_not_required_once_it_is_left_out(folder: Path) -> None:
    (folder / "experiment" / "asks.yaml").write_text("# @package _global_\noptimizer: {beta2: '???'}\n")
    assert compose(["experiment=asks", "optimizer=sgd"], folder).optimizer.name == "sgd"
    assert compose(["experiment=asks", "optimizer.beta2=0.5"], folder).optimizer.beta2 == 0.5


# -- every command that composes --------------------------------------------------------------------------------------------------

SHOWN = (
    [ONE],
    ["data.sources={poems: [p/*]}", "schedule.phases.dawn={data: {poems: 1}}", "schedule.phases.dusk=null"],
    ["lr_scheduler=constant", "optimizer=sgd", "weighting.weights={text: 1}", "weighting.weights.more=2"],
    ["data=tokens", "data.path=F", "schedule.phases=null"],
    ["seed=3"],
)


@pytest.mark.parametrize("typed", SHOWN, ids=str)
def test_cfg_shows_what_a_run_would_have(typed: list[str], start: Any, folder: Path, capsys: pytest.CaptureFixture) -> None:
    given = ["--config-dir", str(folder), "experiment=mine", *typed]
    tree = compose_tree(["experiment=mine", *typed], folder)
    capsys.readouterr()  # the warning, which a process logs once
    whole, part = (start("--cfg", "job", *package, *given, root=False) for package in ([], ["--package", "schedule"]))
    assert whole[0::2] == part[0::2] == (0, "")
    assert (yaml.safe_load(whole[1]), yaml.safe_load(part[1])) == (tree, tree["schedule"])


def test_each_trial_of_a_sweep_has_its_own_curriculum(folder: Path) -> None:
    two = "{dawn: {start: 0%, end: 100%}}"
    asked = ["-m", "--config-dir", str(folder), "experiment=mine", f"{ONE},{two}", "lr_scheduler=constant,cosine"]
    found = Grid(read_request(parse_command_line(asked))).trials
    assert [list(trial.config.schedule.phases) for trial in found] == [["noon"], ["noon"], ["dawn"], ["dawn"]]
    assert [phases_of(trial.config)["dawn"][1:] for trial in found[2:]] == [(1.0, {}, {})] * 2
    assert [trial.config.lr_scheduler.name for trial in found] == ["constant", "cosine"] * 2
    for trial in found:  # its process composes the same configuration
        assert compose(parse_command_line(trial.overrides).overrides, folder) == trial.config


def test_a_run_saves_the_overrides_and_the_configuration(tmp_path: Path, start: Any) -> None:
    phases = "schedule.phases={low: {start: 0%, end: 100%, lr: 0.5}}"
    given = ["--config-dir", str(runs.VECTORS), "experiment=vectors", "trainer.length=2steps", "logger.report=false", "trainer.device=cpu"]
    status, _, err = start(*given, "lr_scheduler.warmup=0steps", "run.name=one", phases)
    assert (status, err) == (0, "")
    run = tmp_path / "runs" / "vectors" / "one"
    assert phases in json.loads((run / "run.json").read_text())["overrides"]
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert list(saved["schedule"]["phases"]) == ["low"]
    whole = "schedule.phases={high: {start: 0%, end: 100%, lr: 2}}"
    again = compose([f"run.from={run}", "run.name=two", whole, "schedule.phases.high.description=x"])
    assert {name: (phase.lr, phase.description) for name, phase in again.schedule.phases.items()} == {"high": (2.0, "x")}
    assert compose([f"run.from={run}", "run.name=two", "schedule.phases=null"]).schedule.phases is None
    for away in ("~schedule.phases.low", "schedule.phases.low=null"):
        assert compose([f"run.from={run}", "run.name=two", away]).schedule.phases == {}
    with pytest.raises(ConfigError, match=r"unknown key schedule\.phases\.lo; "):
        compose([f"run.from={run}", "run.name=two", "schedule.phases.lo=null"])


def test_a_workload_that_an_experiment_replaces_is_refused(folder: Path) -> None:
    (folder / "experiment" / "other.yaml").write_text("# @package _global_\nworkload: {name: language}\n")
    with pytest.raises(ConfigError, match=r"workload=loadout has no effect: experiment=other sets workload.name=language; leave"):
        compose_tree(["workload=loadout", "experiment=other"], folder)
    assert compose_tree(["workload=language", "experiment=other"], folder)["workload"]["name"] == "language"
