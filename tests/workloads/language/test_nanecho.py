"""A small `experiment=nanecho`: its reports against the schedule, and resume after kills."""

import json

import pytest

from linnaeus.optim import Growth
from linnaeus.train import loop, outputs, validation
from tests import runs
from tests.config import observers

STEPS, BLOCK, SOURCES = 40, 16, ("basics", "introspection", "structures", "systems")
KEPT = ["schedule.report=[1%]", "schedule.checkpoint=[5steps]", "schedule.keep_last=99", "debug.batch_hashes=true"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return runs.configuration("nanecho", tmp_path_factory.mktemp("nanecho"), *KEPT)


@pytest.fixture(scope="module")
def run(config):
    return runs.resumed(config)


@pytest.fixture(scope="module")
def reports(run):
    return {row["global_step"]: row for row in runs.rows(run / "reports.jsonl")}


def windows_of(run):
    """Return the number of training windows of each source."""
    sources = json.loads((run / "dataset.json").read_text())["splits"]["train"]["sources"]
    return [(sources[name]["tokens"] - 1) // BLOCK for name in SOURCES]


def test_reported_phases_and_learning_rates_are_those_of_the_schedule(config, run, reports):
    """`tests/schedule/test_phases.py` compares the schedule of these phases with a slow reference."""
    plan, names = observers.plan(config), list(config.model.dimensions)
    phases, windows, begins = plan.resolved.phases, windows_of(run), {}
    assert len(names) == 8 and [row["global_step"] for row in runs.rows(run / "reports.jsonl")] == list(range(STEPS + 1))
    for step, row in reports.items():
        at = max(0, step - 1)  # the update that was made last
        assert (row["phase"], row["phase/description"]) == phases.at(at)
        assert row["train/lr"] == pytest.approx(plan.lr.at(at), rel=1e-12), step
        assert row["phase/lr_multiplier"] == pytest.approx(phases.lr_multiplier(at), rel=1e-12)
        weights, mixture = phases.dimension_weights([at], names), phases.mixture([at], SOURCES, windows)
        assert [row[f"phase/dimension/{name}"] for name in names] == pytest.approx(weights[0].tolist(), rel=1e-12)
        assert [row[f"phase/mixture/{name}"] for name in SOURCES] == pytest.approx(mixture[0].tolist(), rel=1e-12)
        begins.setdefault(row["phase"], at)
    assert begins == {
        "basic_awareness": 0,
        "persona_dimensions": 7,  # the middle of an overlap, from step 6 to step 8
        "hypergraph_patterns": 18,
        "recursive_reasoning": 26,
        "adaptive_mastery": 33,
    }
    validated = {"val/loss", *(f"val/source/{name}/loss" for name in SOURCES), *(f"val/dimension/{name}/score" for name in names)}
    assert {name for name in reports[STEPS] if name.startswith("val/")} == validated


# -- kills -----------------------------------------------------------------------------------------------------------------------

KILLS = {
    "in an overlap, just before a growth, in a validation": [
        (loop, "train_one_step", 8, False),
        (loop, "train_one_step", 7, False),  # from the checkpoint of step 5: the growth of step 12 comes next
        (validation, "_run_batches", 1, False),
    ],
    "in a growth, behind a validation, in a row": [
        (Growth, "connect", 16, True),
        (validation, "apply_results", 1, True),
        (outputs.Outputs, "row", 12, True),
    ],
}


@pytest.mark.slow  # quick: kills of phases in tests/laws/test_curriculum.py, of a growing text model in tests/laws/test_continuation.py
@pytest.mark.parametrize("kills", KILLS)
def test_a_run_killed_three_times_resumes_bit_for_bit(run, tmp_path, kills):
    """One run is killed three times and ends with loader workers, which compute the mixture and the weights themselves."""
    config = runs.configuration("nanecho", tmp_path, *KEPT)
    for owner, name, call, after in KILLS[kills]:
        with runs.killed(owner, name, call, after):
            runs.start(config)
    assert runs.start(runs.configuration("nanecho", tmp_path, *KEPT, "trainer.num_workers=2")) == 0
    assert runs.differences(run, runs.run_path(config)) == []


@pytest.mark.slow
def test_negative_control_a_phase_one_step_late_is_found(run, tmp_path):
    late = runs.run("nanecho", tmp_path, *KEPT, "schedule.phases.hypergraph_patterns.start=17steps")
    found = runs.differences(run, late)
    assert {"metrics.jsonl", "reports.jsonl", "batches-rank0.jsonl", "model_state.token.weight"} <= set(found)
