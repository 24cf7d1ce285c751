"""Run tiny configurations in this process or in a group of processes, kill them, and compare two runs.

`configuration("biota", root, ...)` is the taxonomy workload with dropout, drop-path, mixing, masking, null labels and label smoothing
on; `"vectors"` the second workload; `"masked"` the same with metadata components, masked in training and by validation passes, and batch
statistics (0.2 s instead of 1.6 for biota); `"language"` a text of letters, `"loadout"` generated sets of gear, dropout on. 85 samples in
global batches of 32 make a partial last window, whose fourth micro-batch of 8 is empty. `"nanecho"` is that experiment on four small
sources: phases, dimensions, growth. `"dictionary"` reads a language run of two updates, two dictionaries in one pass;
`"computed"` too, one dictionary with a penalty and a ramp, activations not stored; `"planted"` reads planted activations.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType

import main
from linnaeus import train
from linnaeus.checkpoint import list_checkpoints, load_checkpoint
from linnaeus.config.load import compose, compose_tree, group_files
from linnaeus.config.registry import GROUPS
from linnaeus.config.schema import Config
from linnaeus.config.typed_config import typed_config
from linnaeus.health.alarm import MEASURED, Alarm
from linnaeus.reporting.jsonl.alarm_log import read_alarms
from tests import fork_server

CHECKPOINT = ("model.safetensors", "ema.safetensors", "training_state.pt")
ROOT = Path(__file__).resolve().parents[1]
VECTORS = ROOT / "tests" / "vectors" / "conf"
TINY = ["trainer.threads=1", "trainer.num_workers=0", "trainer.device=cpu", "trainer.global_batch_size=32", "trainer.micro_batch_size=8"]
TINY += ["logger.report=false", "logger.console=quiet", "schedule.log=[1steps]", "schedule.report=[50%]", "schedule.checkpoint=[]"]
TINY += ["data.validation_batch=2"]
SAMPLES = ["data.train_samples=85", "data.validation_samples=13"]
READING = ["workload=dictionary", "dictionary.module=blocks.1", "data.samples=11", "data.source_batch=4", "data.window=32"]
READING += ["model.features=24", "model.dead_after=64", "trainer.length=3epochs", "schedule.validate=[100%]"]
WORKLOADS = {
    "vectors": ["experiment=vectors", "trainer.length=5epochs", "schedule.validate=[100%]"],
    "masked": [
        *["experiment=vectors", "run.experiment=masked", "data.components=[SPATIAL,TEMPORAL,ELEVATION]", "model.batch_norm=true"],
        *["trainer.length=3epochs", "schedule.validate=[100%]", "schedule.meta_mask_prob.end=0.6"],
    ],
    "biota": [
        *["data.image_size=16", "data.validation_batch=5", "model.dropout=0.1", "model.drop_path=0.1", "loss=label_smoothing"],
        *["schedule.mixup_prob.start=0.7", "schedule.mixup_prob.end=0.7", "schedule.mixup_group_level=[{from: 0%, level: order}]"],
        *["trainer.length=3epochs", "schedule.validate=[100%]"],
    ],
    "store": [
        *["data=store", "data.order=blocks", "data.block_records=4", "data.window_blocks=3", "data.image_size=16"],
        *["data.validation_batch=5", "model.dropout=0.1", "model.drop_path=0.1", "trainer.length=3epochs", "schedule.validate=[100%]"],
    ],
    "language": [
        *["workload=language", "model.size=gpt_nano", "model.dropout=0.1", "data.block=8"],
        *["trainer.length=3epochs", "schedule.validate=[100%]"],
    ],
    "loadout": [
        *["workload=loadout", "model.width=16", "model.dropout=0.1", "data.builds=60", "data.subsets=1", "data.validation_fraction=0.2"],
        *["data.empty=true", "trainer.length=3epochs", "schedule.validate=[100%]", "data.validation_batch=12"],  # of 168 samples
    ],
    "dictionary": [*READING, "model=matryoshka", "model.widths=[8]", "model.block=4", "model.frontier=[2,5]"],
    "planted": [
        *["workload=dictionary", "data.width=8", "data.features=20", "data.roots=2", "data.branching=2", "data.depth=1"],
        *[
            "data.train_samples=85",
            "data.validation_samples=13",
            "model.features=24",
            "model.k=0.5",
            "model.block=4",
            "model.dead_after=64",
        ],
        *["trainer.length=3epochs", "schedule.validate=[100%]"],
    ],
    "computed": [*READING, "model=jumprelu", "data.stored=false"],
    "nanecho": [
        *["experiment=nanecho_folder", "model.size=gpt_nano", "model.width=24", "model.dropout=0.1", "data.block=16"],
        *["trainer.global_batch_size=8", "trainer.micro_batch_size=4", "trainer.length=40steps", "schedule.validate=[10steps]"],
        *["growth.every=[4steps]", "lr_scheduler.warmup=4steps", "schedule.phases.adaptive_mastery.dimensions={dynamic: 3}"],
    ],
}


def overrides(workload: str, root: Path, *more: str) -> list[str]:
    """Return the Hydra overrides of a run of `workload` below `root`. If a key occurs twice, the later value is used."""
    writers = {"language": write_text, "nanecho": write_sources, "store": write_store}
    sized = [f"data.path={writers[workload](root)}"] if workload in writers else [] if workload in ("loadout", "planted") else SAMPLES
    sized = [f"dictionary.run={write_read_run(root)}"] if workload in ("dictionary", "computed") else sized
    merged = {text.split("=", 1)[0]: text for text in [*TINY, *sized, *WORKLOADS[workload], *more]}
    first = [text for key, text in merged.items() if "." not in key]  # groups before values
    return [*first, *(text for key, text in merged.items() if "." in key), f"run.root={root}", "run.name=run"]


def write_store(root: Path) -> Path:
    """Write a prepared store of 98 photographs of biota in the parent folder of `root`, for all runs of a test, and return its path."""
    from linnaeus.workloads.taxonomy.biota.__main__ import biota_config, export
    from linnaeus.workloads.taxonomy.store.prepare_store import parse, prepare

    path, photographs = root.parent / "store", root.parent / "photographs"
    if not (path / "store.json").exists():
        export(biota_config(train=85, validation=13, size=24), photographs)
        prepare(parse(["manifest", str(path), f"data.path={photographs / 'manifest.csv'}", "--processes=1"]))
    return path


def write_read_run(root: Path) -> Path:
    """Train a language model for two updates in the parent folder of `root`, for all runs of a test, and return its directory."""
    path = root.parent / "read"
    if not (path / "text" / "run" / "summary.json").exists():
        run("language", path, "trainer.length=2steps", "model.width=12", "model.heads=2")
    return path / "text" / "run"


def write_text(root: Path) -> Path:
    """Write a text of 85 training and 10 validation windows of 8 letters, the last window of each part incomplete. Return its path."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "text.txt"
    if not path.exists():
        path.write_text("".join("abcdefghijklmnopqrstuvwxyz .\n"[i * i * (i % 7) % 29] for i in range(757)))
    return path


def write_sources(root: Path) -> Path:
    """Write texts of the four sources of `experiment=nanecho_folder`, each with its own letters: 348 training windows of 16."""
    folder = root / "texts"
    for source, letters in {"basics": "abc", "introspection": "defg", "structures": "hijkl", "systems": "mnopqr"}.items():
        (folder / source).mkdir(parents=True, exist_ok=True)
        for i in range(20):
            text = "".join(letters[(n * n * (n % 7) + i * n) % len(letters)] for n in range(80))
            (folder / source / f"{i}.txt").write_text(f"{i} {text}\n")
    return folder


def configuration(workload: str, root: Path, *more: str) -> Config:
    return composed(overrides(workload, root, *more), VECTORS if workload in ("vectors", "masked") else None)


def composed(texts: Sequence[str], config_dir: Path | None = None) -> Config:
    """Return `compose(texts, config_dir)`, faster.

    In each process Hydra composes every choice of groups and mappings once (0.1 s). Plain values are set in a copy of the result (3 ms). If
    Hydra would do more than set a value, it composes everything."""
    groups = {*group_files(config_dir), "experiment"}
    settings: dict[str, Any] = {text: (None, {}) if text.partition("=")[0] in groups else _setting(text) for text in texts}
    hard = tuple(text for text, (_, value) in settings.items() if isinstance(value, dict))
    tree, mappings = copy.deepcopy(tree_of(hard, config_dir)), [text for text in hard if settings[text][0] is not None]
    for text, (key, value) in settings.items():
        if text in hard:
            continue
        *parents, name = key.split(".")
        node = functools.reduce(lambda node, parent: node.get(parent) if isinstance(node, dict) else None, parents, tree)
        inside = {f"{parent}=" for parent in itertools.accumulate(parents, "{}.{}".format)}
        if any(other.startswith(tuple(inside)) for other in mappings) or not isinstance(node, dict) or isinstance(node.get(name, {}), dict):
            return compose(texts, config_dir)
        node[name] = copy.deepcopy(value)
    return compose(texts, config_dir) if "'???'" in repr(tree) else typed_config(tree)


@functools.cache
def tree_of(texts: tuple[str, ...], config_dir: Path | None) -> dict[str, Any]:
    return compose_tree(texts, config_dir, missing_ok=True)


@functools.cache
def _setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of a setting in Hydra's grammar. The value is an empty mapping if Hydra does more than set it."""
    (override,) = OverridesParser.create().parse_overrides([text])
    plain = override.type is OverrideType.CHANGE and not override.is_sweep_override()
    return override.key_or_group, override.value() if plain else {}


def run_path(config: Config) -> Path:
    return Path(config.run.root) / config.run.experiment / str(config.run.name)


_fsync = os.fsync


def start(config: Config) -> int:
    """Run `python main.py` in this process. Return the exit status. Do not wait for the disk, unless the test has replaced `os.fsync`."""
    with mock.patch("os.fsync", lambda descriptor: None) if os.fsync is _fsync else contextlib.nullcontext():
        return main.run(config)


def run(workload: str, root: Path, *more: str) -> Path:
    """Train a run to its end without interruption. Return its directory."""
    return resumed(configuration(workload, root, *more))


def summary(run: Path) -> dict[str, Any]:
    """Return summary.json of a run directory."""
    return json.loads((run / "summary.json").read_text())


def alarms(run: Path) -> list[Alarm]:
    """Return the alarms of a run directory, without those about times and memory, which a busy machine can raise in any run."""
    return [alarm for alarm in read_alarms(run) if alarm.kind not in MEASURED]


def interrupted(config: Config, stop: contextlib.AbstractContextManager[Any]) -> Path:
    """Start a run that `stop` interrupts. Return its directory."""
    with stop:
        assert start(config) == 75
    return run_path(config)


def resumed(config: Config, *kills: tuple[Any, ...]) -> Path:
    """Start a run once for each of `kills` (arguments of `killed`), then once more to its end. Return its directory."""
    for kill in kills:
        with killed(*kill):
            start(config)
    assert start(config) == 0
    return run_path(config)


def whole_and_continued(config: Config, step: int) -> tuple[Path, Path]:
    """Train a run to its end, and again from the files that a kill at the beginning of update `step` leaves. Return both directories.

    The files are copied there when the checkpoints before are written. A run that is killed would have to be trained up to `step` twice."""
    from tests import watching

    run = run_path(config)
    whole, left = run.with_name(f"{run.name}-whole"), run.with_name(f"{run.name}-left")

    def copy_files(t: Any) -> None:
        if t.progress.global_step == step - 1:
            t.output.writer.wait()
            shutil.copytree(run, left)

    with watching.around_updates(before=copy_files):
        resumed(config)
    assert list_checkpoints(left / "checkpoints"), "the second run has nothing to continue from"
    run.rename(whole)
    left.rename(run)
    return whole, resumed(config)


# -- kills ---------------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Exception in place of `kill -9`. No code catches it, and nothing is written after it."""


@contextlib.contextmanager
def killed(owner: Any, name: str, call: int, after: bool = False) -> Iterator[None]:
    """Kill the run in the block in the `call`-th call (from 1) of `owner.name`, at its beginning or at its end."""
    original, calls = getattr(owner, name), 0

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Killed
        result = original(*args, **kwargs)
        if calls == call:
            raise Killed
        return result

    # a killed process writes no summary of its own end
    with mock.patch.object(owner, name, dying), mock.patch.object(train, "record_failure", lambda training, error: None):
        try:
            yield
        except Killed:
            return
    raise AssertionError(f"{name} was called {calls} times only, the run was not killed")


# -- what two runs differ in ---------------------------------------------------------------------------------------------------


def differences(a: Path, b: Path) -> list[str]:
    """Return the names of files and states that the law of continuation covers and that differ in any bit between two run directories."""
    found = [name for name in _files(a) | _files(b) if bytes_of(a / name) != bytes_of(b / name)]
    one, other = newest(a), newest(b)
    if one.step != other.step:
        return [*found, f"newest checkpoint: {one.step}, {other.step}"]
    for part in ("model_state", "ema_state", "training_state"):
        found += unequal(getattr(one, part), getattr(other, part), part)
    for key in ("progress", "best", "score", "stop_reason", "data_fingerprint"):
        found += unequal(one.state[key], other.state[key], f"state.{key}")
    for key in ("status", "global_step", "best", "final", "stop_reason"):
        found += unequal(summary(a).get(key), summary(b).get(key), f"summary.{key}")
    return sorted(found)


def unequal_files(a: Path, b: Path) -> list[str]:
    """Return the files whose bytes differ between two runs with `trainer.deterministic=anywhere`: rows, validation results, and the newest
    checkpoint without state.json, which has times."""
    newest_files = [run.relative_to(a) / name for run in [list_checkpoints(a / "checkpoints")[-1][1]] for name in CHECKPOINT]
    names = _files(a) | _files(b) | {str(name) for name in newest_files if (a / name).exists()}
    return sorted(name for name in names if bytes_of(a / name) != bytes_of(b / name) and "batches" not in name)


def _files(run: Path) -> set[str]:
    patterns = ("metrics.jsonl", "reports.jsonl", "alarms.jsonl", "batches-rank*.jsonl", "validation/*/*.json")
    return {str(path.relative_to(run)) for pattern in patterns for path in run.glob(pattern)}


def bytes_of(path: Path) -> bytes | None:
    """Return the content of a file; None without the file, or if the file is an alarms.jsonl without an alarm that is compared.

    Alarms about times and memory differ between equal runs, so their rows are left out."""
    content = path.read_bytes() if path.exists() else None
    if content is None or path.name != "alarms.jsonl":
        return content
    return b"".join(line for line in content.splitlines(keepends=True) if json.loads(line)["kind"] not in MEASURED) or None


def newest(run: Path) -> Any:
    return load_checkpoint(list_checkpoints(run / "checkpoints")[-1][1])


def unequal(a: Any, b: Any, where: str = "") -> list[str]:
    """Return the places at which two plain structures differ. Tensors are compared by type, shape and bytes."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and _raw(a) == _raw(b)
        return [] if same else [where]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [place for key in a for place in unequal(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [place for i, (x, y) in enumerate(zip(a, b)) for place in unequal(x, y, f"{where}[{i}]")]
    return [] if type(a) is type(b) and repr(a) == repr(b) else [where]  # repr: NaN is NaN


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@contextlib.contextmanager
def full_disk(size: int = 1000) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes in the block, as on a full disk: the system refuses the write (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def wait_until(condition: Callable[[], Any], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition is still False"
        time.sleep(0.02)


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file that has one line of JSON for each."""
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- several processes ---------------------------------------------------------------------------------------------------------


def job(workload: str, root: Path, *more: str, watch: Sequence[str] = (), status: int = 0, stop: int | None = None) -> dict[str, Any]:
    """Return the job of a run for `run_group`, which must end with `status`. `stop`: SIGTERM ends it in the update of this step.

    `watch`: names of the context managers of `tests.watching` that each process enters for the run."""
    return {
        "workload": workload,
        "root": str(root),
        "more": list(more),
        "watch": list(watch),
        "status": 75 if stop else status,
        "stop": stop,
    }


def free_port() -> int:
    """Return a free port below the ephemeral ports: until it is used, seconds later, gloo in another test could take an ephemeral one."""
    while True:
        port = random.SystemRandom().randrange(12_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def rank_environment(rank: int, processes: int, **more: object) -> dict[str, str]:
    """Return the environment of a process as a launcher sets it."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": 1, **more}
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def run_group(processes: int, jobs: Sequence[dict[str, Any]], folder: Path) -> None:
    """Run jobs one after the other in one group of processes, as under a launcher. A group takes seconds to start."""
    for one in jobs:
        one["port"] = free_port()
    path = folder / f"jobs-{processes}.json"
    path.write_text(json.dumps(list(jobs)))
    members = []
    for rank in range(processes):
        environment = rank_environment(rank, processes)
        command = [sys.executable, "-m", "tests.group_member", str(path)]
        members.append(fork_server.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        texts = [member.communicate(timeout=240)[0] for member in members]
    except subprocess.TimeoutExpired:
        for member in members:
            member.send_signal(signal.SIGABRT)  # leaves the stacks of all threads, see `tests.group_member`
        stacks = [f"process {rank}:\n{member.communicate()[0][-9000:]}" for rank, member in enumerate(members)]
        raise AssertionError("a group of processes hangs\n" + "\n".join(stacks)) from None
    finally:
        for member in members:
            member.kill()
    failed = [f"process {rank}:\n{text[-6000:]}" for rank, (member, text) in enumerate(zip(members, texts)) if member.returncode]
    assert not failed, "\n".join(failed)


def run_jobs(processes: int, jobs: Sequence[dict[str, Any]], folder: Path) -> None:
    """Run jobs in this process, or in a group of several processes whose files are in `folder`.

    Plugins that earlier tests have registered in this process are not used, since the processes of a group do not have them."""
    for one in jobs:
        Path(one["root"]).mkdir(parents=True, exist_ok=True)
    if processes > 1:
        run_group(processes, jobs, folder)
    with mock.patch("linnaeus.config.registry._parts", {group: {} for group in GROUPS}):
        for one in jobs if processes == 1 else ():
            run_job(one)
    torch.use_deterministic_algorithms(False)


def run_on_one_and_two(root: Path, names: Iterable[str], make_job: Callable[[str, Path, int], dict[str, Any]]) -> Path:
    """Run `make_job(name, folder, processes)` of each name on one process and on two, in <root>/<processes>/<name>. Return `root`."""
    for processes in (1, 2):
        jobs = []
        for name in names:
            folder = root / str(processes) / name
            folder.mkdir(parents=True)
            jobs.append(make_job(name, folder, processes))
        run_jobs(processes, jobs, root)
    return root


def run_job(one: dict[str, Any]) -> None:
    """Run a job in this process, which may belong to a group."""
    from tests import watching

    config = configuration(one["workload"], Path(one["root"]), *one["more"])
    with contextlib.ExitStack() as stack:
        for name in one["watch"]:
            stack.enter_context(getattr(watching, name)(Path(one["root"])))
        if one["stop"]:
            stack.enter_context(watching.stopped_at(one["stop"]))
        status = start(config)
        assert status == one["status"], status
