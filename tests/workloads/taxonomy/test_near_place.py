"""Test the places relative to the training photographs that the metadata encoder reads."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from linnaeus.checkpoint.format import EMA, MODEL, step_name
from linnaeus.checkpoint.initial_weights import InitialWeights, read_safetensors
from linnaeus.checkpoint.weight_matching import load_all
from linnaeus.workloads.taxonomy import workload
from linnaeus.workloads.taxonomy.models.classifier import MetadataEncoder, init_affine, with_near_place
from linnaeus.workloads.taxonomy.models.near_place import COLUMNS, SMALLEST, SPREADS, NearPlace, fit_places
from linnaeus.workloads.taxonomy.observations import TRAIN, Metadata
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload
from tests import runs

KM = 1 / 6371  # on the unit sphere


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
    near = NearPlace()
    near.fit(points)
    return near


@pytest.mark.parametrize("side", [1.0, 100.0, 5000.0])
def test_a_region_of_any_size_fills_the_range(side):
    points = points_of(region(side))
    found = fitted(points)(torch.from_numpy(points))
    lengths = found.norm(dim=1)
    assert lengths.max() < 0.6 and 0.2 < lengths.median() < 0.3
    assert found.abs().max(dim=0).values.max() > 0.3


def test_distant_points_stay_below_length_one():
    near = fitted(points_of(region(1.0)))
    found = near(torch.from_numpy(points_of(metadata(np.array([-33.0, 52.0]), np.array([151.0, 6.0])))))
    assert torch.isfinite(found).all() and (found.norm(dim=1) > 0.99).all() and (found.norm(dim=1) <= 1 + 1e-6).all()


def test_centre_and_spread_ignore_a_tenth_of_wrong_coordinates():
    points = points_of(region(10.0))
    wrong = np.concatenate([points, np.tile(points_of(metadata(np.zeros(1), np.zeros(1))), (40, 1))])
    clean, near = fitted(points), fitted(wrong)
    assert (near.centre - clean.centre).norm() < 2 * KM and near.spread < 1.2 * clean.spread


@pytest.mark.parametrize(("stations", "spread"), [([0.0] * 6 + [5.0] * 4, 5.0 * KM), ([0.0] * 99 + [5.0], 5.0 * KM), ([0.0] * 9, SMALLEST)])
def test_most_photographs_of_one_station(stations, spread):
    points = points_of(metadata(52 + np.array(stations) / 111.2, np.full(len(stations), 5.0)))
    assert float(fitted(points).spread) == pytest.approx(SPREADS * spread, rel=0.01)


def test_without_places_nothing_changes():
    near = fitted(np.zeros((0, 3), np.float32))
    assert near.centre.tolist() == [0, 0, 0] and near.spread == 1


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
    for name in ("sphere", "near"):
        if name == "near":
            fit_places(encoder, own)
        else:
            encoder.near.spread.fill_(torch.inf)
        apart[name] = tokens(encoder, own).std(dim=0).mean().item()
    assert apart["near"] > 0.1 > 0.01 > apart["sphere"]  # without it all places of the region are one


def test_an_absent_place_has_no_influence():
    encoder = make_encoder()
    fit_places(encoder, region(20.0))
    meta = torch.randn(2, 13)
    meta[1, :8] = meta[0, :8]
    present = torch.tensor([[True, False]] * 2)
    found = encoder(meta.index_fill(0, torch.tensor([1]), torch.nan), present.logical_and(torch.tensor([[True], [False]])))
    assert torch.equal(found[0, 1], found[1, 1]) and torch.isfinite(found).all()


def earlier(encoder):
    """Return the weights that a program without `NearPlace` would have, and its network."""
    state = {name: value.clone() for name, value in encoder.state_dict().items() if not name.startswith("near.")}
    state["encoders.1.0.weight"] = state["encoders.1.0.weight"][:, :-COLUMNS]
    old = make_encoder()
    old.near = old.spatial = None
    old.encoders[1][0] = nn.Linear(5, 32)
    old.load_state_dict(state)
    return state, old


def test_weights_of_earlier_programs_give_the_same_result():
    own = region(500.0)
    state, old = earlier(make_encoder())
    model = nn.ModuleDict({"metadata": make_encoder()})
    fit_places(model, region(20.0))
    weights = InitialWeights("old", "", {f"metadata.{name}": value for name, value in state.items()})
    load_all(with_near_place(weights, model), model)
    assert torch.allclose(tokens(model["metadata"], own), tokens(old, own), atol=1e-6)
    own_weights = InitialWeights("new", "", model.state_dict())
    assert with_near_place(own_weights, model).state.keys() == own_weights.state.keys()
    assert "metadata.near.centre" not in weights.state, "the weights of the file are not changed"


def test_other_networks_get_no_weights():
    weights = InitialWeights("file", "", {"layer.weight": torch.zeros(2)})
    assert with_near_place(weights, nn.ModuleDict({"metadata": make_encoder(("ELEVATION",))})).state.keys() == {"layer.weight"}


def test_a_run_reads_the_places_of_its_training_photographs(tmp_path):
    taxonomy = TaxonomyWorkload(runs.configuration("biota", tmp_path))
    source = taxonomy.data_source
    moved = np.where(source.split == TRAIN, source.metadata.latitude, np.nan)  # validation rows have no place
    taxonomy.data_source = replace(source, metadata=replace(source.metadata, latitude=moved))
    found = taxonomy.build_model().trunk.metadata.near
    expected = fitted(points_of(source.metadata.take(np.flatnonzero(source.split == TRAIN))))
    assert torch.equal(found.centre, expected.centre) and torch.equal(found.spread, expected.spread) and found.spread > 0.1


def test_fine_tuning_keeps_the_places_of_the_weights_unless_the_encoder_is_skipped(tmp_path, monkeypatch):
    settings = ["trainer.length=1steps", "trainer.ema_decay=0.5", "schedule.validate=[]", "schedule.validate_at_end=false"]
    run = runs.run("biota", tmp_path / "first", *settings)
    first = saved_places(run)
    built = workload.build_data_source

    def moved(config):
        source, ceilings = built(config)
        return replace(source, metadata=replace(source.metadata, latitude=source.metadata.latitude / 3 + 40)), ceilings

    monkeypatch.setattr(workload, "build_data_source", moved)
    own = TaxonomyWorkload(runs.configuration("biota", tmp_path)).build_model().trunk.metadata.near.state_dict()
    settings.append(f"run.init_from={run}")
    loaded = saved_places(runs.run("biota", tmp_path / "loaded", *settings))
    skipped = saved_places(runs.run("biota", tmp_path / "skipped", *settings, "run.init_skip=[trunk.metadata]"))
    for name in ("centre", "spread"):
        for of_first, of_loaded, of_skipped in zip(first, loaded, skipped, strict=True):  # raw weights, averages
            assert torch.equal(of_loaded[name], of_first[name]) and torch.equal(of_skipped[name], own[name])
            assert not torch.allclose(own[name], of_first[name], rtol=0.05)


def saved_places(run):
    """Return centre and spread in the last checkpoint of `run`: those of the raw weights, and their averages."""
    checkpoint = run / "checkpoints" / step_name(1)
    found = (read_safetensors(checkpoint / name) for name in (MODEL, EMA))
    return [{name: state[f"trunk.metadata.near.{name}"] for name in ("centre", "spread")} for state in found]
