"""The run directory: its name, its lock, and the changes that are allowed between two starts."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from linnaeus.checkpoint import loading, save_checkpoint
from linnaeus.config.schema import Config, DataConfig
from linnaeus.distributed.processes import alive_here, identity
from linnaeus.errors import ConfigError
from linnaeus.files import reading, write_atomic
from linnaeus.reporting import RowWriter, attach_log_file, setup_logging
from linnaeus.rundir import NON_UPDATE_KEYS, RunDirectory, config_difference, dump_yaml, run_path, update_hash
from linnaeus.rundir import lock as lock_module
from linnaeus.rundir.lock import RunLock, owner_has_ended
from linnaeus.workloads.taxonomy.config import SoftmaxHeadConfig
from tests import runs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(**changes: Any) -> dict[str, Any]:
    """Return a small configuration. `trainer__length=...` changes `trainer.length`."""
    tree: dict[str, Any] = {
        "seed": 0,
        "plan": False,
        "run": {"name": None, "experiment": "demo", "root": "outputs", "resume": "auto", "allow": []},
        "optimizer": {"name": "adamw", "lr": 1e-5, "groups": []},
        "schedule": {"log": ["50steps"], "keep_last": 2, "partial": [["SPATIAL"]]},
        "trainer": {"num_workers": 1, "length": "10epochs", "max_grad_norm": None},
        "logger": {"console": "auto"},
    }
    for key, value in changes.items():
        group, _, name = key.partition("__")
        if name:
            tree[group][name] = value
        else:
            tree[group] = value
    return tree


def started(tree: dict[str, Any], **record: Any) -> RunDirectory:
    """Start a run and release its lock."""
    run = RunDirectory(tree)
    run.start(**record)
    run.release()
    return run


def files() -> list[str]:
    return sorted(str(p) for p in Path().rglob("*") if p.is_file())


def test_the_constructor_writes_nothing_and_start_writes_all_files() -> None:
    run = RunDirectory(config(), ["optimizer.lr=1e-5"])
    assert files() == [] and run.is_new
    run.start(devices=["cpu"], world_size=1, data_fingerprint="f00d")
    path = Path("outputs/demo") / update_hash(config())
    assert run.path == path and run.launch == 1
    record = json.loads((path / "run.json").read_text())
    assert record["data_fingerprint"] == "f00d" and record["run_id"] == run.run_id and record["packages"]["torch"]
    assert yaml.safe_load((path / "config.yaml").read_text()) == config()
    launch = json.loads((path / "launches/1/launch.json").read_text())
    assert launch["overrides"] == ["optimizer.lr=1e-5"] and launch["pid"] == os.getpid() and "commit" in launch
    run.release()


def test_a_start_deletes_the_temporary_files_of_a_killed_one() -> None:
    first = started(config())
    left = [first.path / ".tmp-config.yaml-1-2", first.path / "launches" / "1" / ".tmp-launch.json-1-2"]
    for path in left:
        path.write_text("half")
    first.release()
    started(config()).release()
    assert not any(path.exists() for path in left)


def test_a_second_start_uses_the_same_directory_and_keeps_its_history() -> None:
    first = started(config())
    again = config(trainer__num_workers=4, schedule__log=["9steps"])
    second = started(again)
    assert second.path == first.path and second.run_id == first.run_id
    assert (second.launch, second.is_new) == (2, False)
    assert second.changes == ['schedule.log: ["50steps"] -> ["9steps"]', "trainer.num_workers: 1 -> 4"]
    assert yaml.safe_load((first.path / "launches/1/config.yaml").read_text()) == config()
    assert yaml.safe_load((first.path / "config.yaml").read_text()) == again


@pytest.mark.parametrize("key", ["seed", "optimizer__lr", "trainer__length", "schedule__partial"])
def test_a_key_that_alters_updates_names_another_run(key: str) -> None:
    assert update_hash(config(**{key: "other"})) != update_hash(config())


def test_keys_without_effect_on_updates_exist_and_do_not_change_the_name() -> None:
    """A misspelt entry of NON_UPDATE_KEYS would have no effect."""
    for name in NON_UPDATE_KEYS:
        group, _, key = name.partition(".")
        here: Any = {"data": DataConfig, "head": SoftmaxHeadConfig}.get(group, Config)
        for part in (key if here is not Config else name).split("."):
            hints = typing.get_type_hints(here)
            assert part in hints, name
            here = hints[part]
    base = update_hash(config())
    others = (config(plan=True), config(run__experiment="other"), config(trainer__num_workers=9))
    assert {update_hash(other) for other in others} == {base}
    assert dataclasses.is_dataclass(Config)


def test_a_change_that_alters_updates_is_refused_unless_allowed() -> None:
    named = {"run__name": "mine"}
    started(config(**named))
    before = files()
    with pytest.raises(ConfigError, match=r'trainer\.length: "10epochs" -> "20epochs".*run\.allow=\[trainer\.length\]') as caught:
        RunDirectory(config(**named, trainer__length="20epochs"))
    assert "\n" not in str(caught.value) and files() == before
    with pytest.raises(ConfigError, match=r"optimizer\.lr"):  # allowing one key does not allow another
        RunDirectory(config(**named, trainer__length="20epochs", optimizer__lr=1.0, run__allow=["trainer.length"]))
    for allow in ("trainer.length", "trainer"):
        run = RunDirectory(config(**named, trainer__length="20epochs", run__allow=[allow]))
        assert run.altered and run.changes[-1] == 'trainer.length: "10epochs" -> "20epochs"'
    run.start()
    run.release()
    assert not RunDirectory(config(**named, trainer__length="20epochs")).altered  # an allowed change becomes the configuration of the run


@pytest.mark.parametrize(
    ("allow", "hint"),
    [
        (["trainer.lenght"], "trainer.lenght, which is not a key; did you mean trainer.length?"),
        (["seed", "lenght", "nothing"], "lenght, nothing, which is not a key; did you mean trainer.length?"),
        (["optimiser"], "optimiser, which is not a key; did you mean optimizer?"),
        (["optimizer.qqq"], "optimizer.qqq, which is not a key; `linnaeus --help-keys` lists all keys"),
    ],
)
def test_an_unknown_name_in_run_allow_is_refused_with_the_most_similar_one(allow: list[str], hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"run.allow contains {hint}")):
        RunDirectory(config(run__allow=allow))


def test_another_choice_of_a_group_is_reported_as_the_group() -> None:
    named = {"run__name": "mine"}
    started(config(**named))
    other = {**named, "optimizer": {"name": "sgd", "lr": 1e-5, "momentum": 0.9}, "seed": 1}
    with pytest.raises(ConfigError) as caught:
        RunDirectory(config(**other))
    line = str(caught.value)
    assert 'optimizer.name: "adamw" -> "sgd"' in line and "momentum" not in line and "run.allow=[optimizer,seed]" in line
    assert RunDirectory(config(**other, run__allow=["optimizer", "seed"])).altered
    with pytest.raises(ConfigError, match=r"run\.allow=\[seed,optimizer\]"):  # the suggestion contains what is allowed already
        RunDirectory(config(**other, run__allow=["seed"]))


def test_changes_are_logged_and_recorded() -> None:
    first = started(config())
    assert first.start_messages() == [] and first.previous == first.record == {}
    record = json.loads((first.path / "run.json").read_text())
    record["packages"]["torch"], record["commit"], record["world_size"] = "1.0", "another", 7
    (first.path / "run.json").write_text(json.dumps(record))
    second = RunDirectory(config(trainer__num_workers=4))
    second.start(world_size=2)
    assert second.previous == config()
    messages = second.start_messages()
    assert messages[0] == "changed since the last start: trainer.num_workers: 1 -> 4"
    assert "since the last start, the number of processes: 7 -> 2" in messages
    assert any("the commit of linnaeus: another ->" in line for line in messages) and any("torch: 1.0 ->" in line for line in messages)
    assert json.loads((first.path / "launches/2/launch.json").read_text())["changes"] == ["trainer.num_workers: 1 -> 4"]
    second.write_launch_file("moved.txt", "what moves\n")
    assert (first.path / "launches/2/moved.txt").read_text() == "what moves\n"
    second.release()
    third = started(config(trainer__num_workers=4))
    assert third.changes == []


def test_the_keys_of_a_warm_start_change_the_name() -> None:
    warm = [
        config(run={**config()["run"], "init_from": path, "init_allow": allow}) for path, allow in (("a", []), ("b", []), ("a", ["head"]))
    ]
    plain = config(run={**config()["run"], "init_from": None, "init_allow": []})
    assert len({update_hash(tree) for tree in [config(), *warm]}) == 4
    assert update_hash(plain) == update_hash(config()), "the name of a run that was saved before these keys existed"
    started({**plain, "run": {**plain["run"], "name": "x"}})
    with pytest.raises(ConfigError, match=r'run\.init_from: null -> "a".*run\.allow=\[run\.init_from\]'):
        RunDirectory({**warm[0], "run": {**warm[0]["run"], "name": "x"}})


def test_other_initial_weights_in_the_same_file_are_refused() -> None:
    tree = config(run={**config()["run"], "init_from": "w.pt"})
    run = started(tree, initial_weights="one")
    with pytest.raises(ConfigError, match=r"run\.init_from: w\.pt contains other weights .*one -> two"):
        RunDirectory(tree).start(initial_weights="two")
    later = RunDirectory(tree)  # a run with a checkpoint does not read them again, and keeps the digest
    later.start()
    later.release()
    assert json.loads((run.path / "run.json").read_text())["initial_weights"] == "one"


def test_the_difference_contains_added_and_removed_keys() -> None:
    old, new = {"data": {"a": 1, "max_bad_fraction": 0.1}, "head": None}, {"data": {"a": 1.0, "b": [1, (2, 3)]}, "head": {"name": "x"}}
    difference = config_difference(old, new)
    assert difference.harmless == ["data.max_bad_fraction: 0.1 -> (absent)"]
    assert list(difference.altering.values()) == [
        "data.b: (absent) -> [1, [2, 3]]",
        'head.name: (absent) -> "x"',
        "head: null -> (absent)",
    ]


def test_resume_never_refuses_an_existing_run() -> None:
    started(config(run__resume="never"))
    with pytest.raises(ConfigError, match=r"run\.resume=never"):
        RunDirectory(config(run__resume="never"))


def test_other_data_are_refused() -> None:
    started(config(), data_fingerprint="one")
    with pytest.raises(ConfigError, match="one -> two"):
        RunDirectory(config()).start(data_fingerprint="two")
    started(config(run__allow=["data"]), data_fingerprint="two")


def test_a_root_that_cannot_be_created() -> None:
    Path("outputs").write_text("a file")
    with pytest.raises(ConfigError, match=r"run\.root: .* cannot be created"):
        RunDirectory(config()).start()


def test_finished_depends_on_the_summary_and_the_changes() -> None:
    run = started(config(run__name="x"))
    assert not run.finished
    for status, finished in (("interrupted", False), ("finished", True), ("stopped_early", True), ("failed", False)):
        (run.path / "summary.json").write_text(json.dumps({"status": status}))
        assert RunDirectory(config(run__name="x")).finished is finished
    (run.path / "summary.json").write_text(json.dumps({"status": "finished"}))
    assert "add trainer.length=... run.allow=[trainer.length]" in RunDirectory(config(run__name="x")).finished_message()
    longer = config(run__name="x", trainer__length="20epochs", run__allow=["trainer.length"])
    assert not RunDirectory(longer).finished
    (run.path / "summary.json").write_text(json.dumps({"status": "stopped_early", "stop_reason": "val/loss has not improved"}))
    line = RunDirectory(config(run__name="x")).finished_message()  # a longer run would stop at once, for the same reason
    assert "stopped early (val/loss has not improved)" in line and "run.allow=[schedule.early_stop]" in line


def ended(path: Path, step: int, **final: float) -> None:
    """Write all files of a run that ended at `step`."""
    save_checkpoint(path / "checkpoints", step, model_state={"w": torch.zeros(2)}, training_state={}, state={})
    results = path / "validation" / f"step-{step:08d}"
    results.mkdir(parents=True, exist_ok=True)
    rows = [{"global_step": step - 3, "val_gone/loss": 1.0}, {"global_step": step, "train/loss": 0.1}]
    for name, value in final.items():
        (results / f"{name.partition('/')[0].replace('val_ema', 'val')}.json").write_text("{}")
        rows.append({"global_step": step, name: value})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "report.html").write_text("<html>")
    (path / "summary.json").write_text(json.dumps({"status": "finished", "global_step": step, "final": final}))


def test_a_finished_run_lists_its_missing_files() -> None:
    tree = config(run__name="x", logger__report=True, schedule__checkpoint_at_end=True)
    run = started(tree)
    metrics = {"val_ema/loss": 1.0, "val_ema/top1": 0.5, "val_ema_mask_meta/loss": 2.0}
    last = "checkpoints/step-00000009"

    def missing(**changes: Any) -> list[str]:
        found = RunDirectory(config(**{"run__name": "x", "logger__report": True, "schedule__checkpoint_at_end": True, **changes}))
        assert found.finished is (not found.missing)
        return found.missing

    def restore() -> None:
        shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
        save_checkpoint(run.path / "checkpoints", 6, model_state={"w": torch.zeros(2)}, training_state={}, state={})
        ended(run.path, 9, **metrics)

    restore()
    assert missing() == []
    (run.path / "report.html").unlink()
    assert missing() == ["report.html"] and missing(logger__report=False) == []
    restore()
    (run.path / "validation/step-00000009/val_mask_meta.json").unlink()
    assert missing() == ["validation/step-00000009/val_mask_meta.json"]
    restore()
    shutil.rmtree(run.path / last)
    assert missing() == [last] and missing(schedule__checkpoint_at_end=False) == []
    restore()
    (run.path / last / "model.safetensors").write_bytes(b"damaged")
    assert missing() == [last]
    shutil.rmtree(run.path / "checkpoints")  # without a checkpoint no file can be made
    (run.path / "report.html").unlink()
    assert missing() == []
    restore()
    (run.path / "report.html").unlink()
    again = started(tree)
    assert again.start_messages()[0].endswith("x was finished, but lacks report.html: only these files are made again")
    assert json.loads((run.path / "summary.json").read_text())["status"] == "running"


def test_an_unreadable_checkpoint_of_a_finished_run_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make the last checkpoint again, the run would have to train from an older one."""
    tree = config(run__name="x", schedule__checkpoint_at_end=True)
    run = started(tree)
    ended(run.path, 9, **{"val/loss": 1.0})
    assert RunDirectory(tree).finished

    def failing(path: Path) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(reading, "RETRY_DELAYS", (0.0, 0.0))
    with monkeypatch.context() as patch:
        patch.setattr(loading, "file_digest", failing)
        with pytest.raises(ConfigError, match=r"step-00000009/.*Stale file handle"):
            RunDirectory(tree)
    assert RunDirectory(tree).finished


# -- damaged files of the directory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["", '{"run_id": "ab', "null", "[1]", "\xff", None])
def test_a_damaged_record_is_replaced_by_that_of_the_newest_launch(damage: str | None) -> None:
    tree = config(run__name="x")
    for _ in range(2):
        run = started(tree, data_fingerprint="one", world_size=1)
    file = run.path / "run.json"
    whole = json.loads(file.read_text())
    file.unlink() if damage is None else file.write_bytes(damage.encode("latin-1"))
    with pytest.raises(ConfigError, match="one -> two"):  # the fingerprint is read from launch.json
        RunDirectory(tree).start(data_fingerprint="two")
    again = RunDirectory(tree)
    again.start(data_fingerprint="one", world_size=1)
    assert again.record == whole and (again.run_id, again.launch) == (run.run_id, 3)
    assert any("run.json was damaged or missing" in line and "launches/2/launch.json" in line for line in again.start_messages())
    again.release()
    assert json.loads(file.read_text())["created"] == whole["created"] and "pid" not in json.loads(file.read_text())
    assert not [line for line in RunDirectory(tree).notes if "damaged" in line]


def test_a_damaged_record_without_a_replacement_is_refused() -> None:
    """The launch.json of older versions does not contain the id of the run."""
    tree = config(run__name="x")
    run = started(tree)
    launch = run.path / "launches/1/launch.json"
    launch.write_text(json.dumps({key: value for key, value in json.loads(launch.read_text()).items() if key != "run_id"}))
    (run.path / "run.json").write_text("")
    before = files()
    with pytest.raises(ConfigError, match=r"run\.json is damaged, and neither .*; restore it, or") as caught:
        RunDirectory(tree)
    assert "\n" not in str(caught.value) and files() == before


DAMAGED = ["", "run: {", "- a", "run: 3", "\xff", "run: {name: 0x_}", "run: {name: 2026-02-30}", "run: {}\nworkload: 3", None]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_configuration_is_replaced_by_its_copy_or_refused(damage: str | None) -> None:
    tree = config(run__name="x")
    run = started(tree)
    file = run.path / "config.yaml"
    file.unlink() if damage is None else file.write_bytes(damage.encode("latin-1"))
    (run.path / "metrics.jsonl").write_text('{"global_step": 1}\n')
    before = files()
    with pytest.raises(ConfigError, match=r"another configuration .*seed: 0 -> 7"):
        RunDirectory(config(run__name="x", seed=7))
    again = RunDirectory(tree)
    assert not again.is_new and again.previous == tree and "launches/1/config.yaml is used instead" in again.notes[0]
    (run.path / "launches/1/config.yaml").write_text("run: {")
    with pytest.raises(
        ConfigError, match=r"config\.yaml is (damaged|missing), and neither .*; restore it, or choose another run\.name"
    ) as line:
        RunDirectory(tree)
    assert "\n" not in str(line.value) and files() == before


def test_a_damaged_summary() -> None:
    tree = config(run__name="x")
    run = started(tree)
    for text in ("", "null", "[]", '{"status": "fin', '{"status": "finished", "global_step": null}'):
        (run.path / "summary.json").write_text(text)
        assert not RunDirectory(tree).finished


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "a\0b", " ", "a\nb"])
def test_names_that_are_not_valid_directory_names(name: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.name"):
        run_path(config(run__name=name))


def test_a_date_in_a_configuration_that_was_edited_is_a_difference() -> None:
    tree = config(run__name="x")
    run = started(tree)
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text.replace("seed: 0", "seed: 2026-02-20"))
    with pytest.raises(ConfigError, match=r'seed: "2026-02-20" -> 0'):
        RunDirectory(tree)


def test_pyyaml_and_hydra_read_the_same_values_from_config_yaml() -> None:
    tree = {
        "floats": [1e-05, 3e-4, 1e16, 0.1, float("inf"), -0.0],
        "texts": ["1e-3", "1_000", "0x1F", "on", "null", "", "10%", "500steps", "é", "a: b", "#x", "-1", "12:30:45", "~", "2024-01-02"],
        "rest": {"none": None, "yes": True, "n": 3, "empty": {}, "list": []},
    }
    text = dump_yaml(tree)
    assert yaml.safe_load(text) == tree
    assert OmegaConf.to_container(OmegaConf.create(text)) == tree
    with_tuple = yaml.safe_load(dump_yaml({"pair": (1, (2,))}))
    assert with_tuple == {"pair": [1, [2]]}


# -- several ranks ---------------------------------------------------------------------------------------------------------


def test_other_ranks_receive_the_result_and_write_nothing() -> None:
    box: list[Any] = []
    master = RunDirectory(config(), broadcast_object=lambda value: box.append(value) or value)
    before = files()
    other = RunDirectory(config(run__name="ignored"), is_master=False, broadcast_object=lambda _: box.pop(0))
    assert other.path == master.path and files() == before == []
    master.start()
    written = files()
    other.start()
    assert files() == written and (other.run_id, other.launch) == (master.run_id, 1)
    box.append({"error": "no"})
    with pytest.raises(ConfigError, match="no"):
        RunDirectory(config(), is_master=False, broadcast_object=lambda _: box.pop(0))
    master.release()


# -- the lock --------------------------------------------------------------------------------------------------------------

OWNER = """
import json, sys, time
from linnaeus.rundir import RunDirectory
run = RunDirectory(json.loads(sys.argv[1]))
run.start()
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """Start another process that has the lock of the run of `config()`."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, json.dumps(config())],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_lock_of_a_live_owner_is_refused_and_of_a_killed_one_taken_over(
    owner: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files()
    with pytest.raises(ConfigError) as caught:
        started(config())
    text = str(caught.value)
    assert f"process {owner.pid} on {socket.gethostname()}" in text and "\n" not in text and files() == before
    with pytest.raises(ConfigError, match=str(owner.pid)):  # the first attempt did not release its lock
        started(config())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    monkeypatch.setattr(RunLock, "_touched_again", lambda lock: pytest.fail("it waits for touches by a process that has ended"))
    assert started(config()).launch == 2


def test_a_zombie_owner_is_dead(owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    runs.wait_until(lambda: Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert started(config()).launch == 2


def write_note(path: Path, **changes: Any) -> None:
    """Write the note of this process, with changes, to a lock file."""
    path.write_text(json.dumps({**identity(), "since": "then", **changes}))


DEAD = [{"pid": 2**22 + 1}, {"start": "1"}, {"boot": "an earlier one"}, {"host": "before-dhcp", "pid": 2**22 + 1}]


def can_lock(path: Path) -> bool:
    """Return True if another process can lock the file."""
    command = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-c", command, str(path)], capture_output=True, check=False).returncode == 0


def test_the_owner_of_a_lock_can_ask_whether_it_is_alive_and_keeps_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, path = RunLock(Path("lock"), touch_interval=30.0), Path("lock")
    lock.acquire()
    assert not owner_has_ended(path) and not can_lock(path)
    monkeypatch.setattr(lock_module, "_held", set())  # negative control: the file is opened, and to close it releases the lock
    assert not owner_has_ended(path) and can_lock(path)
    lock.release()


@pytest.mark.parametrize("changes", DEAD)
def test_the_note_of_a_dead_process_of_this_host(changes: dict[str, Any]) -> None:
    """The pid does not exist, belongs to a later process, or is from before a reboot; or the host was renamed, with the same boot id."""
    write_note(Path("lock"), **changes)
    lock = RunLock(Path("lock"), touch_interval=30.0)
    start = time.monotonic()
    lock.acquire()
    assert time.monotonic() - start < 1.0
    lock.release()


def test_a_damaged_note_is_no_owner() -> None:
    for note in ("x", "[" * 4096, "{}"):
        Path("lock").write_text(note)
        lock = RunLock(Path("lock"), touch_interval=30.0)
        lock.acquire()
        lock.release()


def test_the_state_of_a_process_in_another_container_is_unknown() -> None:
    """Containers on one machine share the boot id, but not the process ids."""
    here = identity()
    for pid in (os.getpid(), 2**22 + 1):
        assert alive_here({**here, "pid": pid, "pid_namespace": here["pid_namespace"] + 1}) is None
    without_namespace = {key: value for key, value in here.items() if key != "pid_namespace"}
    assert alive_here(without_namespace) is True and alive_here({**without_namespace, "pid": 2**22 + 1}) is False


def test_the_state_of_a_process_on_another_machine_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    here = identity()
    assert alive_here({**here, "host": "elsewhere", "boot": "another"}) is None
    monkeypatch.setattr("linnaeus.distributed.processes._boot_id", lambda: "")  # a system without a boot id
    assert alive_here({**here, "host": "elsewhere", "boot": ""}) is None and alive_here({**here, "boot": ""}) is True


@pytest.mark.parametrize("host", [{}, {"host": "before-dhcp"}])
def test_the_note_of_a_live_process_counts_if_locks_do_not_work(owner: subprocess.Popen[str], host: dict[str, str]) -> None:
    """On a file system that grants every lock, the note decides, also after the host was renamed."""
    Path("lock").write_text(json.dumps(json.loads((run_path(config()) / "lock").read_text()) | host))
    with pytest.raises(ConfigError, match=str(owner.pid)):
        RunLock(Path("lock")).acquire()


def test_an_owner_on_another_host_is_alive_while_it_touches_the_file() -> None:
    write_note(Path("lock"), host="elsewhere", boot="another")
    stop = threading.Event()

    def touch() -> None:
        while not stop.wait(0.05):
            os.utime("lock")

    toucher = threading.Thread(target=touch)
    toucher.start()
    with pytest.raises(ConfigError, match="on elsewhere"):
        RunLock(Path("lock"), touch_interval=0.2).acquire()
    stop.set()
    toucher.join()
    lock = RunLock(Path("lock"), touch_interval=0.1)
    start = time.monotonic()
    lock.acquire()
    assert time.monotonic() - start >= 0.3  # three missed touches
    lock.release()
    assert Path("lock").read_text() == ""


def test_the_owner_touches_the_lock_file() -> None:
    lock = RunLock(Path("lock"), touch_interval=0.05)
    lock.acquire()
    before = os.stat("lock").st_mtime_ns
    runs.wait_until(lambda: os.stat("lock").st_mtime_ns > before)
    lock.release()
    assert "run lock" not in [thread.name for thread in threading.enumerate()]


def test_no_slow_package_is_imported() -> None:
    slow = ["torch", "rich", "wandb", "tensorboard", "numpy"]
    code = f"import sys, linnaeus.rundir, linnaeus.reporting; print(sorted(set({slow}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


# -- links -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "train.log", "metrics.jsonl", "reports.jsonl", "timings.jsonl", "quarantine.jsonl"])
def test_a_link_in_place_of_a_file_is_refused_and_not_followed(name: str) -> None:
    tree = config(run__name="x")
    run = started(tree)
    Path("precious").write_text("keep")
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(Path("precious").resolve())
    before = files()
    with pytest.raises(ConfigError, match=rf"{name} is a symbolic link, but must be a file of this directory; delete it"):
        RunDirectory(tree)
    assert files() == before and Path("precious").read_text() == "keep"


def test_a_link_that_appears_later_is_not_followed() -> None:
    Path("precious").write_text("keep\n")
    for name in ("lock", "rows.jsonl", "train.log", f".tmp-atomic-{os.getpid()}-{threading.get_ident()}"):
        Path(name).symlink_to("precious")
    setup_logging()
    rows = RowWriter("rows.jsonl")
    rows.log(1, {})
    for write in (
        lambda: RunLock(Path("lock")).acquire(),
        lambda: write_atomic("atomic", "new"),
        lambda: attach_log_file(Path("train.log")),
        rows.sync,
        lambda: rows.truncate(0, 0),
    ):
        with pytest.raises(OSError, match="it is a symbolic link"):
            write()
    assert Path("precious").read_text() == "keep\n"


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    write_atomic(tmp_path / "file", "old")
    with runs.full_disk(), pytest.raises(OSError, match="File too large"):
        write_atomic(tmp_path / "file", "new" * 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"
