"""Metrics of completions, compared with sums over single samples, slots and tokens."""

import math
import tracemalloc
from unittest import mock

import numpy as np
import pytest
import torch

from linnaeus.data.samples import SampleIndex
from linnaeus.randomness import BOOTSTRAP, key, uniforms
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.builds.build_table import Builds, split_builds
from linnaeus.workloads.loadout.builds.partial_builds import ValidationBuilds
from linnaeus.workloads.loadout.completion.slot_filling import fill
from linnaeus.workloads.loadout.evaluation import answer_scores
from linnaeus.workloads.loadout.evaluation.answer_scores import reference_pool
from linnaeus.workloads.loadout.evaluation.baselines import BASELINES, Baselines
from linnaeus.workloads.loadout.evaluation.comparison import RESAMPLES, Comparison, paired_bootstrap
from linnaeus.workloads.loadout.evaluation.completion_metrics import CompletionMetrics
from linnaeus.workloads.loadout.game.abilities import ability_points
from linnaeus.workloads.loadout.game.gear import count_items
from linnaeus.workloads.loadout.game.token_code import SlotsCode
from linnaeus.workloads.loadout.game.weapons import builtin_weapons
from linnaeus.workloads.loadout.report.loadout_sections import loadout_sections
from linnaeus.workloads.loadout.report.result_tables import headline, result_tables
from tests import runs

CODE, WEAPONS = SlotsCode(), builtin_weapons()


def computed(references: int, scale: float = 2.0):
    """Return (metrics of random logits for 10 validation builds, the batch, the probabilities, the added items)."""
    weapon, items = make_world(0, len(WEAPONS)).draw(0, 0, 60)
    split = split_builds(Builds(weapon % 3, items), WEAPONS, (0.3, 0.0), 0, ())
    dataset = ValidationBuilds(split.validation.rows(np.arange(10)), CODE)
    with mock.patch.object(answer_scores, "REFERENCES", references):
        metrics = CompletionMetrics(CODE, split, dataset, Baselines(split.train, len(WEAPONS)), torch.device("cpu"))
    batch = dataset.__getitems__([SampleIndex(0, n, n, 0) for n in range(len(dataset))])
    logits = scale * torch.randn(len(dataset), len(CODE), generator=torch.Generator().manual_seed(0)) - 1
    logits += 2 * batch["target"]
    metrics.count(logits, batch)
    p = logits.double().sigmoid().nan_to_num(0.0)
    observed = batch["observed"].long()
    filled = fill(CODE.tails(p, observed), observed)
    return metrics.compute(metrics.sums(logits, batch), metrics.counts), batch, p, filled


def test_slots_points_and_references_are_those_of_each_sample():
    results, batch, _, filled = computed(references=256)
    removed = np.arange(120) % 12 + 1
    observed, complete = (batch[name].numpy().astype(int) for name in ("observed", "complete"))
    added = filled.items.numpy()
    right = np.minimum(added, complete - observed).sum(1)
    best = [
        max(
            np.minimum(added[i], other - observed[i]).sum()
            for other, weapon in zip(complete[::12], batch["weapon"][::12])
            if weapon == batch["weapon"][i] and (other >= observed[i]).all()
        )
        for i in range(120)
    ]
    for k in (1, 6):
        assert results[f"slots_{k}"] == pytest.approx(right[removed == k].mean() / k)
        assert results[f"references_{k}"] == pytest.approx(np.array(best)[removed == k].mean() / k)
    assert best != right.tolist(), "another build of the weapon is never the better reference"
    distance = np.abs(ability_points(observed + added) - ability_points(complete)).sum(1)
    assert results["points"] == pytest.approx(1 - distance.mean() / 114)
    assert results["legal"] == 1 and results["changed"] == 0


def test_the_build_of_the_sample_is_always_a_reference():
    results = computed(references=1)[0]
    assert results["references_1"] >= results["slots_1"] and results["references_6"] >= results["slots_6"]


def test_slots_are_calibrated_by_their_own_probability():
    results, batch, _, filled = computed(references=1)
    missing = (batch["complete"] - batch["observed"]).numpy().astype(int)
    bins = np.zeros((15, 2))
    for left, items, values in zip(missing, filled.item.tolist(), filled.probability.tolist(), strict=True):
        for item, p in zip(items, values, strict=True):
            if item >= 0:
                bins[min(int(p * 15), 14)] += (left[item] > 0, p)
                left[item] -= 1
    assert results["ece"] == pytest.approx(np.abs(bins[:, 0] - bins[:, 1]).sum() / (filled.item >= 0).sum().item(), abs=1e-5)


def test_tokens_are_counted_where_the_gear_does_not_show_them():
    results, batch, p, _ = computed(references=1)
    scored = batch["scored"].numpy()
    truth, values = batch["target"].numpy()[scored], p.numpy()[scored]
    said = values >= 0.5
    precision, recall = truth[said].mean(), said[truth].mean()
    assert results["precision"] == pytest.approx(precision) and results["recall"] == pytest.approx(recall)
    assert results["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    order = np.argsort(-values)
    hits = truth[order]
    average = (hits.cumsum() / np.arange(1, len(hits) + 1))[hits].mean()
    assert results["average_precision"] == pytest.approx(average, abs=0.01), "1000 bins of probability"
    loss = -np.where(truth, np.log(values), np.log1p(-values)).mean()
    assert results["loss"] == pytest.approx(loss)


def test_logits_of_a_model_that_has_diverged_have_metrics():
    results, *_ = computed(references=1, scale=np.nan)
    assert np.isnan(results["loss"]) and results["recall"] == 0


def test_a_bootstrap_of_many_rows_does_not_draw_all_at_once():
    differences = np.random.default_rng(0).normal(size=4000)
    tracemalloc.start()
    found = paired_bootstrap(differences, np.arange(4000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    draws = uniforms(key(0, BOOTSTRAP, 4000), np.arange(RESAMPLES * 4000)).reshape(RESAMPLES, 4000)
    means = differences[(draws * 4000).astype(np.int64)].mean(1)
    assert found["_error"] == float(means.std()) and found["_low"] == float(np.quantile(means, 0.025))
    assert peak < 20e6 < 8 * RESAMPLES * 4000


def test_copies_of_a_build_are_resampled_together():
    """100 groups of 40 equal values have the error of 100 values."""
    values = np.random.default_rng(0).normal(size=100)
    error = paired_bootstrap(np.repeat(values, 40), np.repeat(np.arange(100), 40))["_error"]
    assert error == paired_bootstrap(values, np.arange(100))["_error"]
    assert error > 5 * paired_bootstrap(np.repeat(values, 40), np.arange(4000))["_error"]


def test_references_are_different_builds():
    weapon, items = make_world(0, 130).draw(0, 0, 40)
    same = Builds(np.repeat(weapon, 300), np.repeat(items, 300, 0))
    pool = reference_pool(same, 130)
    assert pool.shape[1] == np.unique(weapon, return_counts=True)[1].max()
    for number in np.unique(weapon):
        assert (pool[number][pool[number].sum(1) > 0].numpy() == CODE.multi_hot(items[weapon == number])).all()


def test_the_other_methods_have_the_metrics_of_their_own_answers():
    weapon, items = make_world(0, len(WEAPONS)).draw(0, 0, 60)
    split = split_builds(Builds(weapon % 3, items), WEAPONS, (0.3, 0.0), 0, ())
    dataset, baselines = ValidationBuilds(split.validation.rows(np.arange(10)), CODE), Baselines(split.train, len(WEAPONS))
    samples = np.arange(120)
    seen, filled, losses = np.ones(120, np.int64), np.zeros((120, 12), np.int64), np.ones((120, 2), np.int64)
    found = Comparison(split, dataset, baselines, reference_pool(dataset.builds, len(WEAPONS)), seen, filled, losses)
    metrics, rows = found.metrics(), list(found.rows())
    build, kept = dataset.parts(samples)
    observed, complete = count_items(dataset.slots[build], kept).astype(int), dataset.builds.items[build].astype(int)
    weapons = dataset.builds.weapon[build]
    for name, values in baselines.probabilities(observed, weapons).items():
        given = torch.from_numpy(observed)
        added = fill(CODE.tails(torch.from_numpy(values), given), given).items.numpy()
        right = np.minimum(added, complete - observed).sum(1)
        assert [row[f"right {name}"] for row in rows] == right.tolist()
        distance = np.abs(ability_points(observed + added) - ability_points(complete)).sum(1)
        assert metrics[f"baseline/{name}/points"] == pytest.approx(1 - distance.mean() / 114)
        nine = samples % 12 == 8
        assert metrics[f"baseline/{name}/slots_9"] == pytest.approx(right[nine].mean() / 9)
        best = [
            max(
                np.minimum(added[i], other - observed[i]).sum()
                for other, owner in zip(complete[::12], weapons[::12])
                if owner == weapons[i] and (other >= observed[i]).all()
            )
            for i in range(120)
        ]
        assert metrics[f"baseline/{name}/references_6"] == pytest.approx(np.array(best)[samples % 12 == 5].mean() / 6)
        frequent = torch.from_numpy(baselines.frequency[weapons])
        decided = np.minimum(fill(CODE.tails(frequent, given), given).items.numpy(), complete - observed)
        both, six = np.minimum(decided, added).sum(1), samples % 12 == 5
        assert metrics[f"baseline/{name}/weapon_6"] == pytest.approx(both[six].sum() / decided[six].sum())
        assert metrics[f"baseline/{name}/gear_6"] == pytest.approx((right - both)[six].sum() / (60 - decided[six].sum()))


def test_few_validation_samples_have_no_comparison_of_the_numbers_they_lack(tmp_path):
    run = runs.run("loadout", tmp_path, "trainer.limit_validation_samples=3")
    final = {name: np.nan if value is None else value for name, value in runs.summary(run)["final"].items()}
    found = {int(name.rpartition("_")[2]) for name in final if "/of_optimum_" in name}
    assert found < {1, 2, 3, 4, 5, 6} and len(found) in (1, 2, 3), final
    heads = [lines[0] for lines in result_tables(final).values()][:-1]
    assert len(set(heads)) == len(heads), "train.log has the tables without titles, and two of them look alike"
    tables = result_tables(final)["Completion of builds"]
    assert len(tables) == 1 + 1 + len(BASELINES) + 1 + 5 and all(len(line.split()) >= 6 for line in tables[1:])
    page = loadout_sections(RunFiles(run))[1].body
    for end in ("low", "high"):
        line = next(line for line in tables if line.startswith(f"95 % interval, {end} "))
        shown = [float(text) for text in line[34:].split() if text != "-"]
        values = [final[f"val/margin_{k}_{end}"] for k in sorted(found)]
        assert shown == pytest.approx([100 * value for value in values], abs=0.06)
        assert f"95 % interval, {end}" in page and all(f'data-key="val/margin_{k}_{end}"' in page for k in found)


def test_a_metric_that_is_undefined_is_a_dash():
    """Precision is NaN if no token has a probability of 0.5."""
    lines = result_tables({"val/precision": math.nan, "val/recall": 0.0})["Tokens and answers"]
    assert [line.split()[-2:] for line in lines] == [["precision", "-"], ["0.0", "%"]]


@pytest.mark.parametrize("present", [1, 6])
def test_the_result_in_three_lines_needs_neither_number_of_removed_slots(present):
    final = {f"val/{name}_{present}": 0.5 for name in ("slots", "of_optimum", "margin")} | {f"val/margin_{present}_error": 0.01}
    places = f"({present} removed)"
    assert headline(final)[1:] == [f"share of the optimum 50.0 % {places}", f"over the best baseline +50.0 ± 1.0 points {places}"]
