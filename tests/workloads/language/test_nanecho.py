"""A small `experiment=nanecho`: its reports against its files and independent code, and resume after kills."""

import json
from collections import Counter

import numpy as np
import pytest

from linnaeus.checkpoint import list_checkpoints, load_checkpoint
from linnaeus.optim import Growth
from linnaeus.train import loop, outputs, validation
from tests import runs
from tests.config import observers

STEPS, BATCH, BLOCK, SOURCES = 40, 8, 16, ("basics", "introspection", "structures", "systems")
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


def test_reported_counts_equal_those_of_the_checkpoints(run, reports):
    checkpoints = dict(list_checkpoints(run / "checkpoints"))
    assert sorted(checkpoints) == [*range(5, STEPS + 1, 5)]
    densities = []
    for step, path in checkpoints.items():
        saved, row = load_checkpoint(path), reports[step]
        masks = {
            name: np.unpackbits(packed.numpy(), bitorder="little")[: saved.model_state[name].numel()]
            for name, packed in saved.training_state["growth"]["masks"].items()
        }
        size, connected = sum(mask.size for mask in masks.values()), int(sum(mask.sum() for mask in masks.values()))
        total = sum(tensor.numel() for tensor in saved.model_state.values())
        assert row["growth/density"] == connected / size and row["growth/connected_now"] == connected
        assert row["model/active_parameters"] == total - size + connected and row["model/parameters"] == total
        unused = sum(int((saved.model_state[name].numpy().reshape(-1)[mask == 0] != 0).sum()) for name, mask in masks.items())
        assert unused == 0 and any(".dimensions." in name for name in masks)
        windows = step * BATCH  # the last of each source is cut short by its end
        assert windows == saved.state["progress"]["samples_seen"] == row["progress/samples_seen"]
        assert 0.97 * windows * BLOCK < row["progress/tokens_seen"] == saved.state["progress"]["units_seen"] <= windows * BLOCK
        grown = min(20, step // 4 * 4)  # every 4 steps up to half of the run
        assert connected == sum(round((0.1 + 0.9 * grown / 20) * mask.size) for mask in masks.values())
        densities.append(row["growth/density"])
    assert densities[0] == pytest.approx(0.28, abs=1e-3) and densities[4:] == [1.0] * 4, "dense from step 20 on"


def test_samples_come_from_the_sources_of_their_phase(run):
    drawn = {}
    for row in runs.rows(run / "batches-rank0.jsonl"):
        drawn.setdefault(row["global_step"] - 1, Counter()).update(name.split("/")[0] for name in row["samples"])
    assert sorted(drawn) == list(range(STEPS))
    together = lambda steps: sum((drawn[step] for step in steps), Counter())
    assert set(together(range(0, 6))) == {"basics"}
    assert set(together(range(8, 16))) == {"basics", "introspection"}
    assert set(together(range(20, 24))) == {"basics", "introspection", "structures"}


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


@pytest.mark.parametrize("kills", KILLS)
def test_a_run_killed_three_times_resumes_bit_for_bit(run, tmp_path, kills):
    """One run is killed three times and ends with loader workers, which compute the mixture and the weights themselves."""
    config = runs.configuration("nanecho", tmp_path, *KEPT)
    for owner, name, call, after in KILLS[kills]:
        with runs.killed(owner, name, call, after):
            runs.start(config)
    assert runs.start(runs.configuration("nanecho", tmp_path, *KEPT, "trainer.num_workers=2")) == 0
    assert runs.differences(run, runs.run_path(config)) == []


def test_negative_control_a_phase_one_step_late_is_found(run, tmp_path):
    late = runs.run("nanecho", tmp_path, *KEPT, "schedule.phases.hypergraph_patterns.start=17steps")
    found = runs.differences(run, late)
    assert {"metrics.jsonl", "reports.jsonl", "batches-rank0.jsonl", "model_state.token.weight"} <= set(found)
