"""Train and measure the dictionaries of one seed, ours and those of SAELens. Finished trials are lines of a file and are not repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.dictionary_recovery.controls import measure_control
from benchmarks.dictionary_recovery.size import Size
from benchmarks.saelens.child import read_folder, run_saelens
from benchmarks.saelens.trials import Measures, TrialFile, train
from linnaeus.workloads.dictionary.model.variants import build_dictionary
from linnaeus.workloads.dictionary.planted import PlantedDictionary
from linnaeus.workloads.dictionary.planted_config import SETS
from linnaeus.workloads.dictionary.recovery import measure_recovery
from linnaeus.workloads.dictionary.trained.export_dictionary import write_folder
from linnaeus.workloads.dictionary.trained.load_dictionary import load_model

TESTED = 1 << 40  # number of the first sample that is evaluated; training has the first ones
CHUNK = 8192
EXPORT = "export"  # trials of our dictionaries as SAELens loads and evaluates them
SHOWN = ("mcc", "f1", "l0", "wall_seconds", "evaluator_gap")


class Variant(NamedTuple):
    """A variant in the words of both programs.

    ours: overrides, with names of `Size` in braces. architecture: that of SAELens; empty: not trained there. theirs: its settings.
    shared: its settings that follow from the size: k, l0_warm_up_steps, matryoshka_widths. widths: the inner ones of matryoshka."""

    ours: tuple[str, ...]
    architecture: str = ""
    theirs: Mapping[str, Any] = {}
    shared: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    k: int | None = None  # instead of that of the size


@dataclass(frozen=True)
class Study:
    """Trials of one size. controls: names of controls. results: file of the finished trials. saelens: Python with SAELens; None: without
    it. root: for runs and data."""

    size: Size
    variants: Mapping[str, Variant]
    controls: Sequence[str]
    results: Path
    saelens: str | None
    root: Path

    def seed(self, seed: int) -> dict[tuple[str, str], Measures]:
        """Return {(program, variant): measures} for one seed, which is that of the planted features, too. Train what is not finished."""
        self.root.mkdir(parents=True, exist_ok=True)
        planted = PlantedDictionary(SETS[self.size.planted], seed, self.size.device or "cpu")
        for name in self.controls:
            if self.find("control", name, seed) is None:
                self.add("control", name, seed, asdict(measure_control(name, planted, self.size, seed, TESTED)))
        exports = {}
        for name in self.variants:
            if self.find("linnaeus", name, seed) is None:
                exports[name], measures = self.ours(name, seed, planted)
                self.add("linnaeus", name, seed, measures)
        theirs = [name for name, one in self.variants.items() if one.architecture and self.find("SAELens", name, seed) is None]
        if theirs and self.saelens is not None:
            self.theirs(theirs, seed, planted)
        if exports and self.saelens is not None:
            self.check_exports(exports, seed, planted)
        pairs = [("control", name) for name in self.controls]
        pairs += [(who, name) for who in ("linnaeus", "SAELens", EXPORT) for name in self.variants]
        found = {pair: self.find(*pair, seed) for pair in pairs}
        return {pair: measures for pair, measures in found.items() if measures is not None}

    # -- the file of results ---------------------------------------------------------------------------------------------------

    def trial(self, who: str, name: str, seed: int) -> dict[str, Any]:
        """Return what identifies a trial: all that its result depends on."""
        words: Any = {"linnaeus": self.variants[name].ours, "SAELens": self.variants[name].theirs} if name in self.variants else {}
        k = self.variants[name].k if name in self.variants else None
        return json.loads(
            json.dumps({**self.size._asdict(), "who": who, "variant": name, "seed": seed, "words": words.get(who), "own_k": k})
        )

    def find(self, who: str, name: str, seed: int) -> Measures | None:
        return TrialFile(self.results).find(self.trial(who, name, seed))

    def add(self, who: str, name: str, seed: int, measures: Measures) -> None:
        title = f"{self.size.planted} {who} {name} {seed}"
        TrialFile(self.results).add(self.trial(who, name, seed), measures, title, SHOWN)

    # -- trials ----------------------------------------------------------------------------------------------------------------

    def ours(self, name: str, seed: int, planted: PlantedDictionary) -> tuple[Path, Measures]:
        """Train with the program itself. Return the folder of the export to SAELens' layout, and the measures."""
        size, folder = self.size._replace(k=self.variants[name].k or self.size.k), self.root / f"ours-{name}-{seed}"
        start = time.process_time()
        run, wall = train_ours(size, [word.format(**size._asdict()) for word in self.variants[name].ours], seed, folder)
        seconds = time.process_time() - start
        trained = load_model(run, device=size.device or "cpu")
        model = trained.dictionary
        found = measure_recovery(model.encode, model.decode, model.decoder.detach(), planted, TESTED, size.tested)
        first = build_dictionary(model.config, model.width, seed).decoder.to(model.decoder.device)
        moved = torch.nn.functional.cosine_similarity(first, model.decoder).median().detach()
        write_folder(trained, folder)
        return folder, asdict(found) | {"cpu_seconds": seconds, "wall_seconds": wall, "cosine_to_start": float(moved)}

    def check_exports(self, exports: Mapping[str, Path], seed: int, planted: PlantedDictionary) -> None:
        """Let SAELens load and evaluate our dictionaries. exports: variant -> folder."""
        arrays = self.write_arrays(planted)
        jobs = [{"action": "evaluate", "folder": str(folder), **arrays} for folder in exports.values()]
        assert self.saelens is not None
        for folder in run_saelens(self.saelens, jobs, self.root):
            name = next(name for name, one in exports.items() if one == folder)
            measures = self.find("linnaeus", name, seed)
            assert measures is not None
            self.add(EXPORT, name, seed, {"evaluator_gap": gap(measures, folder)})

    def theirs(self, names: Sequence[str], seed: int, planted: PlantedDictionary) -> None:
        """Train the variants `names` with SAELens on the same samples in the same order, and evaluate them with both evaluators."""
        size, updates = self.size, self.size.samples // self.size.batch
        data, arrays = self.root / "data.npy", self.write_arrays(planted)
        rows = np.lib.format.open_memmap(data, "w+", np.float32, (updates * size.batch, planted.width))
        for start in range(0, len(rows), CHUNK):
            rows[start : start + CHUNK] = planted.activations(start, min(CHUNK, len(rows) - start)).numpy()
        rows.flush()
        common = {"data": str(data), "samples": updates * size.batch, "batch": size.batch, "features": size.features, "seed": seed}
        common |= {"lr": size.lr, "warmup": 0, "decay": updates // 3, "dead_after": size.dead_after}
        jobs: list[dict[str, Any]] = []
        for name in names:
            variant, folder = self.variants[name], self.root / f"saelens-{name}-{seed}"
            settings = {"k": variant.k or size.k, "l0_warm_up_steps": updates // 10, "matryoshka_widths": [*variant.widths, size.features]}
            settings = {key: settings[key] for key in variant.shared} | dict(variant.theirs)
            training = {"action": "train", "folder": str(folder), "architecture": variant.architecture, "settings": settings, **common}
            jobs += [training, {"action": "evaluate", "folder": str(folder), **arrays}]
        assert self.saelens is not None
        for folder in run_saelens(self.saelens, jobs, self.root):
            if not (folder / "evaluation.json").exists():  # it was only trained
                continue
            model = read_folder(folder)
            measures = asdict(measure_recovery(model.encode, model.decode, model.decoder, planted, TESTED, size.tested))
            measures |= {**json.loads((folder / "cost.json").read_text()), "evaluator_gap": gap(measures, folder)}
            self.add("SAELens", folder.name.removeprefix("saelens-").removesuffix(f"-{seed}"), seed, measures)
        data.unlink()

    def write_arrays(self, planted: PlantedDictionary) -> dict[str, str]:
        """Write the planted features and the codes of the evaluated samples. Return {name: path}."""
        arrays = {"planted": planted.features, "bias": planted.bias, "codes": planted.sample(TESTED, self.size.tested)[1]}
        for name, array in arrays.items():
            np.save(self.root / f"{name}.npy", array.numpy())
        return {name: str(self.root / f"{name}.npy") for name in arrays}


def train_ours(size: Size, overrides: Sequence[str], seed: int, root: Path) -> tuple[Path, float]:
    """Train a dictionary with `main.py`, in this process. Return the run directory, and the wall seconds of the updates."""
    data = [f"data.{name}={value}" for name, value in asdict(SETS[size.planted]).items()]
    data += [f"data.world={seed}", f"data.train_samples={size.samples}", f"data.validation_samples={size.batch}"]
    length = [f"trainer.global_batch_size={size.batch}", f"trainer.length={size.samples // size.batch}steps"]
    length += [f"trainer.device={size.device or 'cpu'}"]
    rate = [f"optimizer.lr={size.lr}", "lr_scheduler=wsd", "lr_scheduler.warmup=0steps", "lr_scheduler.decay=33.3%"]
    words = ["workload=dictionary", "data=planted", *data, *length, *rate, "lr_scheduler.decay_shape=linear", f"seed={seed}"]
    run, seconds = train([*words, *overrides, f"model.features={size.features}", f"model.dead_after={size.dead_after}"], root)
    return run, seconds["wall_seconds"]


def gap(measures: Mapping[str, float], folder: Path) -> float:
    """Return the largest difference between our measures and those of SAELens' evaluator."""
    theirs = json.loads((folder / "evaluation.json").read_text())
    names = {"f1": "f1_score", "l0": "sae_l0"} | {name: name for name in ("mcc", "uniqueness", "precision", "recall", "shrinkage")}
    names |= {"true_l0": "true_l0", "explained_variance": "explained_variance"}
    dead = theirs["dead_latents"] / json.loads((folder / "cfg.json").read_text())["d_sae"]
    return max(abs(measures["dead"] - dead), *(abs(measures[ours] - theirs[name]) for ours, name in names.items()))
