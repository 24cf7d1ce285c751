"""Test the table of validation samples: its means are the metrics, runs are compared sample by sample, and a kill changes no byte of it."""

from __future__ import annotations

import numpy as np
import pytest

from linnaeus.reporting.report.comparison.compared_runs import Compared
from linnaeus.reporting.report.comparison.comparison_page import comparison_page
from linnaeus.reporting.report.comparison.paired_rows import PairedRows
from linnaeus.reporting.report.run_files import RunFiles
from tests import runs
from tests.workloads.dictionary.test_dictionary_runs import final, read

OWN = {"loss", "l0", "explained_variance", "sparse_gain", "nmse", "cosine"}
COLUMNS = {  # of the table, besides `OWN`
    "language": {"loss_recovered", "spliced/loss", "spliced/top1"},
    "loadout": {"loss_recovered", "spliced/loss", "spliced/slots_6", "spliced/points"},
    "biota": {"spliced/species/top1", "spliced/chain"},
    "planted": set(),
}


def check_means(run, names):
    """Check that the mean of each column with the name of a metric is the metric, and that these are at least `names`."""
    rows, metrics = RunFiles(run).table("samples"), final(run)
    columns = {name for name in rows[0] if name in metrics}
    assert names <= columns, columns
    for name in columns:
        values = [float(row[name]) for row in rows if row[name] != ""]
        assert np.mean(values) == pytest.approx(metrics[name], rel=1e-9, abs=1e-12), name
    return rows


@pytest.mark.parametrize("workload", ["language", *(pytest.param(name, marks=pytest.mark.slow) for name in ("loadout", "biota"))])
def test_the_mean_of_each_column_is_the_metric(trained, tmp_path, workload):
    rows = check_means(read(workload, trained, tmp_path), OWN | COLUMNS[workload])
    assert [row["sample"] for row in rows] == [row["sample"] for row in RunFiles(trained[workload]).table("samples")]
    assert all(int(row["activations"]) > 0 for row in rows)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Return the directories of a run of two dictionaries that learn and of one whose dictionaries do not."""
    root, common = tmp_path_factory.mktemp("planted"), ["model.frontier=[0.5,2]", "data.validation_samples=60", "trainer.length=30steps"]
    return [runs.run("planted", root / name, *common, f"optimizer.lr={lr}") for name, lr in (("first", 1e-9), ("second", 0.02))]


def test_several_dictionaries_have_columns_of_their_own(planted):
    check_means(planted[1], {"loss"} | {f"{name}/{column}" for name in ("k0.5", "k2") for column in OWN})


def test_two_runs_are_compared_sample_by_sample(planted, tmp_path):
    compared = [RunFiles(run) for run in planted]
    first, other = Compared(compared).groups
    for metric in ("k2/explained_variance", "k2/l0", "k0.5/cosine"):
        found = PairedRows().difference(first, other, f"val/{metric}")
        assert found.samples == found.of == 60 and found.low < found.value < found.high
        assert found.value == pytest.approx(final(planted[1])[metric] - final(planted[0])[metric])
    assert PairedRows().difference(first, other, "val/k2/explained_variance").low > 0
    page = comparison_page(compared, tmp_path)
    assert "Paired by sample" in page and 'class="delta good"' in page


def test_other_planted_features_are_not_paired(planted, tmp_path):
    other = runs.run("planted", tmp_path, "model.frontier=[0.5,2]", "data.validation_samples=60", "data.world=1")
    assert PairedRows().difference(*Compared([RunFiles(planted[0]), RunFiles(other)]).groups, "val/k2/l0").samples == 0


@pytest.mark.parametrize("workload", ["planted", pytest.param("dictionary", marks=pytest.mark.slow)])
def test_a_killed_run_has_the_table_of_the_run_that_was_not(tmp_path, workload):
    whole, continued = runs.whole_and_continued(runs.configuration(workload, tmp_path, "schedule.checkpoint=[2steps]"), 4)
    (first,), (second,) = (list(run.glob("validation/*/val-samples.csv")) for run in (whole, continued))
    assert first.read_bytes() == second.read_bytes() and first.parent.name == second.parent.name
