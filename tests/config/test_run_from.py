"""`run.from=RUN/config.yaml` repeats a run with the same bits; single keys may differ, the saved configuration is not composed again."""

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from linnaeus.config.help import help_text
from linnaeus.config.load import compose_tree
from linnaeus.errors import ConfigError
from linnaeus.rundir import RunDirectory, dump_yaml, run_path
from linnaeus.rundir.repeat import another_seed, split_from
from linnaeus.rundir.repeat import run_config as compose
from linnaeus.rundir.saved_config import fill_defaults
from tests import runs


def save(folder: Path, *overrides: str) -> Path:
    """Return the directory of a run of this configuration that has been started."""
    config = dataclasses.asdict(compose([*overrides, f"run.root={folder}"]))
    run = RunDirectory(config)
    run.start()
    run.release()
    return run.path


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    line = str(caught.value)
    assert "\n" not in line and len(line) < 500
    return line


# -- whole runs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    short = [
        "trainer.length=2steps",
        "trainer.global_batch_size=8",
        "schedule.validate_mask_meta=[]",
        "schedule.validate_partial_mask_meta=[]",
    ]
    return runs.run("biota", tmp_path_factory.mktemp("original"), *short, "trainer.ema_decay=0.9", "seed=3")


def test_a_repeated_run_has_the_same_bits(original: Path) -> None:
    config = compose([f"run.from={original}", "run.name=again", "trainer.num_workers=2"])
    assert compose([f"run.from={original}/config.yaml", "run.name=again", "trainer.num_workers=2"]) == config
    assert runs.start(config) == 0
    again = runs.run_path(config)
    assert again.parent == original.parent and again != original
    assert (again / "metrics.jsonl").read_bytes() == (original / "metrics.jsonl").read_bytes()
    assert runs.differences(again, original) == []
    assert yaml.safe_load((again / "config.yaml").read_text())["trainer"]["num_workers"] == 2


def test_another_seed_is_another_run(original: Path) -> None:
    """The negative control."""
    config = compose([f"run.from={original}", "run.name=other", "seed=4"])
    assert runs.start(config) == 0
    assert "metrics.jsonl" in runs.differences(runs.run_path(config), original)


def test_the_command_printed_at_the_end_of_a_named_run_starts_another_run(start: Any, original: Path, tmp_path: Path) -> None:
    run = tmp_path / "my runs" / "biota" / "first"
    shutil.copytree(original, run)
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace(str(original.parents[1]), str(run.parents[1])))
    for name in ("first-seed4", "first-seed5"):
        program, *arguments = shlex.split(another_seed(run, "first", 3))
        assert program == "linnaeus" and arguments[-1] == f"run.name={name}"
        status, out, err = start("plan=true", "logger.console=plain", *arguments, root=False)
        assert status == 0 and f"{name}/schedule.svg" in out, err
    assert compose(shlex.split(another_seed(run, "first-seed5", 5))[1:]).seed == 6
    assert another_seed(Path("a"), None, 1) == "linnaeus run.from=a/config.yaml seed=2"
    assert compose(shlex.split(another_seed(run, "a, b", 0))[1:]).run.name == "a, b-seed1"


def test_on_the_command_line(start: Any, original: Path) -> None:
    status, _, err = start(f"run.from={original}/config.yaml", root=False)
    assert status == 2 and err.count("\n") == 1 and "in its own directory" in err and "run.name" in err
    assert start(f"run.from={original}/config.yaml", "run.name=typed", root=False)[0] == 0
    typed = original.parent / "typed"
    assert (typed / "metrics.jsonl").read_bytes() == (original / "metrics.jsonl").read_bytes()
    launch = json.loads((typed / "launches" / "1" / "launch.json").read_text())
    assert launch["overrides"][0] == f"run.from={original}/config.yaml"
    status, out, _ = start(f"run.from={original}/config.yaml", "run.name=typed", "logger.console=plain", root=False)
    assert status == 0 and "typed is finished" in out


# -- settings of the command ------------------------------------------------------------------------------------------------------


def test_single_keys_apply_as_plain_values(tmp_path: Path) -> None:
    run = save(tmp_path, "optimizer=sgd", "weighting.weights={species:2}", "schedule.mixup_prob={start:0.1,end:0.2}", "run.name=a")
    more = ["optimizer.lr=1e-2", "schedule.validate=[50%]", "schedule.mixup_prob={end:0.3}", "++weighting.weights={genus:3}", "run.name=b"]
    config = compose([*more[:2], f"run.from='{run}'", *more[2:]])
    before = compose([f"run.from={run}", "run.name=b"])
    assert (config.optimizer.name, config.optimizer.lr, config.schedule.validate) == ("sgd", 0.01, ["50%"])
    assert (config.schedule.mixup_prob.start, config.schedule.mixup_prob.end) == (0.1, 0.3)
    assert config.weighting.weights == {"species": 2.0, "genus": 3.0}
    assert (
        compose([f"run.from={run}", "trainer.threads=${trainer.num_workers}", "trainer.num_workers=3", "run.name=b"]).trainer.threads == 3
    )
    changed = {"optimizer": before.optimizer, "schedule": before.schedule, "weighting": before.weighting}
    assert dataclasses.replace(config, **changed) == before


def test_launch_and_sweep_are_not_repeated(tmp_path: Path) -> None:
    run = save(tmp_path, "launch=torchrun", "launch.processes=3", "sweep=seeds")
    config = compose([f"run.from={run}", "run.name=b"])
    assert (config.launch, config.sweep) == (compose().launch, compose().sweep)
    again = compose([f"run.from={run}", "run.name=b", "launch=torchrun", "launch.processes=5"])
    assert dataclasses.asdict(again.launch) == {"name": "torchrun", "processes": 5}


def test_a_monitor_brings_its_own_direction(tmp_path: Path) -> None:
    """The saved direction was derived from another metric."""
    run = save(tmp_path, "lr_scheduler=plateau")
    config = compose([f"run.from={run}", "schedule.best_monitor=val/species/top1", "lr_scheduler.monitor=val/chain"])
    assert config.schedule.best_mode == config.lr_scheduler.mode == "max" and config.schedule.early_stop.mode == "min"
    assert compose([f"run.from={run}", "schedule.best_monitor=val/chain", "schedule.best_mode=min"]).schedule.best_mode == "min"


@pytest.mark.parametrize(
    "typed, message",
    {
        "model=timm": "model=timm chooses a group of files, but the configuration of run.from is already composed",
        "experiment=plants480": "chooses a group of files",
        "model@head=timm": "chooses a group of files",
        "trainer.lenght=3epochs": "unknown key trainer.lenght; did you mean trainer.length?",
        "+trainer.length=3epochs": "leave the + out",
        "~trainer.length": "a run needs all keys",
        "weighting.weights.species=much": "it must be a number",
        "trainer={length: 3epochs}": "trainer={length: 3epochs} chooses a group of files",
        "seed=1,2": "add -m",
        "hydra.verbose=true": "unknown key hydra.verbose",
    }.items(),
)
def test_invalid_settings_are_refused(typed: str, message: str, tmp_path: Path) -> None:
    assert message in refusal(f"run.from={save(tmp_path)}", typed, "run.name=x")


def test_a_mistyped_key_of_another_workload_or_option_than_the_default_names_the_nearest_one(tmp_path: Path) -> None:
    language = save(tmp_path, "workload=language")
    assert "unknown key model.layer; did you mean model.layers?" in refusal(f"run.from={language}", "model.layer=2", "run.name=x")
    timm = save(tmp_path, "optimizer=timm", "model=timm")
    assert "did you mean model.pretrained_file?" in refusal(f"run.from={timm}", "model.pretrained_fil=a", "run.name=x")


def test_files_that_are_not_a_saved_configuration(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "contains no config.yaml" in refusal(f"run.from={tmp_path / 'empty'}")
    for given in ("", tmp_path / "nowhere"):
        assert "does not exist" in refusal(f"run.from={given}")
    texts = {
        "[1]": "is not a saved configuration",
        "a: [1": "cannot be read",
        "defaults: []\nrun: {}\n": "use experiment=",
        "a: 1": "has no groups run and workload",
        "\0\1": "cannot be read",
        "[" * 9000: "cannot be read",
        "run: {name: 2026-02-30}": "cannot be read",
        "run: {}\nworkload: {name: .x}": "workload.name is '.x', which cannot be imported",
    }
    for text, message in texts.items():
        (tmp_path / "file").write_text(text)
        assert message in refusal(f"run.from={tmp_path / 'file'}"), text


def test_null_is_not_a_file() -> None:
    assert compose(["run.from=null", "seed=2"]) == compose(["seed=2"])
    assert split_from(["a=1", "run.from=x=y/config.yaml", "run.form=2"]) == ("x=y/config.yaml", ["a=1", "run.form=2"])
    assert split_from(['+run.from="a b"']) == ("a b", [])


def test_help_and_hints_contain_the_key(start: Any, tmp_path: Path) -> None:
    assert "  run.from = null\n      str or null: repeat a run" in help_text(compose())
    status, _, err = start("run.form=x")
    assert status == 2 and "unknown key run.form; did you mean run.from?" in err
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\nrun:\n  from: x\n")
    with pytest.raises(ConfigError, match="on the command line"):
        compose(["experiment=mine"], tmp_path / "conf")


# -- the new run directory ----------------------------------------------------------------------------------------------------------


def test_a_repetition_never_enters_the_directory_of_the_other(tmp_path: Path) -> None:
    run = save(tmp_path)  # named by its hash
    for given in (run, run / "config.yaml", run / "launches" / "1" / "config.yaml"):
        assert "in its own directory" in refusal(f"run.from={given}", "trainer.num_workers=3"), "which alters no update"
    other = compose([f"run.from={run}", "seed=9"])
    assert run_path(dataclasses.asdict(other)) != run
    named = save(tmp_path, "run.name=mine")
    assert "in its own directory" in refusal(f"run.from={named}", "seed=9")
    assert compose([f"run.from={named}", f"run.root={tmp_path}/elsewhere"]).run.name == "mine"


def test_settings_for_resuming_are_not_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = save(tmp_path, "run.name=a", "trainer.length=2epochs")
    save(tmp_path, "run.name=a", "trainer.length=3epochs", "run.allow=[trainer.length]")
    for name in ("b", "b-1"):  # as a sweep composes its trials
        config = compose([f"run.from={run}", f"run.name={name}"])
        assert (config.trainer.length, config.run.allow) == ("3epochs", [])
    assert caplog.text.count('the last one is used from the start: trainer.length: "2epochs" -> "3epochs"') == 1
    advised = re.search(r"run\.from=(\S+) repeats it with its first settings", caplog.text)
    assert advised and compose([f"run.from={advised[1]}", "run.name=first"]).trainer.length == "2epochs"
    refusing = save(tmp_path, "run.name=c", "run.resume=never")
    assert compose([f"run.from={refusing}", "run.name=b"]).run.resume == "auto"


# -- files of other versions ---------------------------------------------------------------------------------------------------


def edited(run: Path, edit: Any) -> None:
    tree = yaml.safe_load((run / "config.yaml").read_text())
    edit(tree)
    (run / "config.yaml").write_text(dump_yaml(tree))


def older(tree: dict[str, Any]) -> None:
    """Remove keys that an earlier version did not have."""
    del tree["logger"], tree["trainer"]["max_grad_norm"], tree["schedule"]["early_stop"]["min_delta"], tree["model"]["pretrained"]
    del tree["schedule"]["best_mode"], tree["run"]["init_from"]


LACKED = ["model.pretrained", "run.init_from", "schedule.best_mode", "schedule.early_stop.min_delta", "trainer.max_grad_norm"]


def test_missing_keys_of_a_saved_file_get_their_defaults_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = save(tmp_path, "model=timm", "model.meta_width=8")
    whole = compose([f"run.from={run}", "run.name=x"])
    assert "earlier version" not in caplog.text
    edited(run, older)
    assert compose([f"run.from={run}", "run.name=x"]) == whole
    assert "is of an earlier version; keys set to their defaults: " in caplog.text and all(k in caplog.text for k in [*LACKED, "logger"])


def test_unknown_groups_are_not_filled(tmp_path: Path) -> None:
    tree = compose_tree(["weighting.weights={species:2}"])
    assert fill_defaults(tree) == (tree, [])
    for strange in ({"seed": 0}, {"workload": {"name": "no.such.package"}}, {"workload": None}):
        assert fill_defaults(strange) == (strange, [])
    del tree["data"]["world"]
    tree["data"]["name"] = "gone"  # a source that this program does not have
    assert fill_defaults(tree)[1] == [] and "world" not in fill_defaults(tree)[0]["data"]
    vectors = compose_tree(["experiment=vectors"], runs.VECTORS)
    del vectors["model"]["hidden"], vectors["trainer"]["threads"]
    assert fill_defaults(vectors)[1] == ["trainer.threads"]
    complete, names = fill_defaults(vectors, runs.VECTORS)
    assert names == ["model.hidden", "trainer.threads"] and complete["model"]["hidden"] == 32


def test_a_key_that_no_longer_exists_is_one_line(tmp_path: Path) -> None:
    run = save(tmp_path)
    edited(run, lambda tree: tree["trainer"].update(max_grad_nrom=1.0))
    line = refusal(f"run.from={run}", "run.name=x")
    assert "does not fit this version" in line and "trainer.max_grad_nrom" in line


def test_a_key_that_came_later_does_not_stop_a_run(tmp_path: Path) -> None:
    overrides = ["model=timm", "run.name=a", f"run.root={tmp_path}"]
    run = save(tmp_path, *overrides[:-1])
    edited(run, older)
    found = RunDirectory(dataclasses.asdict(compose(overrides)))
    assert (
        not found.altered and found.changes[0].startswith("keys of a later version") and found.previous["trainer"]["max_grad_norm"] == 1.0
    )
    with pytest.raises(ConfigError, match=r"trainer\.max_grad_norm: 1.0 -> 2.0"):  # another value than the default is a change
        RunDirectory(dataclasses.asdict(compose([*overrides, "trainer.max_grad_norm=2"])))
    edited(run, lambda tree: tree["trainer"].update(gone=1))
    with pytest.raises(ConfigError, match=r"trainer\.gone: 1 -> \(absent\)"):
        RunDirectory(dataclasses.asdict(compose(overrides)))
    assert RunDirectory(dataclasses.asdict(compose([*overrides, "run.allow=[trainer.gone]"]))).altered
