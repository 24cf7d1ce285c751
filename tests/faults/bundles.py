"""Mutated bundles for `fuzz.py`, each a function of a seed and the number of the case, and the rules for `linnaeus predict` on them.

The names of the taxa have HTML, commas, quotes, and letters from right to left. Up to three mutations change values of the JSON files,
bytes of any file, tensors, or places: links and names of files that lead out of the folder, pipes and folders in place of files, packages
and pickles with code. In most cases the checksums are then written again, so that `linnaeus` has to find the damage itself.
"""

import atexit
import contextlib
import csv
import functools
import io
import itertools
import json
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import timm  # noqa: F401 (and torchvision, for networks of it)
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from linnaeus import load_model
from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.errors import ConfigError
from linnaeus.files import file_digest, to_json
from linnaeus.workloads.taxonomy.config import HeadConfig, MformerConfig
from linnaeus.workloads.taxonomy.models import build_network
from linnaeus.workloads.taxonomy.serving import serve_cli
from linnaeus.workloads.taxonomy.trained.classifier import bundle
from linnaeus.workloads.taxonomy.trained.classifier.description import Description
from linnaeus.workloads.taxonomy.trained.predict import predict_cli
from linnaeus.workloads.taxonomy.trained.predict.prediction_files import FORMATS
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration, Precision
from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PlacePrior, PriorRecord, usable_components
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests.faults.mutations import DAMAGE
from tests.faults.watched import watch

MAX_LINE = 1000  # characters of an error message
SECRET = "content of a file outside of the bundle"
CODE = f"open({{!r}}, 'w').write({SECRET!r})"
# fmt: off
NAMES = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", 'a, "b"; c', "'; DROP TABLE taxa; --", "=HYPERLINK(A1)", "שלום",
    "\u202eleft to right", "a|b\\|c", "a;b%3bc", "{{7*7}}", "日本語 var. é", "%s %n", "\u200b", "null", "NaN", "a\tb", "../..", "😀 sp. 1",
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**9, 10**30, -(10**30), 1e308, math.nan, math.inf, -math.inf, 0.5, "", "0", "x", "none", "../x",
    "/etc/hostname",
    "hf-hub:a/b", "\ud800", "\x00", "\x1b[31m", "a" * 5000, [], {}, [[]], [None], {"a": []}, [0] * 3000, ["x"], [1e400], {"name": "timm"},
)
# fmt: on
DAMAGED = (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError, SafetensorError)  # a file is damaged already
READ = (bundle.CONFIG, bundle.TREE, bundle.CALIBRATION, bundle.WEIGHTS, bundle.PRIOR)
TENSORS = (bundle.WEIGHTS, bundle.WEIGHTS, bundle.PRIOR)  # the weights in two cases of three
TEXTS = (bundle.CONFIG, bundle.TREE, bundle.CALIBRATION, bundle.METRICS)


@dataclass(frozen=True)
class Case:
    folder: Path  # with the bundle, a photograph, and their table; nothing else may be read
    steps: list[str]
    form: str  # of the answers
    linked: bool  # a file of the bundle that is read leads out of it

    def __str__(self) -> str:
        return f"{self.steps} as {self.form}"


@functools.cache
def original() -> Path:
    """Write a bundle of a network that was not trained, its photograph and its table, once for all cases. Return their folder.

    The network reads the elevation. Place and date are read by a prior that was not trained."""
    folder, owner = Path(tempfile.mkdtemp(prefix="bundle-")), os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))  # not in forks
    rows = [[f"F{i // 6}{NAMES[0]}", f"G{i // 2}{NAMES[i // 2]}", f"{i}{NAMES[i]}"] for i in range(len(NAMES))]
    tree, _ = TaxonomyTree.from_lineages(("family", "genus", "species"), np.array(rows))
    model = MformerConfig(name="mformer", dropout=0.0, drop_path=0.0, meta_width=4, size="micro")
    description = Description(model, HeadConfig("conditional", "ignore"), (16,), ("ELEVATION",), "flip", 10**6)
    torch.manual_seed(0)
    weights = build_network(model, description.head, (16,), tree, description.components).state_dict()
    prior = PlacePrior(tree, usable_components(description.components), width=8, floor=0.1)
    save_file(prior.state_dict(), folder / bundle.PRIOR)
    record = PriorRecord(file_digest(folder / bundle.PRIOR), prior.components, prior.width, prior.floor)
    precision = Precision(0.95, 0.0, 0.0, 1.0)
    calibration = Calibration("none", 100, (1.0, 1.5, 2.0), 0.95, (precision,), {"0.9": (0.0, 0.1, 0.2)}, 0.95, 0.01, record)
    texts = {bundle.CALIBRATION: to_json(calibration.plain()), bundle.METRICS: to_json({"val/loss": 1.0})}
    texts |= {bundle.CARD: "# a model\n", bundle.COUNTS: "rank,taxon,count\n"}
    copied = {bundle.PRIOR: folder / bundle.PRIOR}
    bundle.write_bundle(folder / "bundle", description, tree, InitialWeights("none", "none", weights), texts, copied)
    (folder / bundle.PRIOR).unlink()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)).save(folder / "photo.png")
    (folder / "media.csv").write_text(
        "path,mediaID,deploymentID,timestamp,occurrenceID,latitude,longitude,elevation\nphoto.png,m,d,2026-05-01T10:00:00Z,o,52.1,4.3,20\n"
    )
    return folder


def warm() -> None:
    """Import and compose everything that a case needs, once for all cases, which are forks of this process."""
    os.fsync = lambda descriptor: None  # no case is about the disk
    torch.set_num_threads(1)  # a fork has no threads but one
    model = load_model(original() / "bundle")
    assert model.prior is not None and model.calibration is not None and model.calibration.familiar
    for form in FORMATS:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            shutil.copytree(original(), folder, dirs_exist_ok=True)
            found = failures(Case(Path(folder), [], form, False), watched=False)
            assert found == [], found


def case(seed: int, number: int, folder: Path) -> Case:
    """Write a mutated bundle below `folder`, and beside it files that it must not lead to."""
    rng = random.Random(f"bundle {seed} {number}")
    inside, outside = folder / "inside", folder / "outside"
    shutil.copytree(original(), inside)
    shutil.copytree(original() / "bundle", outside)
    (outside / "secret.txt").write_text(SECRET)
    own, steps = inside / "bundle", []
    _rotate(own, number)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        change = rng.choice((_json, _json, _json, _bytes, _header, _tensor, _place, _link, _code))
        with contextlib.suppress(*DAMAGED):
            steps.append(change(rng, own, outside))
    if steps and rng.random() < 0.85:
        steps.append(_sealed(own))
    linked = any(os.path.realpath(own / name).startswith(f"{outside.resolve()}/") for name in READ)
    return Case(inside, steps, list(FORMATS)[number % len(FORMATS)], linked)


def _regular(own: Path) -> list[Path]:
    """Return the files of the bundle that are neither links nor pipes."""
    return sorted(file for file in own.iterdir() if file.is_file() and not file.is_symlink())


def _file(own: Path, name: str) -> Path:
    """Return a file of the bundle. Raise `OSError` if it is a link or a pipe, which are not to be read here."""
    if own / name not in _regular(own):
        raise OSError
    return own / name


def _rotate(own: Path, number: int) -> None:
    """Give the taxa each other's names, so that the same answers of the network have every name."""
    tree = json.loads((own / bundle.TREE).read_text())
    tree["names"] = [names[number % len(names) :] + names[: number % len(names)] for names in tree["names"]]
    (own / bundle.TREE).write_text(json.dumps(tree))
    _sealed(own)


def _json(rng: random.Random, own: Path, outside: Path) -> str:
    """Change a value somewhere in a JSON file."""
    file = rng.choice([file for file in _regular(own) if file.name in TEXTS])
    content = json.loads(file.read_text())
    path, place, key = "", {"": content}, ""
    while isinstance(place[key], (dict, list)) and place[key] and (not path or rng.random() < 0.8):  # type: ignore[index]
        place = place[key]  # type: ignore[index, assignment]
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))  # type: ignore[arg-type]
        path += f"/{key}"
    kind = rng.choice(("value", "value", "value", "delete", "repeat", "number"))
    if kind == "delete":
        del place[key]  # type: ignore[arg-type]
    elif kind == "repeat" and isinstance(place, list):
        place.append(place[key])
    elif kind == "number" and isinstance(place[key], (int, float)):  # type: ignore[index]
        place[key] = place[key] * rng.choice((-1, 2, 0.5, 10)) + rng.choice((-1, 0, 1))  # type: ignore[index]
    else:
        place[key] = rng.choice(VALUES)  # type: ignore[index]
    file.write_text(json.dumps(content))
    return f"{kind} {file.name}{path} -> {str(place[key] if kind == 'value' else '')[:60]!r}"  # type: ignore[index]


def _bytes(rng: random.Random, own: Path, outside: Path) -> str:
    """Damage the bytes of a file."""
    file, damage = rng.choice(_regular(own)), rng.choice(DAMAGE)
    file.write_bytes(damage(rng, file.read_bytes()))
    return f"{damage.__name__.strip('_')} {file.name}"


def _header(rng: random.Random, own: Path, outside: Path) -> str:
    """Change the header of the weights or of the prior."""
    file = _file(own, rng.choice(TENSORS))
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = rng.choice(list(header))
    key = rng.choice(list(header[name]))
    header[name][key] = rng.choice((*VALUES, [0, 2**62], [2**62, 4], [-1, 4], [8, 4], "F64", "I64", "F8_E4M3", "BOOL"))
    text = json.dumps(header).encode()
    size = rng.choice((len(text), len(text), len(text), 0, 2**63, 2**40, len(text) - 1))
    file.write_bytes(size.to_bytes(8, "little") + text + content[8 + length :])
    return f"header of {file.name}: {name}/{key}, of {size} bytes"


def _tensor(rng: random.Random, own: Path, outside: Path) -> str:
    """Change a tensor of the weights or of the prior."""
    file = _file(own, rng.choice(TENSORS))
    state = load_file(file)
    name, kind = rng.choice(sorted(state)), rng.choice(("nan", "large", "float16", "int", "shape", "delete", "more"))
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "nan": lambda t: t * math.nan,
        "large": lambda t: t * 1e30,
        "float16": lambda t: t.half(),
        "int": lambda t: t.long(),
        "shape": lambda t: t.reshape(-1)[: rng.choice((0, 1, 2))],
    }
    if kind == "delete":
        del state[name]
    else:
        state[f"{name}.{kind}" if kind == "more" else name] = changes.get(kind, torch.clone)(state[name]).contiguous()
    file.unlink()
    save_file(state, file)
    return f"{kind} tensor {name} of {file.name}"


def _place(rng: random.Random, own: Path, outside: Path) -> str:
    """Put something else into the place of a file."""
    file, kind = rng.choice(_regular(own)), rng.choice(("absent", "folder", "pipe", "endless", "itself"))
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind in ("endless", "itself"):
        file.symlink_to("/dev/zero" if kind == "endless" else file)
    return f"{kind} {file.name}"


def _link(rng: random.Random, own: Path, outside: Path) -> str:
    """Lead out of the bundle: by a link, or by a name in its list of files."""
    file, target = rng.choice(_regular(own)), rng.choice(("same", "secret"))
    aim = outside / (file.name if target == "same" else "secret.txt")
    if rng.random() < 0.6:
        file.unlink()
        file.symlink_to(aim if rng.random() < 0.5 else os.path.relpath(aim, own))
        return f"{file.name} is a link to {aim.name}"
    content = json.loads(_file(own, bundle.CONFIG).read_text())
    name = rng.choice((str(aim), os.path.relpath(aim, own)))
    content["files"][name] = file_digest(aim)
    (own / bundle.CONFIG).write_text(json.dumps(content))
    return f"files has {name}"


def _code(rng: random.Random, own: Path, outside: Path) -> str:
    """Put code into the bundle, as a package or as a pickle."""
    code, kind = CODE.format(str(outside / "executed")), rng.choice(("plugin", "pickle", "workload", "model"))
    (own / "evil.py").write_text(code)
    if kind == "pickle":

        class Evil:
            def __reduce__(self) -> Any:
                return exec, (code,)

        torch.save({"state": Evil()}, _file(own, bundle.WEIGHTS))
        return kind
    content = json.loads(_file(own, bundle.CONFIG).read_text())
    if kind == "plugin":
        content["description"]["plugins"] = ["evil"]
    elif kind == "workload":
        content["workload"] = rng.choice(("evil", "bundle.evil", "os.path"))
    else:
        backbone = rng.choice(("vit_giant_patch14_dinov2", "local-dir:../outside", "hf-hub:a/b", "../outside", "no_such_backbone"))
        timm = {"name": "timm", "backbone": backbone, "dropout": 0.0, "drop_path": 0.0, "meta_width": 8, "pretrained": True}
        content["description"]["model"] = timm | {"pretrained_file": str(outside / "secret.txt")}
    (own / bundle.CONFIG).write_text(json.dumps(content))
    return f"{kind} {content['description']['model'].get('backbone', '')}"


def _sealed(own: Path) -> str:
    """Write the checksums again, also that of the prior in the calibration."""
    with contextlib.suppress(*DAMAGED):
        calibration = _file(own, bundle.CALIBRATION)
        content = json.loads(calibration.read_text())
        content["prior"]["sha256"] = file_digest(_file(own, bundle.PRIOR))
        calibration.write_text(json.dumps(content))
    with contextlib.suppress(*DAMAGED):
        content = json.loads(_file(own, bundle.CONFIG).read_text())
        regular = [name for name in content["files"] if (own / name).is_file()]  # not a pipe
        content["files"] |= {name: file_digest(own / name) for name in regular}
        (own / bundle.CONFIG).write_text(json.dumps(content))
    return "sealed"


def failures(found: Case, watched: bool = True) -> list[str]:
    """Return the rules that `linnaeus predict` with the bundle, and the model card of the service, break."""
    failed: list[str] = []
    if watched:
        watch([found.folder], failed.append)
    os.chdir(found.folder)
    out = found.folder / f"answers{FORMATS[found.form].suffix}"
    status, printed, line = _command(["bundle", "--manifest", "media.csv", "--out", str(out), "--format", found.form, "--threads", "1"])
    if "Traceback" in printed + line or status not in (0, 2):
        failed.append(f"exit status {status}: {line[-500:]!r}")
    if status == 2 and (line.count("\n") != 1 or len(line) > MAX_LINE or not line.strip().isprintable()):
        failed.append(f"an error of {len(line)} characters: {line[:300]!r}")
    if status == 2 and out.exists():
        failed.append("status 2, and a file was written")
    if status == 0:
        failed += _wrong_answers(found, out)
    if SECRET in printed + line or (out.exists() and SECRET in out.read_text(errors="replace")):
        failed.append("the content of a file outside was printed")
    if (found.folder.parent / "outside" / "executed").exists():
        failed.append("code of the bundle was executed")
    return failed


def _command(words: list[str]) -> tuple[int | str | None, str, str]:
    """Return the status of `linnaeus predict`, and what it prints on stdout and stderr."""
    printed, line = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(line):
        try:
            status: int | str | None = predict_cli.main(words)
        except SystemExit as end:
            status = end.code
    return status, printed.getvalue(), line.getvalue()


def _wrong_answers(found: Case, out: Path) -> list[str]:
    """Return the rules that answers break: the names of the tree, probabilities of one, and the model card of this bundle."""
    failed = []
    model = load_model("bundle")
    if model.description.max_image_pixels < 480:  # of the photograph
        return []
    prediction = model.predict("photo.png", latitude=52.1, longitude=4.3, date="2026-05-01", elevation=20)
    tensors = any("tensor" in step or "model.safetensors" in step or "header" in step for step in found.steps)
    sums = {rank: sum(taxon.probability for taxon in taxa) for rank, taxa in model.predict("photo.png", top=10**6).ranks.items()}
    if not tensors and not all(abs(total - 1) < 1e-5 for rank, total in sums.items() if model.tree.sizes[model.tree.ranks.index(rank)]):
        failed.append(f"probabilities with the sums {sums}")
    known = json.loads(Path("bundle", bundle.TREE).read_text())["names"]
    names = [taxon.name for taxon in prediction.path]
    if any(taxon.name not in known[model.tree.ranks.index(taxon.rank)] for taxon in prediction.path):
        failed.append(f"{names} are not names of the tree")
    answer = prediction.path[-1] if prediction.precision is None and prediction.path else prediction.answer
    written = [] if answer is None else READERS[found.form](out)
    if answer is not None and not tensors and answer.name.encode(errors="backslashreplace").decode() not in written:
        failed.append(f"{answer.name!r} is written as {written}")
    with contextlib.suppress(ConfigError):
        if SECRET in serve_cli._card(Path("bundle"), model):
            failed.append("the model card is a file outside of the bundle")
    if found.linked:
        failed.append("a file outside of the bundle was read")
    return failed


def _table(path: Path) -> Iterator[Any]:
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield from row.values()


# format -> function that returns the names in a file of answers
READERS: dict[str, Callable[[Path], list[Any]]] = {
    "json": lambda path: [taxon["name"] for row in json.loads(path.read_text())["predictions"] for taxon in row["path"].values()],
    "csv": lambda path: list(_table(path)),
    "parquet": lambda path: list(itertools.chain(*(row.values() for row in pq.read_table(path).to_pylist()))),
    "speciesnet": lambda path: [name for taxon in json.loads(path.read_text())["taxa"].values() for name in _texts(taxon)],
    "megadetector": lambda path: [*json.loads(path.read_text())["classification_categories"].values()],
    "camtrap_dp": lambda path: list(_table(path)),
    "darwin_core": lambda path: list(_table(path)),
}


def _texts(content: Any) -> list[str]:
    """Return all texts in nested containers."""
    if isinstance(content, str):
        return [content]
    values = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return [text for value in values for text in _texts(value)]
