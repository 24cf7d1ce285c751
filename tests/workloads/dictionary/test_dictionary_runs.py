"""Test runs of dictionaries: on a model of any workload, loss recovered, several in one pass, stored or not, evaluation, mistakes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from unittest import mock

import pytest
import torch

from linnaeus import workloads
from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.train.evaluation import evaluate
from linnaeus.workloads.dictionary import splicing
from linnaeus.workloads.dictionary.dictionary_metrics import decoder_cosines, densities
from linnaeus.workloads.dictionary.dictionary_summary import headline, summary
from linnaeus.workloads.dictionary.model import variants
from linnaeus.workloads.dictionary.model.largest import largest_places
from tests import runs

MODULES = {"biota": "trunk.stem", "language": "blocks.1", "loadout": "layers.0"}
SMALL = ["model.features=24", "model.k=4", "model.block=4", "data.samples=12", "data.source_batch=4", "trainer.length=4steps"]


def read(workload: str, trained: dict[str, Path], root: Path, *more: str) -> Path:
    """Return the directory of a run on a module of a trained model."""
    texts = ["workload=dictionary", f"dictionary.run={trained[workload]}", f"dictionary.module={MODULES[workload]}", *SMALL, *more]
    merged = {text.split("=", 1)[0]: text for text in [*runs.TINY, *texts, f"run.root={root}", "run.name=run"]}
    groups = [text for key, text in merged.items() if "." not in key]
    return runs.resumed(runs.composed([*groups, *(text for key, text in merged.items() if "." in key)]))


def final(run: Path) -> dict[str, float]:
    return {name.partition("/")[2]: value for name, value in runs.summary(run)["final"].items() if name.startswith("val/")}


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory) -> Path:
    return read("language", trained, tmp_path_factory.mktemp("dictionary"))


@pytest.mark.parametrize("workload", ["language", *(pytest.param(name, marks=pytest.mark.slow) for name in ("loadout", "biota"))])
def test_a_dictionary_reads_a_module_of_any_workload(trained, tmp_path, workload):
    found, inner = final(read(workload, trained, tmp_path)), final(trained[workload])
    assert found["original/loss"] == inner["loss"], "the model with its own activations is the model"
    assert found["zero/loss"] != found["original/loss"] != found["spliced/loss"]
    expected = (found["zero/loss"] - found["spliced/loss"]) / (found["zero/loss"] - found["original/loss"])
    assert found["loss_recovered"] == expected
    shares = ("dead", "dense", *(name for name in found if name.startswith("density/")))
    assert all(0 <= found[name] <= 1 for name in shares)
    assert sum(found[name] for name in found if name.startswith("density/")) == pytest.approx(1)
    assert 0 < found["l0"] <= 24 and found["explained_variance"] < 1 and -1 <= found["decoder_cosine"] <= found["decoder_cosine_max"] <= 1


@pytest.mark.parametrize(("edit", "recovered"), [(lambda rows: rows, 1.0), (torch.zeros_like, 0.0)], ids=["as it is", "zeros"])
def test_all_or_nothing_of_the_loss_is_recovered(trained, tmp_path, edit, recovered):
    with mock.patch.object(splicing, "reconstruct", lambda dictionary, device: edit):
        assert final(read("language", trained, tmp_path))["loss_recovered"] == recovered


def test_dictionaries_of_one_pass_are_those_of_single_runs(trained, tmp_path):
    together = runs.newest(read("language", trained, tmp_path / "together", "model.frontier=[2,5]"))
    for number, k in enumerate((2, 5)):
        alone = runs.newest(read("language", trained, tmp_path / str(k), f"model.k={k}")).model_state
        own = {name.replace(f"s.{number}.", "s.0."): value for name, value in together.model_state.items() if f"s.{number}." in name}
        assert own.keys() == alone.keys() and all(torch.equal(own[name], alone[name]) for name in own)
    names = final(tmp_path / "together" / "activations" / "run")
    assert names["k2/l0"] < names["k5/l0"] and names["loss"] == (names["k2/loss"] + names["k5/loss"]) / 2


@pytest.mark.parametrize("change", ["data.stored=false", "trainer.num_workers=2"])
def test_neither_the_place_of_activations_nor_workers_change_a_bit(trained, run, tmp_path, change):
    other = read("language", trained, tmp_path, change)
    assert all(torch.equal(value, runs.newest(run).model_state[name]) for name, value in runs.newest(other).model_state.items())
    assert final(other) == final(run)


def test_an_evaluation_gives_the_recorded_metrics_without_stored_activations(trained, run, tmp_path):
    config = compose(
        ["workload=dictionary", f"dictionary.run={trained['language']}", "dictionary.module=blocks.1", f"data.folder={tmp_path / 'own'}"]
    )
    assert config.data.name == "activations" and not (tmp_path / "own").exists()
    evaluate(run, "validation", "newest", [f"data.folder={tmp_path / 'own'}"], tmp_path / "results")
    assert not (tmp_path / "own").exists(), "an evaluation stores no activations"
    found = json.loads((tmp_path / "results" / "metrics.json").read_text())["metrics"]
    assert {name: found[f"val/{name}"] for name in final(run)} == final(run)


def test_the_learning_of_planted_features_is_measured(tmp_path):
    found = final(runs.run("planted", tmp_path, "model.k=2.5", "trainer.length=40steps", "optimizer.lr=0.02"))
    assert all(0 <= found[name] <= 1 for name in ("mcc", "uniqueness", "precision", "recall", "f1")) and found["true_l0"] > 0
    start = final(runs.run("planted", tmp_path / "start", "model.k=2.5", "trainer.length=3steps", "optimizer.lr=1e-9"))
    assert found["mcc"] > start["mcc"] + 0.01 and found["explained_variance"] > start["explained_variance"] + 0.2


def test_the_note_about_the_activations_has_their_number_and_that_of_the_samples(trained, tmp_path):
    run = read("language", trained, tmp_path)
    assert "184 activations of 12 training samples: output of blocks.1, [16, 48] per sample;" in (run / "train.log").read_text()


def test_metrics_of_the_model_that_is_read_are_not_columns_of_the_table(tmp_path):
    workload = workloads.build_workload(runs.configuration("planted", tmp_path))
    (header, row) = workload.summary({"val/l0": 2.0, "val/original/f1": 0.5, "val/spliced/f1": 0.4})
    assert header.split() == ["l0"] and row.split() == ["dictionary", "2"]


def test_a_metric_that_is_undefined_is_a_dash_in_the_table_and_left_out_of_the_headline():
    """With zeros in place of the activations and an equal loss, the loss recovered is NaN."""
    found = {"val/l0": 2.0, "val/explained_variance": 0.5, "val/loss_recovered": math.nan}
    assert summary(found, ["dictionary"])[1].split() == ["dictionary", "2", "0.5", "-"]
    assert headline(found, ["dictionary"]) == ["dictionary: 2.0 features active, 50.0 % of the variance explained"]
    assert headline(found | {"val/explained_variance": math.nan}, ["dictionary"]) == ["dictionary: 2.0 features active"]


def test_shares_and_cosines_have_their_values():
    found = densities(torch.tensor([0.0, 5.0, 500.0, 5000.0, 1e6]), 1e6)
    assert found["dead"] == found["density/0"] == 0.2 and found["dense"] == 0.2
    bins = {"density/1e-5": 0.2, "density/1e-4": 0.2, "density/1e-3": 0.2, "density/1e-2": 0.0, "density/1e-1": 0.2}
    assert {name: found[name] for name in bins} == bins
    assert all(math.isnan(value) for value in densities(torch.zeros(3), 0).values())
    mean, high, most = decoder_cosines(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])).tolist()
    assert mean == pytest.approx(0.5**0.5) and high == pytest.approx(0.5**0.5) and most == pytest.approx(0.5**0.5)
    assert decoder_cosines(torch.ones(1, 2)).isnan().all()


MISTAKES = {
    "no module 'blocks.9'; the nearest ones are blocks": ["dictionary.module=blocks.9"],
    "dictionary.module: .*returns tuple|dictionary.module: the model has no module": ["dictionary.module=nothing"],
    "dictionary.run: .*absent does not exist": ["dictionary.run=absent"],
    "dictionary.run: no checkpoint of step 77|dictionary.run: .* has no checkpoint of step 77": ["dictionary.checkpoint=77"],
    "dictionary.run: unknown key data.pth": ["dictionary.settings=['data.pth=x']"],
    "dictionary.run is null": ["dictionary.run=null", "data=activations"],
    "dictionary.module is null": ["dictionary.module=null"],
    "dictionary.run has no effect with data=planted": ["data=planted"],
    "dictionary.channels has no effect with data=planted": ["data=planted", "dictionary.channels=last"],
    "model.block=3 does not divide the micro-batch of 8": ["model.block=3"],
    "data.folder has no effect with data.stored=false": ["data.folder=x", "data.stored=false"],
    "set trainer.num_workers=0, or data.stored=true": ["data.stored=false", "trainer.num_workers=1"],
    "data.max_bad_fraction has no effect": ["data.max_bad_fraction=0.1"],
    "use weighting=fixed": ["weighting=uncertainty"],
    "optimizer.weight_decay has no effect": ["optimizer.weight_decay=0.1"],
    "model.auxiliary_features has no effect with model.auxiliary=0": ["model.auxiliary=0", "model.auxiliary_features=4"],
    "list each value of k once": ["model.frontier=[2,2]"],
    "model.k is 99, but there are 24 features": ["model.frontier=[99]"],
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(trained, tmp_path, line):
    small = SMALL[:3] if "data=planted" in MISTAKES[line] else SMALL
    texts = {"workload=dictionary": "", f"dictionary.run={trained['language']}": "", "dictionary.module=blocks.1": ""}
    merged = {text.split("=", 1)[0]: text for text in [*runs.TINY, *texts, *small, f"run.root={tmp_path / 'out'}", *MISTAKES[line]]}
    with pytest.raises(ConfigError, match=line) as error:
        runs.start(compose(list(merged.values())))
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_the_setting_that_an_error_names_can_be_typed(tmp_path):
    with pytest.raises(ConfigError) as error:
        workloads.build_workload(compose(["workload=dictionary", f"run.root={tmp_path}", "data.max_bad_fraction=0.1"]))
    typed = re.search(r"dictionary\.settings=\S+", str(error.value))
    assert compose(["workload=dictionary", typed[0]]).dictionary.settings == ["data.max_bad_fraction=0.1"]


def test_settings_without_effect_are_noted(tmp_path):
    def notes(*texts):
        return workloads.build_workload(compose(["workload=dictionary", f"run.root={tmp_path}", *texts])).notes

    assert notes() == (), "those of conf/ are not named"
    assert notes("dictionary.report_features=5", "dictionary.report_samples=9") == (
        "dictionary.report_features=5 has no effect with data=planted: report.html has no cards of features",
        "dictionary.report_samples=9 has no effect with data=planted: report.html has no cards of features",
    )
    assert notes("model.frontier=[2,5]", "model.k=3") == ("model.frontier: k2, k5 are trained in one pass; model.k is not used",)
    assert "model.sparsity is not used" in notes("model=relu", "model.frontier=[0.1,0.2]")[0]


def weights(root: Path, micro: int) -> torch.Tensor:
    run = runs.run("planted", root, "trainer.precision=float64", "trainer.length=3steps", f"trainer.micro_batch_size={micro}")
    return torch.cat([value.double().flatten() for _, value in sorted(runs.newest(run).model_state.items())])


def test_blocks_and_not_micro_batches_choose(tmp_path):
    assert float((weights(tmp_path / "a", 32) - weights(tmp_path / "b", 8)).abs().max()) < 1e-10

    def whole(pre, real, k, block, guess):
        return largest_places(pre, real, k, len(real), guess)

    with mock.patch.object(variants, "largest_places", whole):  # the negative control
        assert float((weights(tmp_path / "c", 32) - weights(tmp_path / "d", 8)).abs().max()) > 1e-4
