"""Test what is read out of a dictionary: the features of classes and the effects by hand, the charts, and the views of samples."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from linnaeus.workloads.dictionary.activation_source import spread
from linnaeus.workloads.dictionary.reading.activity import Activity, FeatureTable, feature_table
from linnaeus.workloads.dictionary.reading.dictionary_charts import Point, density_chart, frontier_chart
from linnaeus.workloads.dictionary.reading.dictionary_sections import _points
from linnaeus.workloads.dictionary.reading.effects import effects
from linnaeus.workloads.dictionary.reading.feature_classes import detectors
from linnaeus.workloads.dictionary.reading.feature_page import strongest
from linnaeus.workloads.language.text_view import TextView
from linnaeus.workloads.language.tokenizers import CharacterTokenizer
from linnaeus.workloads.loadout.game.token_code import PAD, SlotsCode
from linnaeus.workloads.loadout.report.build_view import BuildView
from linnaeus.workloads.taxonomy.report.photograph_view import PhotographView, grid_of


def test_feature_and_threshold_are_chosen_on_training_samples_only():
    """Feature 0 stands for class a above 2 on training samples; feature 1 would be better on the validation samples."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    training = np.array([[3, 0], [4, 0], [5, 1], [1, 1], [2, 1], [0, 1]], np.float32)
    truth = np.array([0, 0, 0, 1, 1, -1])
    held = np.array([[9, 7], [9, 7], [1, 7], [9, 0], [1, 0], [9, 9]], np.float32)
    names = {"kind": ["a", "b", "never"]}
    found = {one.name: one for one in detectors((training[:, None], {"kind": labels}), (held[:, None], {"kind": truth}), names)}
    assert set(found) == {"a", "b"}, "a class without training samples has no detector"
    a = found["a"]
    assert a.place is None and (a.feature, 2 <= a.threshold < 3, a.training_rows, a.validation_rows) == (0, True, 3, 3)
    assert (a.precision, a.recall, a.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3)), "the sample of unknown class counts"
    b = found["b"]  # the training samples 2 to 5 have feature 1
    assert (b.feature, b.threshold, b.recall, b.precision) == (1, 0.0, 0.0, 0.0)


def test_a_class_that_is_not_found_or_not_validated_comes_last():
    peaks, labels = np.eye(3, dtype=np.float32), np.arange(3)
    held = np.array([[1, 0, 0], [0, 0, 0]], np.float32)
    found = detectors((peaks[:, None], {"kind": labels}), (held[:, None], {"kind": np.array([0, 1])}), {"kind": ["a", "b", "c"]})
    assert [one.name for one in found] == ["a", "b", "c"] and found[0].f1 == 1.0 and found[1].f1 == 0.0
    assert math.isnan(found[1].precision) and math.isnan(found[2].f1)


def test_samples_of_unknown_classes_have_no_detector():
    peaks, labels = np.ones((3, 2, 4), np.float32), np.array([0, 1, 1])
    unknown = np.full(3, -1)
    assert detectors((peaks, {"kind": unknown}), (peaks, {"kind": labels}), {"kind": ["a", "b"]}) == []
    found = detectors((peaks, {"kind": labels}), (peaks, {"kind": unknown}), {"kind": ["a", "b"]})
    assert len(found) == 2 and all(one.validation_rows == 0 and math.isnan(one.f1) for one in found)


def test_a_detector_reads_one_of_few_places():
    """Feature 1 stands for the class at the second place only; its largest activity does not."""
    peaks = np.zeros((4, 2, 3), np.float32)
    peaks[:, 0, 1], peaks[:2, 1, 1] = 1.0, 1.0
    labels = {"kind": np.array([0, 0, 1, 1])}
    found = detectors((peaks, labels), (peaks, labels), {"kind": ["a", "b"]})
    assert (found[0].name, found[0].feature, found[0].place, found[0].f1) == ("a", 1, 2, 1.0)
    pooled = detectors((peaks.max(1, keepdims=True), labels), (peaks.max(1, keepdims=True), labels), {"kind": ["a", "b"]})
    assert max(one.f1 for one in pooled) < 0.7


def test_what_cannot_be_decoded_has_no_class():
    """A detector would count it as a sample of its class that it does not find."""
    host = {"weight": torch.tensor([1.0, 0.0]), "sample": torch.tensor([0, 1])}
    view = SimpleNamespace(labels=lambda batch: {"kind": torch.tensor([3, 4])}, classes={"kind"})
    reader = SimpleNamespace(
        run=SimpleNamespace(workload=SimpleNamespace(sample_view=lambda: view)),
        trained=SimpleNamespace(features=9),
        device=torch.device("cpu"),
        read=lambda batch: Activity(torch.zeros(2, 1, 9), (), 1),
    )

    class Two:
        def __len__(self) -> int:
            return 2

        def __getitems__(self, indices: Any) -> Any:
            return host

    table = feature_table(reader, Two(), 2, keep_peaks=True)  # type: ignore[arg-type]
    assert table.labels["kind"].tolist() == [3, -1]


class Softmax:
    """A `Reader` of a model with one linear layer: log-probabilities of rows of activations."""

    names = ("up", "down", "same")

    def __init__(self) -> None:
        view = SimpleNamespace(outputs={"class": self.names})
        self.run = SimpleNamespace(workload=SimpleNamespace(sample_view=lambda: view))
        self.trained = SimpleNamespace(editing=lambda scales: scales)
        self.positions: list[Any] = []

    def scores(self, host: Any, position: Any, edit: Any = None) -> dict[str, torch.Tensor]:
        self.positions.append(position)
        p = torch.tensor([[0.2, 0.5, 0.3]]) if edit == {4: 0.0} else torch.tensor([[0.6, 0.1, 0.3]])
        return {"class": p.log()}


def test_an_effect_is_the_probability_with_the_feature_less_that_without_it():
    reader, activities = Softmax(), torch.zeros(2, 5, 6)
    activities[0, 3, 4], activities[1, 1, 4] = 2.0, 1.0
    found = effects(reader, {}, Activity(activities, (5,), 10), 4)  # type: ignore[arg-type]
    assert [(one.output, round(one.change, 6)) for one in found] == [("up", 0.4), ("down", -0.4)]
    assert [position.tolist() for position in reader.positions] == [[3, 1], [3, 1]], "where the feature is strongest"
    effects(reader, {}, Activity(activities[:, :1], (), 2), 4)  # type: ignore[arg-type]
    assert reader.positions[-1] is None


def test_the_strongest_features_have_the_most_energy_and_are_not_dense():
    density, energy = np.array([0.5, 0.05, 0.01, 0.0]), np.array([9.0, 1.0, 2.0, 0.0])
    strength = np.array([[3.0], [1.0], [1.0], [-1.0]])
    table = FeatureTable(density, energy, strength, np.zeros((4, 1), np.int64), 10, 10, None, {})
    assert strongest(table, 4) == [2, 1, 0] and strongest(table, 2) == [2, 1]
    assert strongest(table, 3) == [2, 1, 0], "a feature that is never active takes no place"


def test_a_value_of_zero_has_a_dot_and_a_missing_one_does_not():
    found = {"val/k1/l0": 8.0, "val/k1/loss_recovered": 0.0, "val/k2/l0": 9.0, "val/k2/loss_recovered": None}
    points = _points("run", ["k1", "k2"], found, "loss_recovered", True)
    assert points[0].value == 0 and math.isnan(points[1].value)


def test_samples_are_spread_over_the_data():
    assert spread(5, 10).tolist() == [0, 1, 2, 3, 4] and spread(101, 3).tolist() == [0, 50, 100]


def test_charts_have_a_bar_or_a_dot_for_each_part():
    page = density_chart("Density", np.array([0.0, 0.001, 0.002, 0.5]), 1000)
    assert "1 of 4 never active on 1,000 places" in page and page.count("<rect") == 3
    wide = density_chart("Density", np.array([1e-6, 0.5]), 10**6)
    assert re.findall(">([0-9.e-]+ %)<", wide) == ["0.01 %", "1 %", "100 %"], "labels do not overlap"
    assert density_chart("Density", np.array([0.0, 1.0, 1.0]), 1000).count("<rect") == 1, "features that are active at every place"
    points = [Point("a", "a", 8, 0.9, True), Point("b", "b", 16, 0.95, False), Point("c", "b", 32, math.nan, False)]
    page = frontier_chart("Explained variance", points, "")
    assert page.count("<circle") == 2 and "b: L0 16.0, 0.9500" in page
    assert frontier_chart("Explained variance", points[:1], "") == ""


def test_a_text_is_marked_where_the_feature_is_active():
    view = TextView(CharacterTokenizer("ab<", False), 3, str)
    batch = {"input": torch.tensor([[0, 2, 1, 0]]), "target": torch.tensor([[2, 1, 0, 1]])}
    html = view.html(batch, 0, np.array([0.0, 1.0, 0.25, 0.0]))
    assert 'a<mark style="--heat:1.00">&lt;</mark><mark style="--heat:0.25">b</mark>a' in html
    zeros = torch.zeros(1, 900, dtype=torch.int64)
    long = view.html({"input": zeros, "target": zeros}, 0, np.eye(900)[500])
    assert long.count("…") == 2 and long.count("a") < 400


def test_a_text_ends_where_its_padding_begins():
    """Padding, token 0, was shown as text: a last window of few tokens had a line break for each."""
    view = TextView(CharacterTokenizer("\nab", False), 3, str)
    batch = {"input": torch.tensor([[1, 2, 0, 0, 0, 0]]), "target": torch.tensor([[2, 1, -1, -1, -1, -1]])}
    assert view.html(batch, 0, np.eye(6)[1]) == '<p class="text">a<mark style="--heat:1.00">b</mark></p>'
    assert view.html(batch, 0, None) == '<p class="text">ab</p>'


def test_a_heat_map_is_a_square_of_image_tokens():
    special = (4, 7, 1)
    assert grid_of(np.arange(4.0).reshape(2, 2), special).tolist() == [[0, 1], [2, 3]]
    assert grid_of(np.arange(5.0), special).tolist() == [[1, 2], [3, 4]], "the first token is a special one"
    assert grid_of(np.arange(16.0), special).shape == (4, 4) and grid_of(np.arange(23.0), special)[0, 0] == 7
    assert grid_of(np.arange(4.0), special) is None, "four class tokens are not an image"
    assert grid_of(np.arange(6.0), special) is None


def test_a_photograph_has_its_taxon_and_its_heat_map():
    tree = SimpleNamespace(ranks=("genus", "species"), names=(("Rosa",), ("Rosa <x>", "Rosa y")))
    view = PhotographView(tree, "photo-{}".format, 3)  # type: ignore[arg-type]
    batch = {"image": torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "label": torch.tensor([[0, 0]]), "sample": torch.tensor([7])}
    html = view.html(batch, 0, np.ones((2, 2)))
    assert html.count("data:image/png;base64,") == 2 and "Rosa &lt;x&gt;: photo-7" in html and "<x>" not in html
    assert "heat" not in view.html(batch, 0, None)
    labels = view.labels({"label": torch.tensor([[0, 2], [-1, 1]])})  # 2: the null class
    assert {rank: label.tolist() for rank, label in labels.items()} == {"genus": [0, -1], "species": [-1, 1]}


def test_a_build_has_its_tokens_or_its_slots():
    code = SlotsCode()
    view = BuildView(code, SimpleNamespace(name=lambda number: f"weapon {number}"), str)  # type: ignore[arg-type]
    batch = {"tokens": torch.tensor([[9, PAD, 4]]), "weapon": torch.tensor([3])}
    html = view.html(batch, 0, np.array([0.0, 0.5, 1.0]))
    assert "weapon 3" in html and html.count("<mark") == 2 and html.index(code.names[4]) < html.index(code.names[9])
    observed = torch.zeros(1, 40, dtype=torch.int8)
    observed[0, 20] = 1
    slots = view.html(batch | {"observed": observed}, 0, None)
    assert slots.count("<tr>") == 3 and slots.count('class="free"') == 11
