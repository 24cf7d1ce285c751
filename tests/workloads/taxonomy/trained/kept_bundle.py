"""Write `kept_bundle.zip`, a bundle that every later version must open, and `kept_bundle.json`, its answers.

    python -m tests.workloads.taxonomy.trained.kept_bundle

Do not write them again: they must stay as they are. The zip file has the bundle, which `write_bundle` made, and two PNG photographs of the
size that the network reads. The network is `mformer` of the size micro with the head `conditional`. It reads the elevation; a prior reads
place and season; temperatures and thresholds are invented. In the large matrices 2 % of the weights are not 0, so that the file is small
(`SHARE`). `test_kept_bundle.py` opens it."""

from __future__ import annotations

import json
import math
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from linnaeus.checkpoint.initial_weights import InitialWeights
from linnaeus.checkpoint.weight_files import write_weights
from linnaeus.files import file_digest, to_json
from linnaeus.workloads.taxonomy.config import HeadConfig, MformerConfig
from linnaeus.workloads.taxonomy.models import build_network
from linnaeus.workloads.taxonomy.trained.classifier.bundle import CALIBRATION, CARD, PRIOR, write_bundle
from linnaeus.workloads.taxonomy.trained.classifier.description import Description
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration, Precision
from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PlacePrior, PriorRecord
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

ZIP = Path(__file__).with_suffix(".zip")
ANSWERS = Path(__file__).with_suffix(".json")
SIDE, SHARE, LARGE = 32, 0.02, 1000  # pixels; share of the weights that are not 0 in tensors of more elements than LARGE
CASES = {  # arguments of `predict`
    "alone": {},
    "elevation": {"elevation": 1250.5},
    "place": {"latitude": -33.5, "longitude": 151.2, "uncertainty": 250},
    "season": {"date": "2020-12-31", "time": "23:30"},
    "everything": {"latitude": 52.1, "longitude": 4.3, "date": "2026-05-01", "elevation": -3},
    "set": {"elevation": 10, "coverage": 0.9, "precision": 0.8},
    "clade": {"among": ["family:Cracidae"], "date": "2026-05-01"},
}
LINEAGES = [
    ["Aves", "Cracidae", "Crax", "Crax rubra"],
    ["Aves", "Cracidae", "Crax", "Crax alector"],
    ["Aves", "Cracidae", "Ortalis", "Ortalis vetula"],
    ["Aves", "", "Incertae", "<b>Incertae, “sp.” & co</b>"],
    ["Mammalia", "Felidae", "Panthera", "Panthera onca"],
    ["Mammalia", "Felidae", "Leopardus", "אוצלוט"],
    ["Mammalia", "Tapiridae", "Tapirus", "Tapirus bairdii"],
]


def main() -> None:
    """Write both files. End with an error if they exist."""
    assert not ZIP.exists(), f"{ZIP} must stay as it is"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_bundle(folder / "bundle")
        make_photographs(folder / "photographs")
        with zipfile.ZipFile(ZIP, "x", zipfile.ZIP_LZMA) as file:
            for path in sorted(folder.rglob("*.*")):
                file.write(path, path.relative_to(folder))
        found = [json.dumps([*one], ensure_ascii=False) for one in answers(folder)]
        ANSWERS.write_text("[\n" + ",\n".join(found) + "\n]\n", encoding="utf-8")
    print(f"{ZIP}: {ZIP.stat().st_size:,} bytes; {ANSWERS}: {ANSWERS.stat().st_size:,} bytes")


def make_bundle(folder: Path) -> None:
    """Write the bundle."""
    torch.manual_seed(0)
    tree = TaxonomyTree.from_lineages(("class", "family", "genus", "species"), np.array(LINEAGES))[0]
    model, head = MformerConfig("mformer", 0.0, 0.0, 32, "micro"), HeadConfig("conditional", "ignore")
    network = build_network(model, head, (SIDE,), tree, ("ELEVATION",))
    for parameter in network.head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    weights = InitialWeights("checkpoints/step-00000001/model.safetensors", "0" * 64, sparse(network.state_dict()))
    prior = PlacePrior(tree, ("SPATIAL", "TEMPORAL"), 8, 0.1)
    for parameter in prior.head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    with tempfile.TemporaryDirectory() as name:
        write_weights(Path(name, PRIOR), prior.state_dict())
        record = PriorRecord(file_digest(Path(name, PRIOR)), prior.components, prior.width, prior.floor)
        texts = {CALIBRATION: to_json(calibration(record).plain()), CARD: "# A bundle that later versions open\n"}
        described = Description(model, head, (SIDE,), ("ELEVATION",), "flip", 10**8)
        write_bundle(folder, described, tree, weights, texts, {PRIOR: Path(name, PRIOR)})


def sparse(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with all but the largest `SHARE` of the elements of each large tensor set to 0, and the others to one magnitude.

    The sum of squares stays the same, so that the features keep their scale."""
    found = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.numel() > LARGE:
            least = tensor.abs().flatten().kthvalue(math.ceil(tensor.numel() * (1 - SHARE))).values
            kept = torch.where(tensor.abs() > least, tensor.sign(), 0.0)
            tensor = kept * (tensor.square().sum() / kept.square().sum()).sqrt()
        found[name] = tensor
    return found


def calibration(record: PriorRecord) -> Calibration:
    """Return invented temperatures and thresholds at which some of `CASES` have an answer and others none."""
    precisions = (Precision(0.8, 0.4, 0.35, 0.7, (0.1, 0.2, 0.1, 0.3)), Precision(0.95, 0.6, 0.55, 0.5, (0.2, 0.2, 0.1, 0.0)))
    sets = {"0.9": (0.1, 0.15, 0.05, 0.1)}
    return Calibration("0" * 64, 2000, (1.5, 0.8, 1.1, 0.7), 0.95, precisions, sets, 0.95, 0.65, record, "invented")


def make_photographs(folder: Path) -> None:
    """Write two photographs: a gradient of colours, and a square on a plain ground."""
    folder.mkdir()
    grid = np.arange(SIDE, dtype=np.uint8) * (256 // SIDE)
    square = np.full((SIDE, SIDE, 3), (30, 90, 60), np.uint8)
    square[8:20, 12:28] = (220, 180, 40)
    gradient = np.stack([np.tile(grid, (SIDE, 1)), np.tile(grid[:, None], (1, SIDE)), np.full((SIDE, SIDE), 128, np.uint8)], 2)
    for name, pixels in {"gradient": gradient, "square": square}.items():
        Image.fromarray(pixels).save(folder / f"{name}.png")


def answers(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name of a photograph, the name of one of `CASES`, and the prediction of the bundle in `folder`."""
    model = load_model(folder / "bundle")
    for photograph in sorted((folder / "photographs").iterdir()):
        for name, given in CASES.items():
            yield photograph.stem, name, model.predict(photograph.read_bytes(), top=2, **given).plain()


if __name__ == "__main__":
    main()
