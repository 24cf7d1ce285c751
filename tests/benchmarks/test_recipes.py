"""Recipes beside plain scripts: the sets and their splits, the measures of a script's scores, and trials that are not run twice."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.recipes import __main__ as recipes
from benchmarks.recipes import drawn_places, scoring, sets, trials, variants
from benchmarks.recipes.__main__ import KINDS, losses, table
from benchmarks.recipes.recipe_list import OURS, SCRIPT, settings_of
from benchmarks.recipes.scoring import score_logits
from benchmarks.recipes.sets import PhotographSet, write_manifest
from benchmarks.recipes.trials import Study
from linnaeus.config.load import compose, compose_tree
from linnaeus.workloads.taxonomy.biota.__main__ import biota_config, export
from linnaeus.workloads.taxonomy.manifest import build_source
from tests import fork_server

RANKS = ("family", "genus", "species")
SMALL = PhotographSet("small", RANKS, "observation")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the set `small`: 120 organisms, an observation for every two."""
    folder = tmp_path_factory.mktemp("data")
    export(biota_config(train=90, validation=30), folder / "small")
    path = folder / "small" / "manifest.csv"
    rows = list(csv.DictReader(path.open(newline="")))
    names = {key: key for key in rows[0] if key not in ("split", "observation")}
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, [*names, "observation"])
        out.writeheader()
        out.writerows({key: row[key] for key in names} | {"observation": f"o{i // 2}"} for i, row in enumerate(rows))
    return folder


@pytest.fixture
def study(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setitem(sets.SETS, "small", SMALL)
    return Study(tmp_path / "results.jsonl", data, tmp_path, 4.0)


def test_a_set_is_split_by_its_groups_and_the_seed(data: Path, tmp_path: Path):
    splits = []
    for seed in (0, 1):
        rows = list(csv.DictReader(write_manifest(SMALL, data / "small", tmp_path, seed).open(newline="")))
        own = {row["observation"]: row["split"] for row in rows}
        assert all(own[row["observation"]] == row["split"] for row in rows), "an observation is on two sides"
        assert set(own.values()) == {"train", "val", "test"} and all(Path(row["path"]).is_file() for row in rows)
        splits.append(own)
    assert splits[0] != splits[1]


def test_half_of_the_labels_are_removed_from_training_rows_only(data: Path, tmp_path: Path):
    full, half = (
        list(csv.DictReader(write_manifest(SMALL, data / "small", tmp_path / f"{share}", 0, share).open(newline="")))
        for share in (0.0, 0.5)
    )
    removed = [row for row, own in zip(full, half, strict=True) if own["species"] != row["species"]]
    train = [row for row in full if row["split"] == "train" and row["species"]]
    assert {row["split"] for row in removed} == {"train"} and 0.2 * len(train) < len(removed) < 0.6 * len(train)
    labelled = {row["species"] for row in half if row["split"] == "train" and row["species"]}
    assert labelled == {row["species"] for row in train}, "a species has no label left"
    assert all(own["genus"] == row["genus"] for row, own in zip(full, half, strict=True))


def test_classes_without_training_rows_have_a_sibling_and_are_the_test_rows(data: Path, tmp_path: Path):
    full, rows = (
        list(csv.DictReader(write_manifest(SMALL, data / "small", tmp_path / f"{share}", 0, unseen=share).open(newline="")))
        for share in (0.0, 0.5)
    )
    species = {row["path"]: row["species"] for row in full}
    seen = [row for row in rows if row["split"] != "test"]
    trained = [{row["species"] for row in some if row["split"] == "train"} for some in (full, rows)]
    out = trained[0] - trained[1]
    assert out & {species[row["path"]] for row in rows if row["split"] == "test"}
    assert all(row["species"] == "" and row["genus"] for row in rows if row["split"] == "test")
    assert {row["genus"] for row in rows if row["split"] == "test"} <= {row["genus"] for row in seen if row["split"] == "train"}
    expected = [row["path"] for row in full if (species[row["path"]] in out) == (row["split"] == "test")]
    assert [row["path"] for row in rows] == expected


def perfect_scores(settings: list[str], ranks: tuple[str, ...], split: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the scores of a script that is always right, with rows and classes in another order."""
    source = build_source(compose(settings).data, split == "test")
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(source.split == 1))
    scores: dict[str, np.ndarray] = {f"{split}/paths": source.ids[rows]}
    for rank in ranks:
        r = source.tree.ranks.index(rank)
        order = np.random.default_rng(seed + 1).permutation(source.tree.sizes[r])
        scores[f"classes/{rank}"] = np.array(source.tree.names[r])[order]
        scores[f"{split}/{rank}"] = 20.0 * (source.labels[rows, r][:, None] == order).astype(np.float32)
    return scores


@pytest.mark.parametrize("ranks", [RANKS, RANKS[-1:]], ids=["a classifier per rank", "flat"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_perfect_scores_are_perfect_in_any_order(study: Study, ranks: tuple[str, ...], split: str):
    settings = sets.SETS["small"].settings(study.manifest("small", 0))
    scores = perfect_scores(settings, ranks, split)
    found = score_logits(settings, scores, list(ranks), split)
    assert [found[f"{rank}/top1"] for rank in ranks] == [1.0] * len(ranks) and found["hd1"] == 0.0
    assert found["chain"] == 1.0, "an organism that is known to the species is wrong at a coarser rank"
    scores[f"{split}/species"] = np.roll(scores[f"{split}/species"], 1, axis=1)
    assert score_logits(settings, scores, list(ranks), split)["species/top1"] < 0.5, "wrong scores are scored as right"


def test_trials_may_be_scored_at_the_same_time(study: Study, monkeypatch: pytest.MonkeyPatch):
    """Hydra raises an error if two threads compose; `--parallel` scores in threads. The composition of both takes a while here."""
    settings = sets.SETS["small"].settings(study.manifest("small", 0))
    scores, composed, inside = perfect_scores(settings, RANKS, "val"), scoring.compose, list[int]()

    def slow(words: list[str]) -> Any:
        inside.append(1)
        assert len(inside) == 1
        time.sleep(0.05)
        inside.clear()
        return composed(words)

    monkeypatch.setattr(scoring, "compose", slow)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: score_logits(settings, scores, list(RANKS), "val"), range(3)))
    assert found[0] == found[1] == found[2]


def test_a_flat_script_answers_with_sums(study: Study):
    settings = sets.SETS["small"].settings(study.manifest("small", 0))
    scores = perfect_scores(settings, RANKS[-1:], "val")
    source = build_source(compose(settings).data)
    names, tree = scores["classes/species"].tolist(), source.tree
    genus = tree.ancestors("species", np.array([tree.names[-1].index(name) for name in names]), "genus")
    sizes = np.bincount(genus, minlength=tree.sizes[-2])
    scores["val/species"] = np.zeros_like(scores["val/species"])  # every species alike: the genus with the most species
    expected = source.labels[source.split == 1, -2] == sizes.argmax()
    assert score_logits(settings, scores, ["species"], "val")["genus/top1"] == pytest.approx(expected.mean())


def test_the_length_of_a_run_takes_the_cpu_time(study: Study, monkeypatch: pytest.MonkeyPatch):
    lengths = []

    def two_seconds_and_half_a_second_per_epoch(folder: Path, overrides: list[str]) -> float:
        lengths.append(int(overrides[-1].removeprefix("trainer.length=").removesuffix("epochs")))
        return 2 + 0.5 * lengths[-1]

    monkeypatch.setattr(trials, "train_ours", two_seconds_and_half_a_second_per_epoch)
    slow = Study(study.results, study.data, study.root, 100.0)
    assert slow._epochs("small", [], []) == int((0.98 * 100 - 2) / 0.5)
    assert slow._epochs("small", [], []) == 192 and lengths == [1, 3, 51], "the rate is measured once"
    trial = {"set": "small", "cpu_seconds": 50.0, "unlabelled": 0.5, "unseen": 0.0, "cost": {"epochs": 90, "cpu_seconds": 2 + 0.1 * 90}}
    cpu = json.loads(slow.results.read_text())["cpu"]
    others = [{"words": ["head=linear", "1"], "cpu": cpu}, {"words": ["1"], "cpu": "another"}]
    slow.results.write_text("\n".join([slow.results.read_text().strip(), *(json.dumps(trial | other) for other in others)]) + "\n")
    assert slow._epochs("small", [], []) == 192, "trials of other settings or of another CPU were used"
    slow.results.write_text(slow.results.read_text() + json.dumps(trial | {"words": ["1"], "cpu": cpu}) + "\n")
    assert slow._epochs("small", [], []) == int((0.98 * 100 - 2) / ((50 * 0.5 + 90 * 0.1) / 140)), "a finished trial was not used"


def forked(command: list[str], folder: Path) -> float:
    """Run a command in a fork of a process that has imported torch, which saves 3 s. Return a CPU time."""
    fork_server.run(command, check=True, cwd=trials.ROOT)
    return 1.0


@pytest.mark.slow
def test_the_script_and_a_run_are_trained_scored_and_kept(study: Study, monkeypatch: pytest.MonkeyPatch):
    study = dataclasses.replace(study, unlabelled=0.5, cpu_seconds=1.0)
    monkeypatch.setattr(Study, "_epochs", lambda *words: 1)
    words = ["--backbone", "test_resnet", "--size", "32", "--batch", "16"]
    script = study.plain("small", True, words, 1)
    monkeypatch.setattr(trials, "run_child", forked)
    ours = study.ours("small", ["data.image_size=32", "model.size=micro", "trainer.global_batch_size=32"], 1)
    for found in (script, ours):
        assert all(0 <= found[split]["species/top1"] <= 1 for split in ("val", "test")) and found["cost"]["cpu_seconds"] > 0
    assert script["val"].keys() <= ours["val"].keys(), "the two are measured by other metrics"
    monkeypatch.setattr(trials, "run_child", None)
    assert study.plain("small", True, words, 1) == script
    study.results.unlink()
    with pytest.raises(TypeError):
        study.plain("small", True, words, 1)


def test_settings_are_as_many_for_each_kind_and_all_exist():
    assert len(OURS) == len(SCRIPT)
    base = ["data=manifest", "data.path=x"]
    trees = {repr(compose_tree([*base, *own])) for own in settings_of("linnaeus").values()}  # `auto` is a value of its own
    assert len(trees) == len(OURS)
    assert all(compose([*base, *own]) for own in settings_of("linnaeus").values())


def test_the_table_has_paired_differences_to_the_better_script():
    rows = [{"species/top1": 0.5 + 0.1 * i, "hd1": 1.0, "cpu_seconds": 4.0} for i in range(3)]
    better = [{**row, "species/top1": row["species/top1"] - 0.02} for row in rows]
    worse = [{**row, "species/top1": 0.1} for row in rows]
    chosen = {kind: next(iter(settings_of(kind))) for kind in KINDS}
    lines = table("plants480", chosen, dict(zip(KINDS, (worse, better, rows, rows[::-1]), strict=True)))
    assert len({line.count("|") for line in lines}) == 1
    assert lines[-2].startswith("| linnaeus - script with ranks | | +2.0 (+2.0 to +2.0) |")
    assert lines[-1].startswith("| linnaeus - script with ranks, bf16 | | +0.0 (-")


def test_the_table_of_unseen_classes_has_the_coarser_ranks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sets.SETS, "small", SMALL)
    rows = [{"family/top1": 0.6, "genus/top1": 0.5 + 0.1 * i, "cpu_seconds": 4.0} for i in range(3)]
    better = [{**row, "genus/top1": row["genus/top1"] - 0.02} for row in rows]
    chosen = {kind: next(iter(settings_of(kind))) for kind in KINDS}
    worse = [{**row, "genus/top1": 0.1} for row in rows]
    lines = table("small", chosen, dict(zip(KINDS, (better, worse, rows, rows), strict=True)), unseen=True)
    assert lines[0] == "| | setting | family | genus | CPU s |" and {line.count("|") for line in lines} == {6}
    assert lines[-2].startswith("| linnaeus - flat script | | +0.0 (+0.0 to +0.0) | +2.0 (+2.0 to +2.0) |")


def test_the_losses_without_labels_are_paired():
    def rows(accuracy: float) -> list[dict[str, float]]:
        return [{"species/top1": accuracy + 0.01 * i} for i in range(3)]

    full, half = ({kind: rows(0.5 if kind == "linnaeus" else other) for kind in KINDS} for other in (0.5, 0.4))
    half["linnaeus"] = rows(0.46)
    lines = losses("plants480", full, half)
    assert lines[2] == "| flat script | 51.0 | 41.0 | 10.0 | -1.0 (-1.0 to -1.0) |"


def test_half_of_the_labels_and_unseen_classes_have_the_settings_of_all_labels(study: Study, monkeypatch: pytest.MonkeyPatch):
    tested = list[tuple[float, float, str, str]]()

    def train(own: Study, name: str, kind: str, setting: str, seed: int) -> dict[str, dict[str, float]]:
        if seed:
            tested.append((own.unlabelled, own.unseen, kind, setting))
        best = list(settings_of(kind))[1]
        found = {"species/top1": 0.9 if setting == best else 0.5, "genus/top1": 0.9, "cpu_seconds": 4.0}
        return {"val": found, "test": found, "cost": found}

    monkeypatch.setattr(recipes, "train", train)
    options = argparse.Namespace(seeds=1, sets=["small"], parallel=1, half_labels=True, unseen=True, tune_only=False, choice_seeds=1)
    recipes.run(options, study)
    expected = [(*shares, kind, list(settings_of(kind))[1]) for shares in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5)) for kind in KINDS]
    assert tested == expected
    recipes.run(argparse.Namespace(**vars(options) | {"tune_only": True}), study)
    assert tested == expected


def test_the_setting_with_the_best_mean_over_the_seeds_is_chosen(study: Study, monkeypatch: pytest.MonkeyPatch):
    def train(own: Study, name: str, kind: str, setting: str, seed: int) -> dict[str, trials.Measures]:
        first, second = list(settings_of(kind))[:2]
        accuracy = {(first, 0): 0.9, (second, 0): 0.8, (second, 100): 0.8, (second, 200): 0.8}.get((setting, seed), 0.1)
        return {"val": {"species/top1": accuracy}, "cost": {"cpu_seconds": 4.0}}

    monkeypatch.setattr(recipes, "train", train)
    for seeds, place in ((1, 0), (3, 1)):
        assert recipes.tune(study, "small", 1, seeds) == {
            kind: list(settings_of("linnaeus" if kind == "linnaeus" else "flat script"))[place] for kind in KINDS
        }


def test_a_second_stage_starts_from_the_first_and_its_time_is_added(study: Study, monkeypatch: pytest.MonkeyPatch):
    calls = list[tuple[Path, list[str]]]()

    def train_ours(folder: Path, overrides: list[str]) -> float:
        calls.append((folder, overrides))
        return 10.0

    def evaluate(folder: Path, split: str, masked: bool) -> dict[str, float]:
        assert masked
        return {"species/top1": 0.5, "masked/species/top1": 0.4} if folder.name == "first" else {"species/top1": 0.6}

    monkeypatch.setattr(variants, "train_ours", train_ours)
    monkeypatch.setattr(variants, "evaluate", evaluate)
    monkeypatch.setitem(variants.GROUPS, "two", {name: variants.GROUPS["tail"][name] for name in ("photos", "two stages, new heads")})
    found = variants.train_group(study, "small", "two", 2, 8, 1)
    assert found == {
        "photos": 2 * [{"species/top1": 0.5, "masked/species/top1": 0.4, "cpu_seconds": 10.0}],
        "two stages, new heads": 2 * [{"species/top1": 0.6, "masked/species/top1": 0.6, "cpu_seconds": 20.0}],
    }
    (_, natural), (first, same), (_, second), *other_seed = calls
    assert natural == same and natural[-1] == "trainer.length=8epochs" and len(other_seed) == 3
    assert second[-2:] == [f"run.init_from={first / 'run'}", "trainer.length=2epochs"] and "trainer.freeze=[trunk,norm]" in second
    assert variants.train_group(study, "small", "two", 2, 8, 2) == found and len(calls) == 6, "a finished trial is repeated"
    lines = variants.table("species", found)
    assert lines[-1].startswith("| two stages, new heads - photos | +10.0 (+10.0 to +10.0) | +20.0 (+20.0 to +20.0) |")
    assert {line.count("|") for line in lines} == {5}, "a measure without values is in the table"


def test_every_variant_is_a_configuration_of_its_own():
    for group in variants.GROUPS.values():
        trees = set[str]()
        for own in group.values():
            words = [text.format(finest="species", most=6.0) for text in (*own.settings, *own.second)]
            assert compose(["experiment=photos", "data.path=x", *words, *(["run.init_from=x"] if own.second else [])])
            trees.add(repr((compose_tree(["experiment=photos", "data.path=x", *words]), own.places)))
        assert len(trees) == len(group)


def test_places_are_drawn_for_observations_from_ranges_of_the_species(study: Study, tmp_path: Path):
    read = lambda path: list(csv.DictReader(path.open(newline="")))
    place = lambda row: (row["latitude"], row["longitude"])
    found = {}
    for name, own in variants.GROUPS["places"].items():
        if own.places is not None:
            out = drawn_places.with_places(SMALL, study.manifest("small", 0), own.places, 0, tmp_path / f"{name}.csv")
            assert out.read_bytes() == drawn_places.with_places(SMALL, study.manifest("small", 0), own.places, 0, out).read_bytes()
            found[name] = read(out)
            observations = {row["observation"]: place(row) for row in found[name]}
            assert all(observations[row["observation"]] == place(row) for row in found[name])
    known = [row for row in found["places of a third"] if row["latitude"]]
    assert 0.15 < len(known) / len(found["places"]) < 0.5 and set(map(place, known)) < set(map(place, found["places"]))
    assert set(map(place, found["places"])) == set(map(place, found["shuffled places"]))
    latitudes = {name: np.array([float(row["latitude"]) for row in rows]) for name, rows in found.items() if name != "places of a third"}
    assert all(own.min() > 36 and own.max() < 38 for own in latitudes.values())
    assert not np.array_equal(latitudes["places"], latitudes["shuffled places"])


@pytest.mark.parametrize("ema", ["", "_ema"])
def test_measures_with_masked_metadata_have_a_name_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ema: str):
    def run_child(command: list[str], folder: Path) -> float:
        assert ("schedule.validate_mask_meta=[100%]" in command) == masked
        (folder / "validation").mkdir(exist_ok=True)
        metrics = {f"val{ema}/hd1": 2.0, f"val{ema}_mask_meta/hd1": 3.0, f"val{ema}/loss": None}
        (folder / "validation" / "metrics.json").write_text(json.dumps({"metrics": metrics}))
        return 1.0

    monkeypatch.setattr(trials, "run_child", run_child)
    for masked in (False, True):
        assert trials.evaluate(tmp_path, "validation", masked) == {"hd1": 2.0, "masked/hd1": 3.0}
