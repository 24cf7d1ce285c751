"""Effects of a configuration as values that can be compared: the plan, the built parts, updates, a whole run."""

import contextlib
import dataclasses
import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from PIL import Image

import main
from linnaeus import train
from linnaeus.distributed import DistributedContext
from linnaeus.rundir import RunDirectory, run_path
from linnaeus.train.building.build_data import build_train_loader, build_workers
from linnaeus.train.loop import update_on_window, windows
from linnaeus.train.validation import measure_pass
from linnaeus.workloads import build_workload
from tests import runs

TINY = (
    "data.train_samples=40 data.validation_samples=20 data.validation_batch=20 data.image_size=16 trainer.global_batch_size=8 "
    "trainer.micro_batch_size=4 trainer.length=3steps trainer.num_workers=0 schedule.log=[1steps] schedule.report=[] "
    "schedule.validate=[3steps] schedule.validate_mask_meta=[] schedule.validate_partial_mask_meta=[] "
    "schedule.partial_combinations=[] schedule.checkpoint=[] logger.report=false logger.console=plain "
    "lr_scheduler.warmup=0steps trainer.device=cpu"
)


class Case(NamedTuple):
    """`change` (overrides on top of `base`) changes the result of `observe`."""

    change: str
    observe: Callable[[Any], Any]
    base: str = ""


def composed(*overrides: str) -> Any:
    """Compose TINY with `overrides`, which replace its values; without TINY's keys of a data source that is not chosen."""
    typed = {text.partition("=")[0]: text for text in overrides}
    source = tuple(text for key, text in typed.items() if key in ("experiment", "workload", "data"))
    known = {f"data.{name}" for name in runs.tree_of(source, runs.VECTORS)["data"]}
    tiny = {text.partition("=")[0]: text for text in TINY.split()}
    kept = {key: text for key, text in tiny.items() if not key.startswith("data.") or key in known}
    return runs.composed([*{**kept, **typed}.values()], runs.VECTORS)


def plan(config: Any) -> Any:
    context = DistributedContext().initialize(device="cpu")
    return train.resolve_schedule(config, build_workload(config), context)


def plan_text(config: Any) -> str:
    return plan(config).text


def learning_rates(config: Any) -> list[float]:
    found = plan(config)
    return [found.lr.at(step) for step in range(found.length.total_steps)]


def built(config: Any) -> Any:
    """Return a `Training`; nothing is written."""
    context = DistributedContext().initialize(device="cpu")
    workload = build_workload(config)
    resolved = train.resolve_schedule(config, workload, context)
    return train.build_training(config, context, workload, resolved, Path("/nonexistent"))


def parameters(config: Any) -> str:
    return digest(built(config).model.state_dict())


def updates(config: Any, steps: int = 2) -> str:
    """Return a digest of the weights after a few updates."""
    t = built(config)
    t.output = SimpleNamespace(writer=None)  # no checkpoint copies anything
    t.sampler.set_epoch(0, 0)
    t.model.train()
    for _, window in zip(range(steps), windows(((batch, batch) for batch in t.train_loader), t.sampler.accumulation)):
        update_on_window(t, window, t.sync.reduce_counts(sum(t.workload.valid_counts(host) for host, _ in window)))
    return digest(t.model.state_dict()) + str(t.weighting.weights.tolist())


def batches(config: Any) -> list[str]:
    """Return digests of the first training batches of the loader."""
    t = built(config)
    t.sampler.set_epoch(0, 0)
    return [digest(batch) for _, batch in zip(range(6), t.train_loader)]


def loader_on_gpu(config: Any) -> tuple:
    """Return the settings of the loader for a CUDA device, which is not necessary to build it."""
    t = built(config)
    pool = build_workers(config, SimpleNamespace(device=torch.device("cuda")), t.workload)
    loader = build_train_loader(config, t.workload, t.sampler, pool)
    return type(loader).__name__, getattr(loader, "most", None), *(getattr(pool, name, None) for name in ("workers", "pinned"))


def validation_batches(config: Any) -> int:
    t = built(config)
    measure_pass(t, t.passes[0])
    return len(t.validation_loader)


def directory(config: Any) -> str:
    return str(run_path(dataclasses.asdict(config)))


def ran(config: Any) -> SimpleNamespace:
    """Return the rows, files and console output of a whole run in a directory of its own."""
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()) as console:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, root=root))
        try:
            with mock.patch("os.fsync", lambda descriptor: None):  # the disk is not what is observed
                status: Any = main.run(config)
        except FloatingPointError as error:
            status = str(error).split(" up to")[0]
        path = run_path(dataclasses.asdict(config))
        files = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] if "metrics.jsonl" in files else []
        summary = json.loads((path / "summary.json").read_text()) if "summary.json" in files else {}
        checkpoints = sorted(p.name for p in (path / "checkpoints").glob("step-*"))
    return SimpleNamespace(status=status, files=files, rows=rows, summary=summary, checkpoints=checkpoints, console=console.getvalue())


def stops(config: Any) -> list[bool]:
    """Return the decisions of early stopping by patience for a sequence of losses."""
    stopping = built(config).early_stopping
    return [] if stopping is None else [stopping.check(loss) for loss in (3.0, 4.0, 2.0, 1.9)]


def second_start(config: Any) -> str:
    """Return the result of a second start of a run that was started with another seed."""
    with tempfile.TemporaryDirectory() as root:
        run = dataclasses.replace(config.run, root=root, name="one")
        begun = dataclasses.replace(config, seed=config.seed + 1, run=dataclasses.replace(run, resume="auto", allow=[]))
        started = RunDirectory(dataclasses.asdict(begun))
        started.start()
        started.release()
        try:
            return str(RunDirectory(dataclasses.asdict(dataclasses.replace(config, run=run))).changes)
        except ValueError as error:
            return str(error).replace(root, "")


def source(config: Any) -> tuple:
    """Return the data source of a manifest as values."""
    found = build_workload(config).data_source
    metadata = [np.nan_to_num(getattr(found.metadata, f.name), nan=-9).tolist() for f in dataclasses.fields(found.metadata)]
    return found.tree.names, found.labels.tolist(), found.split.tolist(), metadata, found.ids.tolist(), found.notes, str(found.group)


def process(config: Any) -> tuple:
    """Return the settings of this process, which are restored afterwards."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        train.apply_process_settings(config)
        return torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def refusal(observe: Any) -> Any:
    """Return `observe` with the message of a `ValueError` as its result."""

    def answer(config: Any) -> Any:
        try:
            return observe(config)
        except ValueError as error:
            return str(error)

    return answer


def digest(state: dict[str, torch.Tensor]) -> str:
    found = hashlib.blake2b()
    for name, tensor in state.items():
        found.update(name.encode() + tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def write_labels_h5(folder: Path) -> None:
    """The photographs 0.png to 23.png by their numbers, with two species and two genera, and images.h5 with 24 others."""
    import h5py

    with h5py.File(folder / "labels.h5", "w") as file:
        file["img_identifiers"] = [str(i) for i in range(24)]
        file["taxa_L10"] = np.array([i % 3 + 4 if i % 8 else 0 for i in range(24)], np.uint32)
        file["taxa_L20"] = np.array([i % 3 // 2 + 1 for i in range(24)], np.uint32)
    with h5py.File(folder / "images.h5", "w") as file:
        file["images"] = np.full((24, 40, 40, 3), np.arange(24, dtype=np.uint8)[:, None, None, None])


def write_manifest(folder: Path) -> Path:
    """24 photographs of two genera and four species, with two columns for everything that a key can choose."""
    names = ("path", "other_path", "genus", "species", "taxon", "lat", "lon", "unc", "day", "clock", "height", "side", "site", "row")
    lines = [",".join(names)]
    for i in range(24):
        Image.fromarray(np.full((40, 40, 3), 9 * i, np.uint8)).save(folder / f"{i}.png")
        where = f"{i}.5,{i}.25,{10 + i},2020-0{1 + i % 9}-11,{i % 24:02d}:30,{100 * (i % 5)}"
        lines.append(f"{i}.png,{23 - i}.png,G{i % 2},S{i % 4},T{i % 3},{where},{'val' if i % 5 == 0 else 'train'},site{i // 3},{i}")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    (folder / "second.csv").write_text("\n".join(lines[:-4]) + "\n")
    sides = "\n".join(f"{i}.png,{'val' if i % 3 == 0 else 'train'}" for i in range(20))
    (folder / "split.csv").write_text(f"photograph,split\n{sides}\n")
    (folder / "gaps.csv").write_text("\n".join(lines).replace("23.png,0.png", "gone.png,0.png") + "\n")
    for name, genus in (("taxa", "A"), ("regrouped", "B")):
        taxa = ["id,parent,rank,name", "A,,genus,A", "B,,genus,B", *(f"T{i},{'A' if i else genus},species,T{i}" for i in range(3))]
        (folder / f"{name}.csv").write_text("\n".join([*taxa, *(f"S{i},{'AB'[i % 2]},species,S{i}" for i in range(4))]) + "\n")
    write_labels_h5(folder)
    (folder / "sub").mkdir()
    for i in range(24):
        Image.fromarray(np.full((40, 40, 3), i, np.uint8)).save(folder / "sub" / f"{i}.png")
        taxon = folder / "nested" / f"G{i % 2}" / f"S{i % 4}"
        taxon.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 40, 3), 9 * i, np.uint8)).save(taxon / f"{i}.png")
    write_open_data(folder / "open")
    write_camtrap(folder)
    records = [f"{i}\tG{i % 2}\tS{i % 4}\thttp://a.org/{23 - i}.png" for i in range(24)]
    (folder / "occurrence.txt").write_text("\n".join(["id\tgenus\tspecies\tassociatedMedia", *records]) + "\n")
    return folder / "manifest.csv"


def write_camtrap(folder: Path) -> None:
    """A Camera Trap Data Package of the 24 photographs: of people, and of animals that each kind of observation calls otherwise."""
    when = [f"2020-06-01T{i:02d}:00:00Z" for i in range(24)]
    media = ["mediaID,deploymentID,timestamp,filePath", *(f"{i},a,{when[i]},https://a.org/{23 - i}.png" for i in range(24))]
    seen = ["deploymentID,mediaID,eventStart,eventEnd,observationLevel,observationType,scientificName,classificationMethod"]
    seen[0] += ",classificationProbability"
    for i in range(24):
        seen.append(f"a,{i},{when[i]},{when[i]},media,{'human' if i % 6 == 5 else 'animal'},Rosa s{'abc'[i % 3]},machine,0.{1 + i % 9}")
        seen.append(f"a,,{when[i]},{when[i]},event,animal,Rosa s{'def'[i // 8]},machine,0.9")
    tables = {"deployments": ["deploymentID,latitude,longitude", "a,1,2"], "media": media, "observations": seen}
    resources = [{"name": name, "data": "\n".join(lines)} for name, lines in tables.items()]
    (folder / "trap.json").write_text(json.dumps({"resources": resources}))


def write_open_data(folder: Path) -> None:
    """Tables of the iNaturalist Open Data with 24 photographs of four species, some of research grade, and each in two sizes."""
    for i in range(24):
        (folder / f"photos/{i}").mkdir(parents=True)
        for size in (16, 24):
            Image.fromarray(np.full((size, size, 3), 9 * i, np.uint8)).save(
                folder / f"photos/{i}/{'small' if size == 16 else 'medium'}.png"
            )
    tables = {
        "photos": ["photo_id observation_uuid extension", *(f"{i} o{i} png" for i in range(24))],
        "observations": [
            "observation_uuid taxon_id quality_grade",
            *(f"o{i} {i % 4 + 2} {'research' if i % 8 < 6 else 'casual'}" for i in range(24)),
        ],
        "taxa": ["taxon_id ancestry rank_level name", "8 1 20 G", "9 1 20 H", *(f"{i + 2} 1/{8 + i % 2} 10 S{i}" for i in range(4))],
    }
    for name, rows in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(rows).replace(" ", "\t") + "\n")
