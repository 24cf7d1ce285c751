"""Tables of the newest validation exist during a run and after a kill, and are at the end those of an unbroken run."""

from pathlib import Path

import pytest

from linnaeus.commands.report import main
from linnaeus.train import validation
from linnaeus.train.outputs import Outputs
from tests import runs

MORE = ["data.validation_samples=40", "trainer.length=6steps", "schedule.validate=[2steps]"]
MORE += ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]", "schedule.all_combinations_at_end=false"]
SMALL = {"val-classes.csv", "val-confusions.csv", "val-reliability.csv", "val-baselines.csv"}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.run("biota", tmp_path_factory.mktemp("unbroken"), *MORE)


def tables(run: Path) -> dict[str, bytes]:
    """Return {path below validation/: content} of the tables of a run."""
    return {str(path.relative_to(run / "validation")): path.read_bytes() for path in run.glob("validation/*/*.csv")}


def test_the_tables_are_those_of_the_last_validation_alone(unbroken: Path) -> None:
    names = SMALL | {"val-samples.csv"}
    assert tables(unbroken).keys() == {f"step-00000006/{name}" for name in names}
    assert len(list(unbroken.glob("validation/*/val.json"))) == 3


KILLS = [(Outputs, "write_tables"), (Outputs, "write_validation"), (validation, "apply_results")]


@pytest.mark.slow
@pytest.mark.parametrize("owner, name", KILLS)
def test_a_killed_run_has_the_tables_of_its_newest_validation(unbroken: Path, tmp_path: Path, owner: object, name: str) -> None:
    """Kill it in its second validation: after the tables, after the result, and after the results are applied."""
    config = runs.configuration("biota", tmp_path, *MORE)
    run = runs.run_path(config)
    with runs.killed(owner, name, 2, after=True):
        runs.start(config)
    assert tables(run).keys() == {f"step-00000004/{table}" for table in SMALL}
    assert main([str(run)]) == 0
    page = (run / "report.html").read_text()
    for section in ("Confusions", "Tree", "Classes", "Confidence"):
        assert f">{section}</h2>" in page
    assert ">Photographs</h2>" not in page and "Never right" in page
    assert runs.start(config) == 0
    assert tables(run) == tables(unbroken) and runs.differences(unbroken, run) == []


@pytest.mark.slow
def test_the_tables_of_a_finished_run_stay_when_it_is_extended(tmp_path: Path) -> None:
    run = runs.run("biota", tmp_path, *MORE)
    before = tables(run)
    runs.run("biota", tmp_path, *MORE, "trainer.length=8steps", "run.allow=[trainer.length]")
    after = tables(run)
    assert before.items() < after.items() and after.keys() - before.keys() == {name.replace("06/", "08/") for name in before}
