"""Test the metric that selects dictionaries: a dense code cannot win, neither as a metric nor in a sweep."""

from __future__ import annotations

import pytest
import torch

from linnaeus.data.samples import SampleIndex
from linnaeus.sweep.trial_results import metric_of
from linnaeus.workloads.dictionary.activation_sets import PlantedActivations
from linnaeus.workloads.dictionary.dictionary_metrics import DictionaryMetrics
from linnaeus.workloads.dictionary.model.sparse_dictionary import Reconstruction
from linnaeus.workloads.dictionary.planted import PlantedDictionary
from linnaeus.workloads.dictionary.planted_config import PlantedSettings
from linnaeus.workloads.dictionary.splicing import Spliced
from tests import runs
from tests.workloads.dictionary.test_dictionary_runs import final

WIDTH, NUMBER = 16, 500
SETTINGS = {"width": WIDTH, "features": 40, "roots": 0, "branching": 2, "depth": 0, "frequency": 0.2, "rarest": 0.02, "exponent": 0.5}
SETTINGS |= {"correlation": 0.0, "correlation_rank": 1, "magnitude": 5.0, "last_magnitude": 4.0, "magnitude_spread": 0.5, "bias": 0.5}


class Decoder:
    """Stand-in for a dictionary of which the metrics read the decoder only."""

    def __init__(self, features: int) -> None:
        self.decoder = torch.eye(features, WIDTH)


def measured(activities: torch.Tensor, reconstruction: torch.Tensor, x: torch.Tensor) -> dict[str, float]:
    """Return the metrics of a code of the activations `x`."""
    size = activities.shape[1]
    metrics = DictionaryMetrics(["dictionary"], [size], WIDTH, torch.device("cpu"), None, [Decoder(size)])
    one = Reconstruction(reconstruction, activities, {"error": torch.zeros(len(x))}, (activities > 0).sum(1))
    outputs = Spliced(x, torch.ones(len(x)), torch.arange(len(x)), [one], None, None, [])
    metrics.count(outputs, {})
    return metrics.compute(metrics.sums(outputs, {}), metrics.counts)


@pytest.fixture(scope="module")
def planted() -> tuple[torch.Tensor, torch.Tensor, PlantedDictionary]:
    source = PlantedDictionary(PlantedSettings(**SETTINGS), seed=0)
    batch = PlantedActivations(source, NUMBER, 0, False, True).__getitems__([SampleIndex(0, n, n, 0) for n in range(NUMBER)])
    return batch["activation"], batch["codes"], source


def test_a_dense_code_gains_nothing_and_the_planted_code_wins(planted):
    x, codes, source = planted
    sparse = measured(codes, codes @ source.features + source.bias, x)
    assert sparse["explained_variance"] > 0.999 and sparse["sparse_gain"] == pytest.approx(1 - sparse["l0"] / WIDTH, abs=1e-3)
    shift = -x.min() + 1
    dense = {
        "a basis, all of it active": measured(x + shift, x, x),
        "positive and negative parts": measured(torch.cat([x.clamp(min=0), (-x).clamp(min=0)], 1), x, x),
        "all of the features": measured(torch.ones(NUMBER, 40), x, x),
    }
    for name, found in dense.items():
        assert found["explained_variance"] == 1 >= sparse["explained_variance"], name
        assert found["sparse_gain"] <= 1e-6 < 0.5 < sparse["sparse_gain"], name


def test_no_fixed_set_of_directions_wins(planted):
    """Of all k fixed directions the first principal components explain most: a linear code does not gain much either."""
    x, codes, source = planted
    centred = x - x.mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh
    projected = {k: centred @ directions[:k].T @ directions[:k] + x.mean(0) for k in range(1, WIDTH + 1)}
    gains = [measured(torch.ones(NUMBER, k), found, x)["sparse_gain"] for k, found in projected.items()]
    assert max(gains) < 0.3 < measured(codes, codes @ source.features + source.bias, x)["sparse_gain"] - 0.2 and gains[-1] <= 1e-6


@pytest.mark.slow
def test_a_sweep_over_k_ranks_the_dense_dictionary_last(tmp_path):
    """The explained variance, and the loss, would rank it first."""
    more = ["trainer.length=60steps", "optimizer.lr=0.02", "data.validation_samples=100"]
    configs = [runs.configuration("planted", tmp_path / k, f"model.k={k}", *more) for k in ("1.5", "24")]
    metric = metric_of(configs[0].sweep, configs[0])
    assert (metric.name, metric.mode) == ("val/sparse_gain", "max")
    found = [runs.resumed(config) for config in configs]
    sparse, dense = (final(run) for run in found)
    assert dense["l0"] > 8 >= sparse["l0"] and dense["explained_variance"] > sparse["explained_variance"] and dense["loss"] < sparse["loss"]
    best = [runs.summary(run)["best"]["val/sparse_gain"]["value"] for run in found]
    assert sorted(best, key=metric.rank) == best and best[0] > 0 >= dense["sparse_gain"]
