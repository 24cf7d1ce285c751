"""Train and evaluate BatchTopK dictionaries of linnaeus and of SAELens on the same activations. Finished trials are lines of a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.dictionary.reading import Reading
from benchmarks.saelens.child import read_folder, run_saelens
from benchmarks.saelens.trials import Measures, TrialFile, train
from linnaeus.workloads.dictionary.model.sparse_dictionary import SparseDictionary
from linnaeus.workloads.dictionary.trained.load_dictionary import load_model

OURS, THEIRS = "linnaeus", "SAELens"
WIDER = 8  # features for each dimension
NORMALIZE = ("none", "expected_average_only_in")  # SAELens' scaling of the activations: its default, and to a mean norm of sqrt(d)
TUNED_K, TUNING_SEED = 32, 1000  # of the trials that choose the learning rate; other seeds are measured
SHOWN = ("l0", "explained_variance", "loss_recovered", "dead", "cpu_seconds")


class Size(NamedTuple):
    """Conditions that are the same for both programs."""

    samples: int  # of training
    batch: int
    dead_after: int  # samples without activity


class Settings(NamedTuple):
    """Settings that are chosen for each program. normalize: how SAELens scales the activations; "" for linnaeus, which always scales
    them."""

    lr: float
    normalize: str = ""


class Trial(NamedTuple):
    k: int
    seed: int
    settings: Settings


@dataclass(frozen=True)
class Study:
    """Trials on the activations of one module. saelens: interpreter that has SAELens; None to train with linnaeus only. rates: learning
    rates to choose from."""

    reading: Reading
    size: Size
    rates: Sequence[float]
    results: TrialFile
    saelens: str | None

    def compare(self, ks: Sequence[int], seeds: Sequence[int]) -> dict[tuple[str, int], list[Measures]]:
        """Return {(program, k): measures of each seed}. Train what is not finished, both programs in turn."""
        programs = [OURS, *([THEIRS] if self.saelens is not None else [])]
        settings = {who: self.choose(who) for who in programs}
        found: dict[tuple[str, int], list[Measures]] = {(who, k): [] for k in ks for who in programs}
        for seed in seeds:
            for who in programs:
                for k, measures in zip(ks, self.measure(who, [Trial(k, seed, settings[who]) for k in ks]), strict=True):
                    found[who, k].append(measures)
        return found

    def making(self) -> Measures:
        """Return the `cpu_seconds` of making and storing the activations, and the number of `rows`. Make them if that is not finished."""
        identity = {"read": self.reading.name, "activations": self.reading.source.fingerprint, "who": "making"}
        found = self.results.find(identity)
        if found is None:
            found = self.reading.store()
            self.results.add(identity, found, f"{self.reading.name} activations", ("cpu_seconds", "rows"))
        return found

    def choose(self, who: str) -> Settings:
        """Return the settings with the largest explained variance for `TUNED_K` and a seed that is not measured.

        With one learning rate nothing is trained; for SAELens the result then has the last scaling in `NORMALIZE`."""
        candidates = [Settings(lr, normalize) for lr in self.rates for normalize in (NORMALIZE if who == THEIRS else ("",))]
        if len(self.rates) == 1:
            return candidates[-1]
        found = self.measure(who, [Trial(TUNED_K, TUNING_SEED, settings) for settings in candidates])
        return max(zip(found, candidates, strict=True), key=lambda pair: pair[0]["explained_variance"])[1]

    def measure(self, who: str, trials: Sequence[Trial]) -> list[Measures]:
        """Return the measures of trials. Train and evaluate those that are not finished."""
        missing = [trial for trial in trials if self.results.find(self.identity(who, trial)) is None]
        if missing:
            self.reading.store()
            with tempfile.TemporaryDirectory(dir=self.reading.folder) as root:
                for trial, model, cost in (self.ours if who == OURS else self.theirs)(missing, Path(root)):
                    measures = self.reading.evaluate(model) | cost
                    chosen = " ".join(str(value) for value in trial.settings if value)
                    title = f"{self.reading.name} {who} k={trial.k} seed {trial.seed} {chosen}"
                    self.results.add(self.identity(who, trial), measures, title, SHOWN)
        found = [self.results.find(self.identity(who, trial)) for trial in trials]
        return [measures for measures in found if measures is not None]

    def identity(self, who: str, trial: Trial) -> dict[str, Any]:
        """Return all that the result of a trial depends on."""
        read = {"read": self.reading.name, "activations": self.reading.source.fingerprint, "tested": self.reading.tested}
        return {**read, **self.size._asdict(), "who": who, **trial._asdict()}

    def ours(self, trials: Sequence[Trial], root: Path) -> Iterator[tuple[Trial, SparseDictionary, Measures]]:
        """Train with linnaeus. Yield each trial with its dictionary and its cost (`cpu_seconds` and `wall_seconds`)."""
        for number, trial in enumerate(trials):
            run, seconds = train(
                [*self.reading.words(), f"data.folder={self.reading.stored}", *self.our_words(trial)], root / f"trial{number}"
            )
            yield trial, load_model(run).dictionary, seconds

    def our_words(self, trial: Trial) -> list[str]:
        size = self.size
        model = ["model=batch_topk", f"model.k={trial.k}", f"model.dead_after={size.dead_after}", f"seed={trial.seed}"]
        length = [f"trainer.global_batch_size={size.batch}", f"trainer.length={size.samples // size.batch}steps"]
        rate = [f"optimizer.lr={trial.settings.lr}", "lr_scheduler=wsd", "lr_scheduler.warmup=0steps", "lr_scheduler.decay=33.3%"]
        quiet = ["schedule.validate=[]", "schedule.validate_at_end=false", "schedule.checkpoint=[]"]
        return [*model, *length, *rate, "lr_scheduler.decay_shape=linear", *quiet]

    def theirs(self, trials: Sequence[Trial], root: Path) -> Iterator[tuple[Trial, SparseDictionary, Measures]]:
        """Train with SAELens. Yield each trial with its dictionary and its cost (`cpu_seconds` and `wall_seconds`)."""
        assert self.saelens is not None
        size, updates = self.size, self.size.samples // self.size.batch
        common = {"action": "train", "architecture": "batchtopk", "data": str(self.reading.stored.resolve()), "warmup": 0}
        common |= {"samples": updates * size.batch, "batch": size.batch, "features": WIDER * self.reading.source.width}
        common |= {"decay": updates // 3, "dead_after": size.dead_after}
        folders = {root / f"trial{number}": trial for number, trial in enumerate(trials)}
        jobs = []
        for folder, trial in folders.items():
            settings = {"k": trial.k, "normalize_activations": trial.settings.normalize}
            jobs.append({**common, "folder": str(folder), "seed": trial.seed, "lr": trial.settings.lr, "settings": settings})
        for folder in run_saelens(self.saelens, jobs, root):
            yield folders[folder], read_folder(folder), json.loads((folder / "cost.json").read_text())
