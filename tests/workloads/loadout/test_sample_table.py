"""Test the table of validation samples: its means are the metrics, runs are compared sample by sample, and a kill changes no byte of it."""

import numpy as np
import pytest

from linnaeus.reporting.report.comparison.compared_runs import Compared
from linnaeus.reporting.report.comparison.comparison_page import comparison_page
from linnaeus.reporting.report.comparison.paired_rows import PairedRows
from linnaeus.reporting.report.run_files import RunFiles
from tests import runs

SEVERAL = ["data.builds=120", "trainer.length=4steps", "schedule.checkpoint=[2steps]"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the directories of a run that learns and of one that does not, on the same builds."""
    root = tmp_path_factory.mktemp("runs")
    rates = {"learns": "optimizer.lr=0.02", "does_not": "optimizer.lr=1e-9"}
    return {name: runs.run("loadout", root / name, *SEVERAL, rate, "model.dropout=0") for name, rate in rates.items()}


def final(run):
    return {name.partition("/")[2]: value for name, value in runs.summary(run)["final"].items() if name.startswith("val/")}


def test_the_mean_of_each_column_is_the_metric(trained):
    rows, metrics = RunFiles(trained["learns"]).table("samples"), final(trained["learns"])
    columns = [name for name in rows[0] if name in metrics]
    assert {"loss", "slots_1", "slots_12", "references_6", "weapon_6", "gear_6", "points", "of_optimum_6", "margin_1"} <= set(columns)
    for name in columns:
        values = [float(row[name]) for row in rows if row[name] != ""]
        assert np.mean(values) == pytest.approx(metrics[name], rel=1e-12), name
    six = [int(row["right optimum"]) for row in rows if row["removed"] == "6"]
    assert np.mean(six) / 6 == pytest.approx(metrics["optimum/slots_6"]), "the right slots of the other methods"


def test_two_runs_are_compared_sample_by_sample(trained, tmp_path):
    compared = [RunFiles(trained[name]) for name in ("does_not", "learns")]
    first, other = Compared(compared).groups
    for metric, samples in (("loss", 12), ("points", 12), ("slots_6", 1), ("gear_6", 1), ("margin_6", 1)):
        found = PairedRows().difference(first, other, f"val/{metric}")
        assert found.samples == samples * len(compared[0].table("samples")) / 12 and found.low < found.value < found.high
        assert found.value == pytest.approx(final(trained["learns"])[metric] - final(trained["does_not"])[metric])
    assert PairedRows().difference(first, other, "val/loss").significant
    page = comparison_page(compared, tmp_path)
    assert "Paired by sample" in page and 'class="delta good"' in page


def test_builds_of_another_world_are_not_paired(trained, tmp_path):
    other = runs.run("loadout", tmp_path, *SEVERAL, "data.world=1")
    groups = Compared([RunFiles(trained["learns"]), RunFiles(other)]).groups
    assert PairedRows().difference(*groups, "val/loss").samples == 0


@pytest.mark.slow
def test_a_killed_run_has_the_table_of_the_run_that_was_not(tmp_path):
    whole, continued = runs.whole_and_continued(runs.configuration("loadout", tmp_path, *SEVERAL), 4)
    (first,), (second,) = (list(run.glob("validation/*/val-samples.csv")) for run in (whole, continued))
    assert first.read_bytes() == second.read_bytes() and first.parent.name == second.parent.name
