"""Test the comparison of heads: which variant is chosen, when it is confirmed, and real trials that are not run twice."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.heads import BASELINE, ROOT, VARIANTS, Difference, choose, confirmed, difference, markdown
from linnaeus.config.load import compose
from tests import fork_server


def rows(distances, top1):
    crm = {"crm_hd1": 0.5, "crm_top1": 0.6, "crm_hd5": 1.0, "crm_hd20": 1.5, "crm_severity": 1.3}
    more = {"species/macro_top1": 0.5, "hd5": 1.2, "hd20": 1.9, "severity": 1.4, "inconsistent": 0.2, "species/ece": float("nan")}
    return [{"hd1": d, "species/top1": t, **more, **crm} for d, t in zip(distances, top1, strict=True)]


RESULTS = {
    BASELINE: rows([0.60, 0.62, 0.61], [0.70, 0.69, 0.71]),
    "mild": rows([0.50, 0.51, 0.52], [0.66, 0.66, 0.66]),  # the least distance, and too few right
    "good": rows([0.58, 0.60, 0.59], [0.699, 0.688, 0.707]),
    "poor": rows([0.63, 0.64, 0.65], [0.75, 0.75, 0.75]),
}


def test_differences_are_paired_by_seed():
    found = difference(RESULTS, "good", "hd1")
    assert (found.mean, found.low, found.high) == pytest.approx((-0.02, -0.02, -0.02))
    assert found.high - found.low < 1e-9, "what the seeds have in common is no spread"
    assert Difference.of([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]).high == pytest.approx(2 + 4.303 * 1 / 3**0.5)
    single = Difference.of([1.0], [2.0])
    assert single.mean == -1 and single.high != single.high


def test_the_least_distance_among_those_that_keep_top1_is_chosen():
    assert choose(RESULTS) == "good"
    assert choose({name: RESULTS[name] for name in (BASELINE, "mild", "poor")}) is None


def test_confirmed_is_an_interval_below_zero_at_no_more_than_half_a_point():
    assert confirmed(RESULTS, "good") and not confirmed(RESULTS, "mild") and not confirmed(RESULTS, "poor")
    unsure = {**RESULTS, "good": rows([0.50, 0.62, 0.60], [0.70, 0.69, 0.71])}
    assert difference(unsure, "good", "hd1").mean < 0 and not confirmed(unsure, "good")


def test_the_table_has_a_row_under_crm_for_each_and_no_number_where_there_is_none():
    lines = markdown(RESULTS).splitlines()
    assert len(lines) == 2 + 2 * len(RESULTS) and len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| linear | 0.6100 | 70.00 | 50.00 |") and lines[2].endswith("| - |  |  |")
    assert lines[3].startswith("| linear + CRM | 0.5000 | 60.00 | - |") and "-0.1100 (" in lines[3] and "-10.00 (" in lines[3]


def test_every_variant_is_another_configuration():
    configs = [compose(["experiment=biota_hard", *overrides]) for overrides in VARIANTS.values()]
    assert len({repr((config.head, config.loss)) for config in configs}) == len(VARIANTS)
    assert all(config.data == configs[0].data for config in configs)


@pytest.mark.slow
def test_trials_are_run_once(tmp_path):
    sizes = ["data.image_size=16", "data.train_samples=64", "data.validation_samples=40", "trainer.length=2steps", "schedule.checkpoint=[]"]
    command = [sys.executable, "-m", "benchmarks.heads", "biota", "--variants", "marginal", "--choose", "0", "--confirm", "1"]
    command += ["--root", str(tmp_path / "runs"), "--json", str(tmp_path / "x"), "--parallel", "2", *sizes]
    first = fork_server.run(command, cwd=ROOT)
    assert first.stderr.count("exit status 0") == 2 + 2 * ("chosen:" in first.stdout), first.stderr
    assert "| marginal + CRM |" in first.stdout
    written = json.loads((tmp_path / "x").read_text())
    assert set(written["choose"]) == {BASELINE, "marginal"} and written["choose"]["marginal"][0]["inconsistent"] == 0
    again = fork_server.run(command, cwd=ROOT)
    assert again.stdout == first.stdout and "exit status" not in again.stderr
