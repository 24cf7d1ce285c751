"""Sections of report.html of every workload of this program: their figures are those of summary.json, and they need no data."""

from pathlib import Path

import pytest

from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.reporting.report.run_report import report_page
from linnaeus.reporting.results import write_summary
from linnaeus.workloads import report_sections
from tests.reporting.test_html_report import Checker

FINAL = {
    "taxonomy": {
        "val/order/top1": 0.9,
        "val/species/top1": 0.5,
        "val/species/ece": 0.1,
        "val/loss": 1.5,
        "val_mask_meta/species/top1": 0.4,
    },
    "language": {"val/loss": 2.0, "val/perplexity": 7.389, "val/top1": 0.4, "val/source/a/loss": 1.9, "val/dimension/x/score": 0.01},
    "loadout": {
        **{f"val/{kind}{k}": k / 10 for kind in ("slots_", "baseline/weapon/slots_", "optimum/slots_") for k in range(1, 7)},
        "val/f1": 0.7,
        "val/legal": 1.0,
    },
    "dictionary": {f"val/{name}/{metric}": 0.25 for name in ("a", "b") for metric in ("l0", "explained_variance", "dead")},
}
SHOWN_IN_SECTIONS = {"taxonomy": "val/species/top1", "language": "val/dimension/x/score", "loadout": "val/optimum/slots_6"}


@pytest.mark.parametrize("workload", FINAL)
def test_the_figures_are_those_of_the_summary(workload: str, tmp_path: Path) -> None:
    final = FINAL[workload]
    write_summary(tmp_path / "summary.json", "finished", 10, final=final)
    run = RunFiles(tmp_path)
    sections = report_sections(workload, run)
    assert sections[0].lead and sections[0].title == "Summary"
    own, whole = Checker(), Checker()
    own.feed("".join(section.html(i) for i, section in enumerate(sections)))
    whole.feed(report_page(run, sections))
    assert own.open == whole.open == [] and len(own.values) >= 3
    assert SHOWN_IN_SECTIONS.get(workload, "val/b/dead") in dict(own.values)
    for key, exact in whole.values:
        assert (float(exact) if exact else None) == final.get(key), key


@pytest.mark.parametrize("workload", FINAL)
def test_before_the_first_validation_there_are_no_sections(workload: str, tmp_path: Path) -> None:
    assert report_sections(workload, RunFiles(tmp_path)) == []
