"""Define `AnswerTables`, which reads the tables of the last validation of a taxonomy run for the sections of report.html."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from linnaeus.reporting.report.metric_names import passes_and_tasks
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads.taxonomy.report.example_photographs import FILE
from linnaeus.workloads.taxonomy.report.sample_table import Sample, read_samples, taxon_name


class Taxon(NamedTuple):
    """Class at a taxonomic rank, with its counts.

    lineage: names from the root to the class. name: last part of `lineage`. training: number of training labels of the class. samples:
    number of validation samples with this label. right: number of these samples whose prediction at this rank is right. predicted: number
    of predictions of the class."""

    rank: str
    name: str
    lineage: str
    training: int
    samples: int
    right: int
    predicted: int

    @property
    def accuracy(self) -> float | None:
        """Return `right` / `samples`; None if `samples` is 0."""
        return self.right / self.samples if self.samples else None


class AnswerTables:
    """Tables of the last validation and final metrics of a taxonomy run. The run needs a validation metric of at least one rank.

    final: metric key -> final value. ranks: names of the taxonomic ranks, the coarsest first. finest: the last of `ranks`. passes: names of
    the validation passes, the normal pass first. normal: name of the normal pass. A pass with EMA weights is called `val_ema...` in metric
    keys, but `val...` in file names."""

    def __init__(self, run: RunFiles) -> None:
        self.run, self.final = run, run.final
        self.passes, self.ranks = passes_and_tasks(run.final)
        self.finest = self.ranks[-1]
        self.normal = self.passes[0]

    def value(self, name: str, of: str = "") -> float | None:
        """Return the final value of the metric `name`, such as `species/top1`; None if undefined.

        `of`: name of a validation pass; "": the normal pass."""
        return self.final.get(f"{of or self.normal}/{name}")

    @cached_property
    def samples(self) -> list[Sample]:
        """Return the label and the prediction of each validation sample, in dataset order; [] without the table of samples."""
        return read_samples(self.run.table("samples"), self.finest)

    @cached_property
    def taxa(self) -> dict[str, Taxon]:
        """Return {lineage: `Taxon`} for the classes of all ranks, coarse ranks first; {} without the table of classes."""
        return {row["lineage"]: _taxon(row) for row in self.run.table("classes")}

    @cached_property
    def parents(self) -> dict[str, str]:
        """Return {lineage: lineage of the parent taxon} for each taxon in `taxa`; the parent of a root is ""."""
        return {lineage: self._above(lineage) for lineage in self.taxa}

    def _above(self, lineage: str) -> str:
        while "|" in lineage:
            lineage = lineage.rpartition("|")[0]
            if lineage in self.taxa:
                return lineage
        return ""

    def path(self, lineage: str) -> list[str]:
        """Return the lineages of the taxa from the root down to the taxon `lineage`, both included; [] for ""."""
        found = []
        while lineage:
            found.append(lineage)
            lineage = self.parents.get(lineage, "")
        return found[::-1]

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return {metric, such as `species/top1`: {"constant": value, "shuffled": value}}, two trivial baselines; {} without the table of
        baselines.

        constant: always predict the most frequent class. shuffled: assign the model's predictions to the samples in random order."""
        rows = self.run.table("baselines")
        return {row["metric"]: {name: float(row[name]) for name in ("constant", "shuffled")} for row in rows}

    @cached_property
    def examples(self) -> dict[str, Any]:
        """Return the content of photographs.json (see `example_photographs.py`); {} if the file is missing."""
        return self.run.json(FILE)

    def photograph(self, key: str) -> Mapping[str, Any]:
        """Return name, metadata and image of a photograph in photographs.json; {} if the file does not have it.

        key: `validation/<number>` or `training/<lineage>`."""
        return self.examples.get("photographs", {}).get(key, {})


def _taxon(row: Mapping[str, str]) -> Taxon:
    numbers = (int(row[name]) for name in ("training_count", "count", "right", "predicted"))
    return Taxon(row["rank"], taxon_name(row["lineage"]), row["lineage"], *numbers)


def times(count: int) -> str:
    """Return `count` in words: `once`, `twice`, `3 times`, `1,200 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")
