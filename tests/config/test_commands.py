"""--help, --cfg, plan=true and debug=fdr, as a user types them."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from linnaeus.config import compose
from linnaeus.config.command_line import setting_text
from linnaeus.config.help import describe, help_text
from linnaeus.requirements import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    f"--config-dir {ROOT}/tests/vectors/conf experiment=vectors trainer.length=2steps logger.report=false trainer.device=cpu "
    "lr_scheduler.warmup=0steps"
).split()


def test_help_lists_every_key_with_type_value_and_meaning():
    text = help_text(compose(["model=timm", "data=manifest", "trainer.length=7epochs"], missing_ok=True))
    config = compose(["model=timm", "data=manifest", "data.path=x", "trainer.length=7epochs"])
    for key, kind, value, meaning in describe(config):
        shown = "???" if key == "data.path" else value
        assert f"  {key} = {shown}\n      {kind}: {meaning}\n" in text
    assert "trainer.length = 7epochs\n      duration:" in text
    assert "optimizer: adamw, muon, sgd" in text


def test_help_takes_the_options_of_a_run_and_refuses_the_same_mistakes(start):
    status, out, err = start("--help", "--config-dir", str(ROOT / "tests/vectors/conf"), "experiment=vectors")
    assert status == 0 and err == "" and "model.hidden = 32" in out
    status, out, err = start("--help", "model=nope")
    assert status == 2 and out == "" and err.count("\n") == 1


def test_help_with_a_config_dir_lists_the_groups_of_both_places(start):
    _, out, _ = start("--help", "--config-dir", str(ROOT / "tests/vectors/conf"))
    models = next(line for line in out.splitlines() if line.startswith("  model: "))
    assert {"gpt", "mlp", "set_transformer", "timm"} <= set(models.removeprefix("  model: ").split(", "))
    assert "  optimizer: adamw, muon, sgd" in out and "\n  data: activations, battles, biota, " in out


def test_help_searches_keys_meanings_and_groups(start):
    status, out, _ = start("--help", "clipping")
    assert status == 0 and "  trainer.max_grad_norm = 1.0\n" in out and "optimizer.lr =" not in out and out.count("\n") < 8
    _, out, _ = start("--help", "optimizer", "model=timm")
    assert "  optimizer.lr = " in out and "  optimizer: adamw, muon, sgd" in out and "trainer.length" not in out
    status, out, err = start("--help", "epochs_of_training")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "no key, meaning or group has it; try a part of the word, or `linnaeus --help-keys`" in err
    assert "no key, meaning or group has it; use trainer.max_grad_norm=1.0" in start("--help", "gradient_clip_val")[2]


def test_a_missing_package_is_one_line():
    done = subprocess.run([sys.executable, "-S", "main.py", "plan=true"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "does not have torch, " in done.stderr and "activate" in done.stderr and "pip install" in done.stderr


def test_the_packages_that_are_looked_for_are_the_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*PACKAGES.values(), "simplejpeg"} == {re.match(r"[\w-]+", text)[0] for text in project["dependencies"]}


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"]], ids=" ".join)
def test_what_only_prints_does_not_import_torch(arguments):
    code = f"import sys, main; sys.argv = ['main.py', *{arguments}]; status = main.main(); sys.exit(status or 3 * ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "seed" in done.stdout and "optimizer" in done.stdout


@pytest.mark.parametrize("program", ["main.py", "-m linnaeus"])
def test_help_survives_a_reader_that_leaves(program):
    done = subprocess.run(
        f"{sys.executable} -u {program} --help | head -1", shell=True, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.startswith("linnaeus") and done.stderr == ""


def test_a_plan_prints_the_schedule_trains_nothing_and_is_no_run(start, tmp_path):
    status, out, err = start("plan=true", "run.name=one", *TINY)
    directory = tmp_path / "runs" / "vectors" / "one"
    assert status == 0 and err == ""
    assert sorted(p.name for p in directory.iterdir()) == ["schedule.svg", "schedule.txt"]
    planned = (directory / "schedule.txt").read_text()
    assert "total steps                 2" in planned and planned.splitlines()[-1] in out
    assert start("run.name=one", *TINY)[0] == 0
    assert json.loads((directory / "summary.json").read_text())["status"] == "finished"
    assert (directory / "schedule.txt").read_text() == planned
    status, out, _ = start("run.name=one", *TINY)
    assert status == 0 and "is finished" in out
    _, launched, _ = start("launch=torchrun", "launch.processes=1", "run.name=one", *TINY)
    assert launched.partition(" is finished")[2] == out.partition(" is finished")[2], "one advice"
    longer = [text.replace("2steps", "3steps") for text in TINY]
    assert "trainer.length=... run.allow=[trainer.length]" in out and start("run.name=one", "run.allow=[trainer.length]", *longer)[0] == 0
    assert json.loads((directory / "summary.json").read_text())["global_step"] == 3


def test_a_plan_of_a_run_that_has_started_writes_nothing_and_names_the_next_step(start, tmp_path):
    assert start("run.name=one", *TINY)[0] == 0
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    longer = ["run.name=one", "run.allow=[trainer.length]", *(text.replace("2steps", "9steps") for text in TINY)]
    status, out, _ = start("plan=true", *longer)
    assert status == 0 and "total steps                 9" in out and "the run continues at step 2 of 9 in" in out.splitlines()[-1]
    status, out, _ = start("plan=true", "run.name=one", *TINY)
    assert status == 0 and "is finished" in out.splitlines()[-1]
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_plan_refuses_to_continue_with_other_data(start, tmp_path):
    assert start("run.name=one", *TINY)[0] == 0
    record = tmp_path / "runs" / "vectors" / "one" / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"data_fingerprint": "other"}))
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    longer = ["run.name=one", "run.allow=[trainer.length]", *(text.replace("2steps", "3steps") for text in TINY)]
    (plan_status, _, plan), (run_status, _, run) = (start(f"plan={plan}", *longer) for plan in ("true", "false"))
    assert plan == run and plan_status == run_status == 2 and "was trained on other data" in plan, (plan, run)
    assert {path: path.read_bytes() for path in before} == before


def test_the_preset_fdr_makes_one_step_of_everything(start, tmp_path):
    status, out, err = start("debug=fdr", *[text for text in TINY if not text.startswith(("logger.report", "trainer.length"))])
    (run,) = (tmp_path / "runs" / "vectors").iterdir()
    assert status == 0 and err == ""
    assert json.loads((run / "summary.json").read_text())["global_step"] == 1
    assert (run / "batches-rank0.jsonl").exists() and list((run / "debug").iterdir())
    assert len(out.splitlines()) < 100, "the metrics state is in files, not on the console"


@pytest.mark.parametrize(
    "text", ["st/o-1.e", "my store (1)", "a,b", "it's", "a\\", "a\\'b", "{a: 1}", "zip://a b::/x.zip", "ä", "a#b", "$x"]
)
def test_a_setting_that_is_printed_has_its_value_when_it_is_typed(text):
    assert compose(["data=manifest", setting_text("data.path", text)]).data.path == text
