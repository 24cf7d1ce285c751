"""Bundles in a process without the training code: one of an earlier version, whose answers are known, and one of this version."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import linnaeus
from linnaeus.errors import ConfigError
from tests import runs
from tests.workloads.taxonomy.trained.conftest import Finished
from tests.workloads.taxonomy.trained.kept_bundle import ANSWERS, CASES, ZIP

PLACE = {"latitude": 10, "longitude": 20, "date": "2021-05-01", "elevation": 300}
WITHOUT_TRAINING = """
import json, sys
sys.path.insert(0, sys.argv[1])
PACKAGES = ("hydra", "omegaconf", "wandb", "rich", "timm", "torchvision", "pandas", "pyarrow", "scipy", "tests")
ROOMS = [f"linnaeus.{room}" for room in ("train", "optim", "weighting", "launch", "sweep", "commands", "rundir")]
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in PACKAGES or name in ROOMS:
            raise ImportError(f"{name} is forbidden")
sys.meta_path.insert(0, Forbidden())
import linnaeus
assert "torch" not in sys.modules
models = {}
for bundle, photograph, given in json.load(sys.stdin):
    if bundle not in models:
        models[bundle] = linnaeus.load_model(bundle)
    with open(photograph, "rb") as file:
        print(json.dumps(models[bundle].predict(file.read(), top=2, **given).plain()))
"""


class Found(NamedTuple):
    kept: list[dict[str, Any]]  # predictions in the order of `ANSWERS`
    own: dict[str, Any]  # of the bundle of this version


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the files of `ZIP`."""
    folder = tmp_path_factory.mktemp("kept")
    with zipfile.ZipFile(ZIP) as file:
        file.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path, finished: Finished) -> Found:
    """Ask both bundles in one process in which the imports of the training code fail."""
    jobs = [(str(folder / "bundle"), str(folder / "photographs" / f"{photograph}.png"), CASES[case]) for photograph, case, _ in recorded()]
    jobs.append((str(finished.bundle), str(finished.photograph(0)), PLACE))
    command = [sys.executable, "-c", WITHOUT_TRAINING, str(runs.ROOT)]
    done = subprocess.run(command, cwd=folder, input=json.dumps(jobs), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *kept, own = map(json.loads, done.stdout.splitlines())
    return Found(kept, own)


def recorded() -> list[tuple[str, str, dict[str, Any]]]:
    """Return (photograph, case, prediction) of the program that wrote the kept bundle."""
    return json.loads(ANSWERS.read_text(encoding="utf-8"))


def check_equal(answer: Any, known: Any, place: str) -> None:
    """Check that `answer` has all of `known`: equal texts and truth values, and numbers that differ by 1e-5 at most."""
    if isinstance(known, dict):
        for name, value in known.items():
            check_equal(answer[name], value, f"{place}.{name}")
    elif isinstance(known, list):
        assert len(answer) == len(known), place
        for i, value in enumerate(known):
            check_equal(answer[i], value, f"{place}[{i}]")
    elif isinstance(known, float):
        assert answer == pytest.approx(known, abs=1e-5, rel=0), place
    else:
        assert answer == known, place


def test_a_kept_bundle_has_the_answers_of_the_program_that_wrote_it(found: Found):
    assert len(found.kept) == len(recorded()) > 0 and ZIP.stat().st_size < 50_000
    for answer, (photograph, case, known) in zip(found.kept, recorded(), strict=True):
        check_equal(answer, known, f"{photograph}.{case}")


def test_the_answers_of_a_kept_bundle_depend_on_all_of_it(folder: Path):
    """Each case has probabilities of its own, so that a part of the bundle that is not read is seen."""
    predictions = {}
    for photograph, case, known in recorded():
        predictions[photograph, case] = tuple(taxon["probability"] for taxon in known["ranks"]["species"])
    assert len(set(predictions.values())) == len(predictions)
    answers = {known["answer"] and known["answer"]["rank"] for _, _, known in recorded()}
    assert len(answers) > 2 and {known["outside"] for _, _, known in recorded()} == {False, True}


@pytest.mark.parametrize("file", ["model.safetensors", "taxonomy.json", "calibration.json", "prior.safetensors"])
def test_a_changed_file_of_a_kept_bundle_is_found_by_its_checksum(folder: Path, tmp_path: Path, file: str):
    shutil.copytree(folder / "bundle", tmp_path / "bundle")
    content = bytearray((tmp_path / "bundle" / file).read_bytes())
    content[-2] ^= 1
    (tmp_path / "bundle" / file).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{file} is not the file that was written"):
        linnaeus.load_model(tmp_path / "bundle")


def test_a_new_bundle_needs_no_training_code(found: Found, finished: Finished):
    own = linnaeus.load_model(finished.run).predict(finished.photograph(0).read_bytes(), top=2, **PLACE)
    check_equal(found.own, own.plain(), "prediction")
