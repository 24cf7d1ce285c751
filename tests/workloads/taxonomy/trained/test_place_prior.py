"""The prior over place and season: its network, its floor, `linnaeus calibrate --prior`, and predictions with it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import linnaeus
import linnaeus.__main__
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.heads import LinearScores
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.calibrate import calibration_fit, fit, prior_fit
from linnaeus.workloads.taxonomy.trained.calibrate.prior_fit import floor_likelihoods, train_prior
from linnaeus.workloads.taxonomy.trained.probabilities.place_prior import PlacePrior
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests import runs

TREE = TaxonomyTree.from_lineages(("genus", "species"), np.array([["A", "a1"], ["A", "a2"], ["B", "b1"]]))[0]
NAMES = ("latitude", "longitude", "uncertainty", "day", "hour", "elevation")


@pytest.fixture(autouse=True)
def threads_of_the_tests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)


def metadata(count: int, **known: np.ndarray) -> Metadata:
    return Metadata(**{name: known.get(name, np.full(count, np.nan)).astype(np.float32) for name in NAMES})


def north_and_spring(count: int = 3000) -> tuple[np.ndarray, Metadata]:
    """Return labels and metadata: a1 in the north, a2 in the south in spring and b1 in the south in autumn, 20 km around one town."""
    rng = np.random.default_rng(0)
    latitude, day = rng.uniform(51.9, 52.1, count), rng.uniform(0, 1, count)
    species = np.where(latitude > 52, 0, np.where(day < 0.5, 1, 2))
    labels = np.stack([(species == 2).astype(np.int64), species], 1)
    labels[::7, 1] = -1  # known to genus
    return labels, metadata(count, latitude=latitude, longitude=np.full(count, 4.3), day=day)


@pytest.fixture(scope="module")
def prior() -> PlacePrior:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior_fit, "MOST_UPDATES", 300)  # enough here, with this rate
        patch.setattr(prior_fit, "LR", 5e-3)
        return train_prior(TREE, *north_and_spring(), None, ("SPATIAL", "TEMPORAL"))


def log_weights(prior: PlacePrior, given: Metadata) -> np.ndarray:
    return prior.log_weights(*map(torch.from_numpy, encode(given, prior.components))).numpy()


def test_taxa_are_likely_where_and_when_they_were_photographed(prior):
    prior.floor = 0.01
    nan = np.nan
    places = metadata(5, latitude=np.array([52.05, 51.95, 51.95, 51.95, nan]), longitude=np.array([4.3, 4.3, 4.3, 4.3, nan]))
    places.day[:] = [0.25, 0.25, 0.75, nan, nan]
    found = np.exp(log_weights(prior, places))
    share = np.exp(prior.marginal.numpy())
    assert share == pytest.approx([0.75, 0.25, 0.5, 0.25, 0.25], abs=0.03), "p(taxon) at its rank, labels missing at random"
    assert found[0] == pytest.approx([0.99 / 0.75, 0.01, 0.99 / 0.5, 0.01, 0.01], rel=0.15, abs=0.02)  # in the north a1
    assert found[1] == pytest.approx([0.99 / 0.75, 0.01, 0.01, 0.99 / 0.25, 0.01], rel=0.15, abs=0.06)  # in the south in spring a2
    assert found[2] == pytest.approx([0.01, 0.99 / 0.25, 0.01, 0.01, 0.99 / 0.25], rel=0.15, abs=0.06)  # in autumn b1
    assert found[3, 2] < 0.05 and found[3, 3:] == pytest.approx([2, 2], rel=0.25), "the season is unknown"
    assert (found[4] == 1).all() and found.min() >= 0.01 * (1 - 1e-5)
    prior.floor = 1.0
    assert (log_weights(prior, places) == 0).all()


def test_training_again_gives_the_same_bits(monkeypatch):
    monkeypatch.setattr(prior_fit, "MOST_UPDATES", 20)
    monkeypatch.setattr(prior_fit, "CHECK_EVERY", 10)
    train = lambda: train_prior(TREE, *north_and_spring(600), np.arange(600) // 3, ("SPATIAL",)).state_dict()
    first = train()
    torch.rand(3)
    second = train()
    assert runs.unequal(first, second) == []
    monkeypatch.setattr(prior_fit, "MOST_UPDATES", 10)
    assert runs.unequal(first, train()), "negative control: the updates change the weights"


def test_rare_components_are_left_out_and_none_is_an_error(monkeypatch):
    monkeypatch.setattr(prior_fit, "MOST_UPDATES", 10)
    labels, given = north_and_spring(600)
    given.day[150:] = np.nan
    assert train_prior(TREE, labels, given, None, ("SPATIAL", "TEMPORAL")).components == ("SPATIAL",)
    with pytest.raises(ConfigError, match="--prior needs 200 training photographs with a place or a date; there are: TEMPORAL 150"):
        train_prior(TREE, labels, given, None, ("TEMPORAL",))


def test_the_floor_is_the_one_under_which_labels_are_likely(prior):
    labels, given = north_and_spring(500)
    meta, present = map(torch.from_numpy, encode(given, prior.components))
    rng = np.random.default_rng(1)
    logits = [torch.from_numpy(rng.normal(size=(500, size))) for size in TREE.sizes]
    chosen = {}
    for name, label in (("true", labels), ("shuffled", rng.permutation(labels))):
        batch = (LinearScores(TREE, logits), {"meta": meta, "present": present}, torch.from_numpy(label))
        found = floor_likelihoods(prior, [batch])
        chosen[name] = max(found, key=lambda floor: found[floor])
    assert chosen == {"true": 0.02, "shuffled": 1.0}
    # at floor 1 it is the log-likelihood of the finest label without a prior
    finest = (labels >= 0).cumsum(1).argmax(1)
    own = [float(logits[r][n].log_softmax(0)[labels[n, r]]) for n, r in enumerate(finest.tolist())]
    batch = (LinearScores(TREE, logits), {"meta": meta, "present": present}, torch.from_numpy(labels))
    assert floor_likelihoods(prior, [batch])[1.0] == pytest.approx(np.mean(own))


# -- from the command line ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run of photographs alone, whose data have places and dates."""
    folder = tmp_path_factory.mktemp("alone")
    settings = ["data=manifest", "data.image_size=16", "augment=none", "trainer.length=4steps", "schedule.checkpoint=[100%]"]
    settings += ["schedule.validate=[100%]", "schedule.best_monitor=val/loss", "data.components=[]", f"data.path={finished.manifest}"]
    settings += ["data.validation_batch=16"]
    tiny = [text for text in runs.TINY if not text.startswith(("schedule.checkpoint", "schedule.validate", "schedule.partial", "data."))]
    config = runs.composed([*tiny, *settings, "schedule.validate_mask_meta=[]", f"run.root={folder}", "run.name=run"])
    assert runs.start(config) == 0
    return runs.run_path(config)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the few photographs of the run suffice for a calibration and a prior, and make the prior always useful."""
    monkeypatch.setattr(calibration_fit, "FEWEST", 6)
    monkeypatch.setattr(prior_fit, "LEAST", 20)
    monkeypatch.setattr(prior_fit, "MOST_UPDATES", 20)
    monkeypatch.setattr(fit, "floor_likelihoods", lambda prior, batches: {0.1: -1.0, 1.0: -2.0})


def calibrated(run: Path, *words: str) -> None:
    assert linnaeus.__main__.main(["calibrate", str(run), *words]) == 0


def test_a_prior_changes_predictions_with_a_place_only(run, finished, small, tmp_path, capsys):
    photograph, given = finished.photograph(0), {"latitude": 52.1, "longitude": 4.3, "date": "2026-05-01"}
    calibrated(run)
    alone = linnaeus.load_model(run)
    assert alone.components == () and alone.predict(photograph).metadata == ()
    calibrated(run, "--prior")
    assert (
        "prior over SPATIAL and TEMPORAL with floor 0.1: mean log-likelihood of the labels -1.000, without it -2.000"
        in capsys.readouterr().out
    )
    model = linnaeus.load_model(run)
    assert model.components == ("SPATIAL", "TEMPORAL") and model.calibration.prior.floor == 0.1
    placed = model.predict(photograph, **given)
    assert placed.metadata == ("SPATIAL", "TEMPORAL")
    # the definition: log p(photograph) + log weight, normalised at each rank
    meta, present = encode(linnaeus.workloads.taxonomy.trained.classifier.place_and_time.metadata_of(1, given), model.components)
    prepared = model.preparation(model.batch([model.read(photograph)], meta, present))
    with torch.no_grad():
        before, weights = model.network_scores(prepared).log_probs(), model.prior.log_weights(**model.prior_inputs(prepared))
    finest = len(model.tree.ranks) - 1
    expected = (before[finest] + weights[:, -model.tree.sizes[-1] :]).log_softmax(1).exp()
    scored = model.scored([model.read(photograph)], meta, present)
    temperature = model.calibration.temperature[finest]
    assert scored.probabilities[finest] == pytest.approx((expected.log() / temperature).softmax(1).numpy(), rel=1e-4)
    # without a place the network answers alone
    nothing = np.zeros_like(meta), np.zeros_like(present)
    with torch.no_grad():
        own = model.network_scores(model.preparation(model.batch([model.read(photograph)], *nothing))).log_probs()[finest]
    assert model.scored([model.read(photograph)], *nothing).probabilities[finest] == pytest.approx(
        (own / temperature).softmax(1).numpy(), rel=1e-5
    )
    assert np.array_equal(model.embed(photograph, **given), alone.embed(photograph))
    # of several photographs the place counts once: the product of two alone, times the weight
    two = model.predict([photograph, finished.photograph(1)], **given, top=model.tree.sizes[-1], together="product")
    pixels = [model.read(finished.photograph(i)) for i in range(2)]
    with torch.no_grad():
        rows = model.network_scores(model.preparation(model.batch(pixels, meta.repeat(2, 0), present.repeat(2, 0)))).log_probs()[finest]
    expected = ((rows.sum(0) + weights[0, -model.tree.sizes[-1] :]) / temperature).softmax(0).tolist()
    lineages = dict(zip(model.tree.lineage_ids(model.tree.ranks[-1]), expected, strict=True))
    found = {taxon.lineage: taxon.probability for taxon in two.ranks[model.tree.ranks[-1]]}
    assert found == pytest.approx(lineages, rel=1e-4)

    bundle = tmp_path / "bundle"
    left = tmp_path / ".tmp-bundle" / "left.txt"  # of an attempt that was killed
    left.parent.mkdir()
    left.write_text("x")
    assert linnaeus.__main__.main(["export", str(run), str(bundle)]) == 0
    assert not (bundle / "left.txt").exists()
    assert linnaeus.load_model(bundle).predict(photograph, **given).plain() == placed.plain()
    (bundle / "prior.safetensors").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"prior\.safetensors is not the file that was written"):
        linnaeus.load_model(bundle)


@pytest.mark.slow
def test_a_form_has_the_results_of_the_model_with_its_prior(run, small, tmp_path):
    calibrated(run, "--prior")
    words = ["export", str(run), str(tmp_path / "forms"), "--form", "torch_export"]  # onnx is written from the same graph
    assert linnaeus.__main__.main(words) == 0, "checked against the model"
    calibrated(run)


def test_a_calibration_without_a_prior_removes_it(run, finished, small):
    calibrated(run, "--prior")
    (written,) = run.glob("prior-*.safetensors")
    saved = (run / "calibration.json").read_text()
    calibrated(run)
    assert not [*run.glob("*prior*")] and linnaeus.load_model(run).components == ()
    (run / "calibration.json").write_text(saved)  # as if the file of the prior were lost
    with pytest.raises(ConfigError, match=rf"{written.name} cannot be read \(No such file or directory\); calibrate again"):
        linnaeus.load_model(run)
    written.write_bytes(b"x")
    with pytest.raises(ConfigError, match="is not the prior of the calibration"):
        linnaeus.load_model(run)
    record = json.loads(saved) | {"prior": json.loads(saved)["prior"] | {"floor": 0.0}}
    (run / "calibration.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="a prior with floor 0; calibrate again"):
        linnaeus.load_model(run)
    calibrated(run)


@pytest.mark.parametrize("likelihood", [-2.0, -1 + 1e-6])  # the latter is rounding, as with all photographs at one place
def test_a_prior_that_does_not_help_is_not_kept(run, finished, small, monkeypatch, capsys, likelihood):
    monkeypatch.setattr(fit, "floor_likelihoods", lambda prior, batches: {0.1: likelihood, 1.0: -1.0})
    calibrated(run, "--prior")
    assert "the prior over place and season is not used" in capsys.readouterr().out
    assert not [*run.glob("*prior*")] and linnaeus.load_model(run).components == ()


@pytest.mark.slow
def test_evaluate_shows_the_gain_of_a_prior(run, finished, small, tmp_path):
    """Compare the pass with masked metadata with that of the photographs alone."""
    calibrated(run)
    words = ["evaluate", str(run), "--manifest", str(finished.manifest), "--output"]
    assert linnaeus.__main__.main([*words, str(tmp_path / "alone")]) == 0
    calibrated(run, "--prior")
    assert linnaeus.__main__.main([*words, str(tmp_path / "placed")]) == 0
    alone, placed = (json.loads((tmp_path / name / "metrics.json").read_text())["metrics"] for name in ("alone", "placed"))
    assert placed["val_mask_meta/loss"] == pytest.approx(alone["val/loss"], rel=1e-6)
    assert not math.isclose(placed["val/loss"], alone["val/loss"], rel_tol=1e-4)


def test_a_network_that_reads_place_and_date_has_no_prior(finished, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    with pytest.raises(SystemExit):
        linnaeus.__main__.main(["calibrate", str(run), "--prior"])
    assert "--prior has no effect: the network reads place and date itself" in capsys.readouterr().err
