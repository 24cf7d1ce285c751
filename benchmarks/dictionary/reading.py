"""Read the activations of trained runs, and evaluate dictionaries on the held-out samples of these runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.saelens.trials import Measures, train
from linnaeus.data.samples import SampleIndex
from linnaeus.progress import TrainingStage, ValidationPass
from linnaeus.workloads.dictionary.activation_source import ActivationSource
from linnaeus.workloads.dictionary.dictionary_metrics import DictionaryMetrics
from linnaeus.workloads.dictionary.model.dictionary_set import DictionarySet
from linnaeus.workloads.dictionary.model.sparse_dictionary import SparseDictionary
from linnaeus.workloads.dictionary.splicing import splice
from linnaeus.workloads.dictionary.stored_activations import store_activations
from linnaeus.workloads.opened_run import open_run

MEASURES = ("l0", "explained_variance", "loss_recovered", "dead")
ONE_THREAD = ["trainer.threads=1", "trainer.device=cpu", "trainer.num_workers=0"]
TESTED_TOGETHER = 20  # held-out samples of a forward pass
SOURCE_BATCH = 16  # training samples of a forward pass, as by default


class Model(NamedTuple):
    """A model whose activations are read. words: settings with which it is trained. tiny: further settings for a training of seconds.
    module: name of the module whose activations are read.

    samples: number of its training samples that are read, about a million activations."""

    words: tuple[str, ...]
    tiny: tuple[str, ...]
    module: str
    samples: int


MODELS = {
    "language": Model(
        ("experiment=shakespeare_char_cpu", "data.path=null"),
        ("trainer.length=1steps", "lr_scheduler.warmup=0steps", "schedule.validate=[]"),
        "blocks.1",
        16_000,
    ),
    "taxonomy": Model(
        (), ("trainer.length=1steps", "data.train_samples=64", "data.validation_samples=20"), "trunk.stages.0.blocks.0", 20_000
    ),
}


def trained_run(name: str, folder: Path, tiny: bool) -> Path:
    """Return the run directory of the model `name` in `folder`. It is trained if it has not finished. tiny: for one update only."""
    model = MODELS[name]
    return train([*model.words, *(model.tiny if tiny else ()), *ONE_THREAD], folder)[0]


class Reading:
    """Activations of the module `module` of the run in the directory `run`. folder: for other files, and for stored activations
    (`folder`/activations).

    samples: number of training samples of the run that are read. tested: number of its validation samples on which dictionaries are
    evaluated, the first ones."""

    def __init__(self, name: str, run: Path, module: str, folder: Path, samples: int, tested: int) -> None:
        self.name, self.run, self.folder, self.tested = name, run, folder, tested
        self.source = ActivationSource(open_run(run, torch.device("cpu"), folder), module, SOURCE_BATCH, samples)
        self.stored = folder / "activations"

    @property
    def rows(self) -> int:
        """Return the number of training activations."""
        return int(self.source.offsets[-1])

    def words(self, samples: int | None = None) -> list[str]:
        """Return the settings with which `main.py` reads this module. samples: training samples to read; None: all of the source."""
        place = [f"dictionary.run={self.run}", f"dictionary.module={self.source.name}", f"data.samples={samples or self.source.count}"]
        return ["workload=dictionary", *place, f"data.source_batch={SOURCE_BATCH}", *ONE_THREAD]

    def store(self) -> Measures:
        """Store the activations, unless they are stored already. Return the `cpu_seconds` that this takes, and the number of `rows`."""
        start = time.process_time()
        store_activations(self.source, self.stored)
        return {"cpu_seconds": time.process_time() - start, "rows": self.rows}

    @torch.inference_mode()
    def evaluate(self, dictionary: SparseDictionary) -> Measures:
        """Return the measures `MEASURES` of a dictionary in evaluation mode, on the held-out samples."""
        workload, found = self.source.run.workload, DictionarySet([dictionary]).eval()
        metrics = DictionaryMetrics(["dictionary"], [dictionary.features], dictionary.width, self.source.device, workload, found)
        one_pass = ValidationPass("val", TrainingStage.VALIDATION_NORMAL)
        metrics.begin(one_pass, [one_pass])
        count = min(self.tested, len(workload.validation_set))
        sums = torch.zeros(metrics.width, dtype=torch.float64)
        for start in range(0, count, TESTED_TOGETHER):
            indices = [SampleIndex(0, i, i, 0) for i in range(start, min(start + TESTED_TOGETHER, count))]
            batch = workload.prepare(workload.validation_set.__getitems__(indices))
            outputs = splice(self.source, found, batch)
            sums += metrics.sums(outputs, batch)
            metrics.count(outputs, batch)
        results = metrics.compute(sums, metrics.counts)
        return {name: results[name] for name in MEASURES}
