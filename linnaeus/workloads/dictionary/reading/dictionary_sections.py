"""Make the sections about features in report.html of a dictionary run, and feature_taxa.csv.

Density and frontier   histogram of the densities of each dictionary; explained variance and loss recovered over L0, for the
                       dictionaries of the run and of other runs on the same module
Features               a card for each of the strongest features; one section for each dictionary
Features of taxa       the best detector of each class, if the samples have classes; one section for each dictionary
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from linnaeus.files import read_json, to_csv, write_atomic
from linnaeus.workloads.dictionary.reading.activity import FeatureTable, Reader, feature_table
from linnaeus.workloads.dictionary.reading.dictionary_charts import Point, density_chart, frontier_chart
from linnaeus.workloads.dictionary.reading.feature_classes import Detector, detectors
from linnaeus.workloads.dictionary.reading.feature_page import STYLE, detector_table, feature_cards, strongest
from linnaeus.workloads.dictionary.trained.trained_dictionary import RECORD, TrainedDictionary
from linnaeus.workloads.opened_run import OpenedRun

FILE = "feature_taxa.csv"
GOOD = 0.9  # least F1 of a detector that is shown and counted
MOST_DETECTORS = 100  # features with a card because they detect a class
EXAMPLES = 6  # most samples on a card
MEASURES = {"explained_variance": "Explained variance", "loss_recovered": "Loss recovered"}


def dictionary_sections(
    run: OpenedRun,
    module: nn.Module,
    dictionaries: Mapping[str, TrainedDictionary],
    directory: Path,
    final: Mapping[str, float],
    features: int,
    samples: int,
) -> list[tuple[str, str]]:
    """Return the sections about features for report.html, (title, HTML) each. Write feature_taxa.csv to `directory` if there are detectors.

    run: run of the model that was analysed. module: module of this model whose output the dictionaries reconstruct. dictionaries: name ->
    dictionary. directory: the dictionary run. final: metric key -> newest validation value. features: number of cards, divided among the
    dictionaries; each dictionary has at least one. samples: most samples to read of the validation set, and of the training set."""
    charts, sections, rows = frontier(directory, list(dictionaries), final), [], []
    for name, trained in dictionaries.items():
        one = _of_dictionary(Reader(run, module, trained), name, max(features // len(dictionaries), 1), samples, len(dictionaries) > 1)
        charts += one.density
        sections += one.sections
        rows += [({"dictionary": name} if len(dictionaries) > 1 else {}) | detector.row() for detector in one.detectors]
    if rows:
        write_atomic(directory / FILE, to_csv(rows))
    few = " few" if charts.count("<figure") == 1 else ""
    return [("Density and frontier", f'{STYLE}<div class="charts{few}">{charts}</div>'), *sections]


class _Dictionary(NamedTuple):
    """Parts of report.html about one dictionary.

    density: histogram as HTML. sections: (title, HTML) of each section. detectors: the best detector of each class; [] if the samples have
    no classes."""

    density: str
    sections: list[tuple[str, str]]
    detectors: list[Detector]


def _of_dictionary(reader: Reader, name: str, features: int, samples: int, several: bool) -> _Dictionary:
    view, aside = reader.run.workload.sample_view(), f" of {name}" if several else ""
    table = feature_table(reader, reader.run.workload.validation_set, samples, keep_peaks=bool(view.classes))
    found: list[Detector] = []
    if view.classes and table.peaks is not None:
        training = feature_table(reader, reader.run.workload.reading_set(), samples, keep_peaks=True)
        assert training.peaks is not None
        found = detectors((training.peaks, training.labels), (table.peaks, table.labels), view.outputs)
    best: dict[int, Detector] = {}
    for one in found:
        if one.f1 >= GOOD:
            best.setdefault(one.feature, one)
    shown = list(dict.fromkeys([*list(best)[:MOST_DETECTORS], *strongest(table, features)]))
    first = f"feature-{name}-" if several else "feature-"
    density = density_chart(f"Density of the features{aside}", table.density, table.places)
    cards = feature_cards(reader, table, shown, EXAMPLES, best, first)
    sections = [(f"Features{aside}", f"<p>{_explanation(len(shown), table, reader.trained)}</p>" + cards)]
    if found:
        good = sum(one.f1 >= GOOD for one in found)
        about = f"{good} of {len(found)} taxa have a detector, a feature with a threshold, with F1 >= {GOOD:g} on validation samples. "
        about += "Feature and threshold were chosen on training samples. "
        sections.append((f"Features of taxa{aside}", f"<p>{about}All detectors are in {FILE}.</p>" + detector_table(found, shown, first)))
    return _Dictionary(density, sections, found)


def _explanation(count: int, table: FeatureTable, trained: TrainedDictionary) -> str:
    return (
        f"{count} of {trained.features} features. Examples: of {table.samples:,} validation samples, those with its largest activities. "
        "Marks show where it is active. "
        "Numbers: probability of an output with the feature minus that without it, in percentage points."
    )


def frontier(directory: Path, names: list[str], final: Mapping[str, float]) -> str:
    """Return charts of explained variance and of loss recovered over L0 (mean number of active features), as HTML.

    They show the dictionaries of this run and of the runs in `same_module`. names: names of the dictionaries of this run. final: metric key
    -> newest validation value of this run."""
    others = same_module(directory)
    charts = []
    for measure, title in MEASURES.items():
        points = _points(directory.name, names, final, measure, True)
        for run, (other_names, metrics) in others:
            points += _points(run, other_names, metrics, measure, False)
        charts.append(frontier_chart(title, points, "large dots: this run" if others else ""))
    return "".join(charts)


def _points(run: str, names: list[str], final: Mapping[str, float], measure: str, here: bool) -> list[Point]:
    found = []
    for name in names:
        first = f"{name}/" if len(names) > 1 else ""
        prefix = "val_ema" if f"val_ema/{first}l0" in final else "val"
        shown = [final.get(f"{prefix}/{first}{key}") for key in ("l0", measure)]
        l0, value = (math.nan if one is None else float(one) for one in shown)
        found.append(Point(f"{run} {name}" if len(names) > 1 else run, run, l0, value, here))
    return found


def same_module(directory: Path) -> list[tuple[str, tuple[list[str], dict[str, float]]]]:
    """Return other dictionary runs for comparison, sorted by name: (directory name, (names of the dictionaries, {metric key: final
    value})).

    These are the runs in the parent folder of `directory` that have a summary.json and were trained on the same activations: of the same
    module, weights and kind of channels."""
    own = _reads(directory)
    found = []
    for other in sorted(path.parent for path in directory.parent.glob("*/summary.json")):
        reads = _reads(other) if other.name != directory.name else None
        if own is not None and reads is not None and reads[0] == own[0]:
            final = (read_json(other / "summary.json") or {}).get("final") or {}
            found.append((other.name, (reads[1], final)))
    return found


def _reads(directory: Path) -> tuple[tuple[str, ...], list[str]] | None:
    """Return what a dictionary run is about: (source of the activations, names of the dictionaries).

    The source is the path of the run, the module name, the kind of channels and the hash of the weights that were read. Return None if
    `directory` is not a dictionary run."""
    from linnaeus.errors import ConfigError
    from linnaeus.workloads.dictionary.model.dictionary_set import members
    from linnaeus.workloads.run_weights import run_configuration

    try:
        config: Any = run_configuration(directory, "dictionary")
    except ConfigError:
        return None
    read, weights = config.dictionary, (read_json(directory / RECORD) or {}).get("weights_digest", "")
    source = (str(Path(read.run or "").resolve()), str(read.module), str(read.channels), str(weights))
    return source, list(members(config.model))
