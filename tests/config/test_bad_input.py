"""A mistake in the command is one line that names it, with exit status 2, and no file is left behind."""

import io
import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from linnaeus.config import compose, messages, shared, typed_config
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from tests import fork_server
from tests.config.observers import write_manifest

ROOT = Path(__file__).resolve().parents[2]
SMALL = "data.train_samples=40 data.validation_samples=20 data.image_size=32 trainer.num_workers=0"
SMALL += " trainer.global_batch_size=8 trainer.micro_batch_size=4"

# command -> text in the error
REFUSED = {
    # keys
    "foo=1": "unknown key foo",
    "+foo=1": "unknown key foo",
    "trainer.lenght=3epochs": "unknown key trainer.lenght; did you mean trainer.length?",
    "data.imagesize=3": "did you mean data.image_size?",
    "lr=3": "unknown key lr; use optimizer.lr=1e-3",
    "optmizer=adamw": "did you mean optimizer?",
    "seed.x=3": "seed is not a group",
    "hydra.foo=1": "hydra.foo=1 has no effect here",
    "schedule.mixup_prob={strat:0.1}": "did you mean schedule.mixup_prob.start?",
    "~trainer.length": "trainer.length is missing",
    "~model": "model is missing",
    "+trainer.length=2epochs": "leave the + out",
    "trainer.length=1epochs trainer.length=2epochs": "trainer.length is given twice",
    "seed=1 ++seed=2": "seed is given twice",
    "model=mformer model=timm": "model is given twice",
    "trainer.length=3epochs trainer={length:2epochs}": "trainer.length is given twice",
    "+optimizer=sgd": "optimizer is chosen twice; leave the + of +optimizer=... out",
    "++optimizer=sgd": "++optimizer=sgd: a group is chosen without +; leave the ++ out",
    # choices
    "model=mfromer": "did you mean mformer?",
    "experiment=mine": "there is no experiment=mine; choose one of ",
    "trainer=3": "a group takes the name of one of its files",
    "optimizer.name=sgd": "choose with optimizer=sgd",
    "lr_scheduler=constant lr_scheduler.final_scale=0.1": "choose lr_scheduler=cosine or lr_scheduler=linear or lr_scheduler=wsd for it",
    "schedule.early_stop.patence=3": "did you mean schedule.early_stop.patience?",
    "workload.name=nope": "workload.name is 'nope', which cannot be imported",
    "model.size=giant": "it must be one of micro",
    "trainer.precision=fp8": "it must be one of float32",
    # types and ranges
    "seed=abc": "seed is 'abc'; it must be an integer",
    "seed=1.5": "it must be an integer",
    "seed=true": "it must be an integer",
    "seed=-1": "seed is -1; it must be at least 0",
    "seed=null": "it must be an integer",
    "optimizer.lr=nan": "must be finite",
    "optimizer.lr=0": "it must be more than 0",
    "trainer.ema_decay=1": "it must be less than 1",
    "trainer.compile=maybe": "trainer.compile is 'maybe'; it must be one of false, blocks, whole",
    "trainer.compile=true": "trainer.compile is true; it must be one of false, blocks, whole",
    "trainer.activation_checkpointing=0": "trainer.activation_checkpointing is 0; it must be at least 1",
    "trainer.activation_checkpointing=all": "'all'; it must be one of none, blocks, N",
    "trainer.activation_checkpointing=true": "is true; it must be one of none, blocks, N",
    "trainer.max_grad_norm={a:1}": "trainer.max_grad_norm is {'a': 1}",
    "augment.crop_scale=0.5": "it must be a list",
    "augment.crop_scale=[1,0.5]": "augment.crop_scale is [1.0, 0.5]; it must be two numbers",
    "data.components=[SPATIAL,[TEMPORAL]]": "data.components[1]",
    "augment=none augment.off_last=10%": "augment.off_last=10% has no effect, since nothing is augmented or mixed; set it to 0%",
    # durations
    "augment.off_last=10min": "augment.off_last",
    "trainer.length=0epochs": "trainer.length is 0epochs; it must be at least 1 step",
    "trainer.length=3000000000steps": "trainer.length is 3000000000steps, which is 3,000,000,000 updates; it must be at most 1,000,000,000",
    "trainer.length=10min": "trainer.length is 10min; it must be in epochs or steps",
    "schedule.validate=[10min]": "a time cannot be converted to steps",
    "trainer.length=10": "it needs a unit: 10steps or 10epochs",
    "schedule.log=[50]": "schedule.log[0] is 50; it needs a unit: 50steps, 50epochs or 50%",
    "schedule.log={a:5steps}": "schedule.log is {a:5steps}, which is not of its type; `linnaeus --help schedule.log` shows the type",
    "trainer.length=-5": "trainer.length is -5; it needs a unit: 5steps or 5epochs",
    "trainer.length=true": "trainer.length is True; it must be a text",
    f"trainer.length={'9' * 400}steps": "the number is too large",
    "lr_scheduler.warmup=10": "it needs a unit: 10steps, 10epochs or 10%",
    "trainer.length=50%": "trainer.length is 50%; it must be in epochs or steps",
    "trainer.length=10parsecs": "a duration must be a number and a unit",
    "trainer.length=1.5steps": "the number of steps must be whole",
    "schedule.log=[-5steps]": "must not be negative",
    "schedule.validate=[0steps]": "use [] for never",
    "lr_scheduler.warmup=200%": "between 0% and 100%",
    "schedule.meta_mask_prob.begin=50% schedule.meta_mask_prob.until=10%": "comes before schedule.meta_mask_prob.begin",
    "lr_scheduler=wsd lr_scheduler.decay=99%": "shorten one",
    "lr_scheduler=step lr_scheduler.milestones=[]": "lr_scheduler.milestones is []",
    "trainer.threads=100000": "trainer.threads is 100000; it must be at most 1024",
    "data.image_size=100000": "data.image_size is 100000; it must be at most 8192",
    "loss.name=[null]": "loss.name is [None]; it must be one of",
    # batches
    "trainer.global_batch_size=0": "it must be at least 1",
    "trainer.global_batch_size=10": "use trainer.global_batch_size=8 or 12, or trainer.micro_batch_size=2",
    "trainer.global_batch_size=80 data.last_batch=drop": "is larger than the 40 training samples",
    "trainer.micro_batch_size=1 schedule.mixup_prob.end=0.5": "it must be even",
    # paths and data
    "data=manifest": "data.path is required",
    "data=manifest data.path=/no/such.csv": "data.path: '/no/such.csv' does not exist",
    "data=manifest data.path=FOLDER/manifest.csv data.image_column=picture": "data.image_column",
    "data=manifest data.path=FOLDER": "data.path",
    "run.resume=/no/checkpoint": "run.resume: '/no/checkpoint' does not exist",
    "run.resume=FOLDER": "run.resume",
    "run.root=/proc/nope": "run.root: /proc/nope",
    "run.root=FOLDER/manifest.csv": "run.root",
    "run.allow=[trainer.lenght]": "run.allow contains trainer.lenght, which is not a key",
    "run.name=a/b": "run.name: 'a/b' is not a valid directory name",
    # names of the workload
    "data.ranks=[species,foo]": "data.ranks: 'foo'",
    "data.ranks=[species,genus]": "coarse to fine",
    "data.components=[FOO]": "data.components: 'FOO' is not a metadata component; choose from SPATIAL",
    "data.components=[SPATIAL,SPATIAL] schedule.partial_combinations=[]": "names a component twice",
    "schedule.partial_combinations=[[FOO]]": "schedule.partial_combinations[0] names FOO",
    "schedule.partial_mask_weights=[1]": "schedule.partial_mask_weights",
    "schedule.mixup_prob.end=0.5 schedule.mixup_group_level=[{from:0%,level:phylum}]": "'phylum' is not a taxonomic rank",
    "weighting.weights={foo:1}": "weighting.weights.foo: foo is not a task",
    # monitors
    "schedule.best_monitor=val/foo": "schedule.best_monitor is val/foo, which no validation of this run measures",
    "schedule.early_stop.patience=3 schedule.early_stop.monitor=val/species/topp1": "did you mean val/species/top1?",
    "schedule.early_stop.patience=3 schedule.validate=[]": "is val/loss, which is never measured: schedule.validate is []",
    "lr_scheduler=plateau lr_scheduler.monitor=train/loss": "which no validation of this run measures",
    "lr_scheduler=plateau lr_scheduler.monitor=val_ema/loss": "raw weights are validated",
    # grammar
    "seed": "'seed' is not a setting; give it as key=value",
    "=3": "not a setting",
    "seed=[1": "'seed=[1' cannot be read",
    "seed=1,2": "add -m",
    "-m seed=range(1,3),5": "range(...) cannot be one of several values; write the values out",
    "seed=${foo}": "${foo}, which is not a key",
    "seed=${oc.env:NO_SUCH_VARIABLE}": "NO_SUCH_VARIABLE",
    "trainer=[null]": "trainer=[null]: a group takes the name of one of its files",
    "optimizer=[10%,20%]": "unknown key optimizer/",
    "plugins=[nan]": "plugins is [nan]; it must be a list of packages",
    "plugins=[.x]": "plugins: .x cannot be imported ('.x' is not the name of a module)",
    "plugins=['']": "is not the name of a module",
    "workload.name=.x": "workload.name is '.x', which cannot be imported",
    "plugins=7": "plugins is 7; it must be a list of packages",
    # options
    "--foo": "unrecognized arguments: --foo",
    "-m --cfg job": "exclude each other",
    "--help --cfg job": "--help and --cfg exclude each other",
    "--config-dir FOLDER --config-dir FOLDER": "--config-dir is given twice",
    "--package run": "add --cfg job",
    "--cfg job --package foo": "--package foo is not a group or a mapping of the configuration",
    "--config-dir /no/folder": "/no/folder",
    "--optimizer.lr=0.1": "there is not an option --optimizer.lr=0.1; settings have no hyphens: optimizer.lr=0.1",
    "--seed=0": "settings have no hyphens: seed=0",
    "--config-name nope": "unrecognized arguments: --config-name; ",
    "hydra/job_logging=none": "has no effect here",
    "sweep=seeds": "sweep=seeds has no effect without -m",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("photographs")
    write_manifest(found)
    return found


@pytest.mark.parametrize("typed", REFUSED)
def test_one_line_and_nothing_written(typed, start, folder, tmp_path):
    arguments = typed.replace("FOLDER", str(folder)).split()
    before = sorted(folder.rglob("*"))
    given = {a.lstrip("+~").partition("=")[0] for a in arguments}
    small = [a for a in SMALL.split() if a.partition("=")[0] not in given and not ("_samples" in a and "data=manifest" in arguments)]
    status, _, err = start(*arguments, *([] if typed.startswith("trainer=") else small))
    assert status == 2
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert REFUSED[typed] in err
    assert len(err) < 500
    assert list(tmp_path.rglob("*")) == [] and sorted(folder.rglob("*")) == before


BUILDING = {  # mistakes that are found when the parts of a run are built
    "head.nulls=predict": "there is nothing to learn; set head.nulls=ignore",
    "head=marginal loss=marginal head.nulls=predict": "no null class would be learnt",
    "loss=marginal loss.coarser_share=null": "loss.coarser_share must be a number; without it use loss=cross_entropy",
    "schedule.mixup_prob.end=0.5 schedule.mixup_group_level=[]": "schedule.mixup_group_level is empty",
    "optimizer.layer_decay=0": "optimizer.layer_decay is 0.0; it must be more than 0",
    "optimizer.layer_decay=1.5": "optimizer.layer_decay is 1.5; it must be at most 1",
    "optimizer.param_groups=[{filter:{name:nope},lr_scale:0}]": "matches no parameter",
    "trainer.freeze=[nose]": "no weight name begins with nose",
    "weighting=dwa weighting.weights={genus:0}": "dwa needs positive weights",
    "model=timm model.backbone=nope": "model.backbone",
}


@pytest.mark.parametrize("typed", BUILDING)
def test_a_plan_refuses_what_a_run_refuses(typed, start, tmp_path):
    lines = [start("plan=" + plan, *typed.split(), *SMALL.split()) for plan in ("true", "false")]
    assert lines[0] == lines[1] and lines[0][0] == 2 and BUILDING[typed] in lines[0][2], lines
    assert list(tmp_path.rglob("*")) == []


def test_a_plan_reads_no_photograph_and_logs_the_warnings_of_the_run(start, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("linnaeus.workloads.taxonomy.images.image_files.decode", None)
    small = [a for a in SMALL.split() if "_samples" not in a]
    arguments = ["data=manifest", f"data.path={folder}/manifest.csv", "weighting.weights={genus:0}", "run.name=one", *small]
    status, out, err = start("plan=true", *arguments)
    assert status == 0 and err == "" and "the loss of genus has weight 0" in out
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["schedule.svg", "schedule.txt"]
    with pytest.raises(TypeError):
        start(*arguments)


@pytest.mark.parametrize(
    "text, message",
    [
        ("seed: 1\nseed: 2\n", "duplicate key seed"),
        ("seed: [1\n", "expected"),
        ("trainer:\n  lenght: 3\n", "did you mean trainer.length?"),
        ("seed: 0x_\n", "mine.yaml cannot be read"),
        ("seed: 1 # \xe9\n", "mine.yaml cannot be read"),
        ("3\n", "mine.yaml cannot be read"),
    ],
)
def test_a_bad_experiment_file(text, message, start, tmp_path):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_bytes(f"# @package _global_\n{text}".encode("latin-1"))
    status, _, err = start("--config-dir", str(tmp_path / "conf"), "experiment=mine")
    assert status == 2 and err.count("\n") == 1 and message in err, err


@pytest.mark.parametrize("command", ["-m seed=0,1", "launch=torchrun"])
def test_a_launched_process_cannot_start_processes(start, monkeypatch, command):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(shared, "shared_config", lambda compose, chosen: typed_config(compose()))
    status, _, err = start(*command.split(), root=False)
    assert status == 2 and f"type `linnaeus {command}`" in err


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"RANK": "0", "WORLD_SIZE": "1"}, "without MASTER_ADDR and MASTER_PORT; start with torchrun, or unset"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "without MASTER_PORT; start with torchrun"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "RANK=2 is not the rank of one of WORLD_SIZE=2"),
    ],
)
def test_an_incomplete_environment_of_a_launcher(variables, message, start, monkeypatch):
    monkeypatch.setattr("linnaeus.config.messages.time.sleep", lambda seconds: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    status, _, err = start(*SMALL.split())
    assert status == 2 and err.count("\n") == 1 and message in err, err


def test_a_mistake_in_the_code_keeps_its_traceback(start, monkeypatch):
    """The negative control: only mistakes of a user become one line."""
    monkeypatch.setattr("linnaeus.train.resolve_schedule", lambda *_: int("no number"))
    with pytest.raises(ValueError, match="no number"):
        start(*SMALL.split())


def test_a_console_that_cannot_encode_a_name_prints_its_escapes(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    with messages.user_errors(2):
        print("Scorzonera \u017eerná")
    assert written.getvalue() == b"Scorzonera \\u017eern\\xe1\n"


def test_control_characters_of_an_error_are_escaped(capsys):
    with pytest.raises(SystemExit), messages.user_errors(2):
        raise ConfigError("data.path: 'a\x1b[2J.csv' does not exist")
    assert capsys.readouterr().err == "error: data.path: 'a\\x1b[2J.csv' does not exist\n"


def test_a_very_long_error_is_cut_in_the_middle(capsys):
    with pytest.raises(SystemExit), messages.user_errors(2):
        raise ConfigError(f"data.path: {'x' * 70_000} does not exist")
    line = capsys.readouterr().err
    assert line.startswith("error: data.path: xxx") and line.endswith("xxx does not exist\n") and len(line) < 900


def test_the_program_itself(tmp_path):
    command = [sys.executable, "main.py", "trainer.lenght=1epochs", f"run.root={tmp_path}/runs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown key trainer.lenght; did you mean trainer.length?\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_ranks_print_the_same_line_once_and_other_lines_too(order, monkeypatch, capsys):
    """Also if rank 0 comes after the time that the others wait for it."""
    store = dist.HashStore()
    monkeypatch.setattr(DistributedContext, "store", store)
    monkeypatch.setattr(messages, "WAIT_FOR_RANK_0", timedelta(milliseconds=1))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for rank in order:
        monkeypatch.setenv("RANK", str(rank))
        messages.report("seed is -1")
        messages.report(f"rank {rank} alone")
    once = "error: seed is -1" if order[0] == 0 else "error on process 1: seed is -1"
    assert sorted(capsys.readouterr().err.splitlines()) == sorted([once, "error: rank 0 alone", "error on process 1: rank 1 alone"])


@pytest.mark.slow
def test_under_torchrun_the_line_appears_once_before_the_page_of_torchrun_and_once_at_its_end(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "main.py", "trainer.device=cpu"]
    settings = ["trainer.global_batch_size=66", "trainer.micro_batch_size=22", f"run.root={tmp_path}/runs"]
    done = fork_server.run([*launch, *settings], cwd=ROOT)
    assert done.returncode == 1
    line = "error: trainer.global_batch_size=66 is not a multiple of trainer.micro_batch_size x processes = 22 x 2 = 44"
    assert len(re.findall(f"^{re.escape(line)}", done.stderr, re.M)) == 1
    *_, last, border = done.stderr.splitlines()
    assert line in last and set(border) == {"="}
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_file_without_its_first_line_is_named(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("data:\n  train_samples: 10\n")
    with pytest.raises(ConfigError, match="the first line of an experiment file must be `# @package _global_`"):
        compose(["experiment=mine"], tmp_path)


@pytest.mark.parametrize("name", ["a,b", "it's", "p(q)", "e=f", "[z]", "é #"])
def test_a_folder_of_groups_may_have_any_name(name, tmp_path):
    (tmp_path / name / "experiment").mkdir(parents=True)
    (tmp_path / name / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 7\n")
    assert compose(["experiment=mine"], tmp_path / name).seed == 7


def test_a_home_directory_in_the_folder_of_the_runs(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert compose(["run.root='~/runs'"]).run.root == "/home/me/runs"


def test_a_blank_before_the_equals_sign(start):
    assert start("seed =5")[2] == "error: 'seed =5' cannot be read; leave the blank before = out: seed=5\n"


def test_the_advice_for_a_list_of_texts_can_be_typed(start):
    """Quoted as a whole, as the advice was, the list is a text."""
    error = start("workload=dictionary", "dictionary.settings=[data.block=8, seed=1]", "plan=true")[2]
    _, _, advice = error.rstrip().partition("quote the texts in the list: ")
    (typed,) = shlex.split(advice)
    assert compose(["workload=dictionary", typed]).dictionary.settings == ["data.block=8", "seed=1"]
