"""Test the quantiles of places among the training photographs that the metadata encoder reads."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from linnaeus.checkpoint.format import EMA, MODEL, step_name
from linnaeus.checkpoint.initial_weights import InitialWeights, read_safetensors
from linnaeus.checkpoint.weight_matching import load_all
from linnaeus.workloads.taxonomy import workload
from linnaeus.workloads.taxonomy.models.classifier import MetadataEncoder, init_affine, with_place_inputs
from linnaeus.workloads.taxonomy.models.place_quantiles import COLUMNS, INTERVALS, PlaceQuantiles, fit_places
from linnaeus.workloads.taxonomy.observations import TRAIN, Metadata
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload
from tests import runs


def metadata(latitude, longitude):
    unknown = np.full(len(latitude), np.nan)
    return Metadata(**{**dict.fromkeys(("uncertainty", "day", "hour", "elevation"), unknown), "latitude": latitude, "longitude": longitude})


def region(side, count=400):
    """Return observations in a square of `side` km."""
    draw = np.random.default_rng(3)
    north, east = draw.uniform(-side / 2, side / 2, (2, count))
    return metadata(52 + north / 111.2, 5 + east / 111.2 / np.cos(np.deg2rad(52)))


def points_of(found):
    features, present = encode(found, ["SPATIAL"])
    return features[present[:, 0], :COLUMNS]


def fitted(points):
    quantiles = PlaceQuantiles()
    quantiles.fit(points)
    return quantiles


def quantiles_of(module, found):
    return module(torch.from_numpy(points_of(found)))


@pytest.mark.parametrize("side", [1.0, 100.0, 5000.0])
def test_a_region_of_any_size_fills_the_range(side):
    own = region(side)
    found = quantiles_of(fitted(points_of(own)), own)
    ranks = (torch.from_numpy(points_of(own)).argsort(0).argsort(0) + 0.5) / len(found) * 2 - 1
    assert (found - ranks).abs().max() < 2 / INTERVALS


def test_the_values_are_those_of_the_formula():
    own = region(100.0)
    module, points = fitted(points_of(own)), points_of(own)[:5]
    expected = [
        [2 * np.interp(x, knots, np.linspace(0, 1, INTERVALS + 1)) - 1 for x, knots in zip(point, module.knots.numpy(), strict=True)]
        for point in points
    ]
    found = module(torch.from_numpy(points)).numpy()
    assert found.shape == (5, COLUMNS) and np.allclose(found, expected, atol=1e-3)  # differences of 1e-7 in intervals of 4e-5


def test_parks_on_different_continents_each_get_a_share():
    parks = [region(1.0).take(np.arange(200)) for _ in range(3)]
    moved = [replace(own, latitude=own.latitude - shift, longitude=own.longitude + shift) for own, shift in zip(parks, (0, 60, 80))]
    every = metadata(*(np.concatenate([getattr(own, name) for own in moved]) for name in ("latitude", "longitude")))
    module = fitted(points_of(every))
    for own in moved:
        found = quantiles_of(module, own)
        assert (found.amax(0) - found.amin(0) > 0.6).all(), "a third of the range of 2"


def test_distant_points_are_not_large():
    module = fitted(points_of(region(1.0)))
    found = module(torch.from_numpy(points_of(metadata(np.array([-33.0, 52.0]), np.array([151.0, 6.0])))))
    assert torch.isfinite(found).all() and (found.abs() <= 1).all()
    assert (found.abs() > 0.99).any(1).all()


def test_a_tenth_of_wrong_coordinates_changes_little():
    own = region(10.0)
    points = points_of(own)
    wrong = np.concatenate([points, np.tile(points_of(metadata(np.zeros(1), np.zeros(1))), (40, 1))])
    assert (quantiles_of(fitted(points), own) - quantiles_of(fitted(wrong), own)).abs().max() < 0.3


@pytest.mark.parametrize("stations", [[0.0] * 6 + [5.0] * 4, [0.0] * 99 + [5.0], [0.0] * 9])
def test_most_photographs_of_one_station(stations):
    own = metadata(52 + np.array(stations) / 111.2, np.full(len(stations), 5.0))
    found = quantiles_of(fitted(points_of(own)), own)
    assert torch.isfinite(found).all() and (found[0] == found[1]).all()
    assert (found[-1] != found[0]).any() == (stations[-1] != stations[0])


def test_without_places_nothing_changes():
    points = torch.tensor([[0.6, -0.8, 0.0]])
    assert torch.allclose(fitted(np.zeros((0, 3), np.float32))(points), points, atol=1e-6)


def make_encoder(components=("ELEVATION", "SPATIAL")):
    torch.manual_seed(0)
    encoder = MetadataEncoder(components, 32, 16)
    encoder.apply(init_affine)
    encoder.init_weights()
    return encoder


def tokens(encoder, found):
    meta, present = encode(found, ["ELEVATION", "SPATIAL"])
    return encoder(torch.from_numpy(meta), torch.from_numpy(present))[:, 1]


def test_the_encoder_tells_places_of_a_small_region_apart():
    own, encoder = region(20.0), make_encoder()
    apart = {}
    for name in ("sphere", "quantiles"):
        if name == "quantiles":
            fit_places(encoder, own)
        apart[name] = tokens(encoder, own).std(dim=0).mean().item()
    assert apart["quantiles"] > 0.1 > 0.01 > apart["sphere"]  # without it all places of the region are one


def test_an_absent_place_has_no_influence():
    encoder = make_encoder()
    fit_places(encoder, region(20.0))
    meta = torch.randn(2, 13)
    meta[1, :8] = meta[0, :8]
    present = torch.tensor([[True, False]] * 2)
    found = encoder(meta.index_fill(0, torch.tensor([1]), torch.nan), present.logical_and(torch.tensor([[True], [False]])))
    assert torch.equal(found[0, 1], found[1, 1]) and torch.isfinite(found).all()


def earlier(encoder):
    """Return the weights that a program without `PlaceQuantiles` would have, and its network."""
    state = {name: value.clone() for name, value in encoder.state_dict().items() if not name.startswith("quantiles.")}
    state["encoders.1.0.weight"] = state["encoders.1.0.weight"][:, :-COLUMNS]
    old = make_encoder()
    old.quantiles = old.spatial = None
    old.encoders[1][0] = nn.Linear(5, 32)
    old.load_state_dict(state)
    return state, old


def test_weights_of_earlier_programs_give_the_same_result():
    own = region(500.0)
    state, old = earlier(make_encoder())
    model = nn.ModuleDict({"metadata": make_encoder()})
    fit_places(model, region(20.0))
    weights = InitialWeights("old", "", {f"metadata.{name}": value for name, value in state.items()})
    load_all(with_place_inputs(weights, model), model)
    assert torch.allclose(tokens(model["metadata"], own), tokens(old, own), atol=1e-6)
    own_weights = InitialWeights("new", "", model.state_dict())
    assert with_place_inputs(own_weights, model).state.keys() == own_weights.state.keys()
    assert "metadata.quantiles.knots" not in weights.state, "the weights of the file are not changed"


def test_other_networks_get_no_weights():
    weights = InitialWeights("file", "", {"layer.weight": torch.zeros(2)})
    assert with_place_inputs(weights, nn.ModuleDict({"metadata": make_encoder(("ELEVATION",))})).state.keys() == {"layer.weight"}


def test_a_run_reads_the_places_of_its_training_photographs(tmp_path):
    taxonomy = TaxonomyWorkload(runs.configuration("biota", tmp_path))
    source = taxonomy.data_source
    moved = np.where(source.split == TRAIN, source.metadata.latitude, np.nan)  # validation rows have no place
    taxonomy.data_source = replace(source, metadata=replace(source.metadata, latitude=moved))
    found = taxonomy.build_model().trunk.metadata.quantiles
    expected = fitted(points_of(source.metadata.take(np.flatnonzero(source.split == TRAIN))))
    assert torch.equal(found.knots, expected.knots) and found.knots[0, 0] > -1


def test_fine_tuning_keeps_the_places_of_the_weights_unless_the_encoder_is_skipped(tmp_path, monkeypatch):
    settings = ["trainer.length=1steps", "trainer.ema_decay=0.5", "schedule.validate=[]", "schedule.validate_at_end=false"]
    run = runs.run("biota", tmp_path / "first", *settings)
    first = saved_places(run)
    built = workload.build_data_source

    def moved(config):
        source, ceilings = built(config)
        return replace(source, metadata=replace(source.metadata, latitude=source.metadata.latitude / 3 + 40)), ceilings

    monkeypatch.setattr(workload, "build_data_source", moved)
    own = TaxonomyWorkload(runs.configuration("biota", tmp_path)).build_model().trunk.metadata.quantiles.knots
    settings.append(f"run.init_from={run}")
    loaded = saved_places(runs.run("biota", tmp_path / "loaded", *settings))
    skipped = saved_places(runs.run("biota", tmp_path / "skipped", *settings, "run.init_skip=[trunk.metadata]"))
    for of_first, of_loaded, of_skipped in zip(first, loaded, skipped, strict=True):  # raw weights, averages
        assert torch.equal(of_loaded, of_first) and torch.equal(of_skipped, own) and not torch.allclose(own, of_first, rtol=0.05)


def saved_places(run):
    """Return the knots in the last checkpoint of `run`: those of the raw weights, and their average."""
    checkpoint = run / "checkpoints" / step_name(1)
    return [read_safetensors(checkpoint / name)["trunk.metadata.quantiles.knots"] for name in (MODEL, EMA)]
