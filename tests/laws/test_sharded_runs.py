"""A head whose classes are divided over processes (`head.sharded`): law 2 and 3 hold as for the replicated head, checkpoints are whole, and
what an update sends does not depend on the number of taxa.

The runs of one process have the replicated head, as `head.sharded=true` with one process does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import runs
from tests.laws.test_factorisation import distance, losses, parameters

# 85 samples in global batches of 24: the micro-batches of the fourth update have 4, 4, 4, 1, 0 and 0 samples. 13 validation samples in
# batches of 5: in the last round one process has a batch.
PLAIN = ["trainer.precision=float64", "trainer.length=5steps", "trainer.global_batch_size=24", "trainer.micro_batch_size=4"]
PLAIN += ["trainer.ema_decay=0.9", "trainer.max_grad_norm=0.5", "weighting=gradnorm", "weighting.every=[2steps]"]
PLAIN += ["schedule.best_monitor=val_ema/loss", "schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]"]
SETTINGS = [*PLAIN, "head.nulls=phase_in", "schedule.null_mask_prob.start=0.5"]
MARGINAL = [*SETTINGS, "head=marginal", "loss=conditional", "trainer.length=3steps", "trainer.global_batch_size=16"]
CONDITIONAL = [*SETTINGS, "head=conditional", "loss=conditional"]
SHARDED = [*CONDITIONAL, "head.sharded=true"]
PROBE = [*(text for text in PLAIN if not text.startswith("weighting")), "trainer.freeze=[trunk,norm]", "trainer.length=2steps"]
CHAIN = [(1, CONDITIONAL, 1), (2, SHARDED, 3), (3, SHARDED, 4), (1, CONDITIONAL, None)]
COUNTED = ["trainer.length=1steps", "trainer.global_batch_size=8", "trainer.deterministic=true", "weighting.every=[1steps]"]
COUNTED += ["schedule.validate=[]", "schedule.validate_at_end=false", "schedule.checkpoint_at_end=false"]
COUNTED += ["schedule.mixup_prob.start=0", "schedule.mixup_prob.end=0"]
TAXA = {"few": "data.ranks=[order,family]", "many": "data.ranks=[genus,species]"}  # 20 and 160 taxa
RUN = "biota/run"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """root / marginal-<processes>: runs with the marginal head; <few or many>-<head>: runs of 2 processes whose bytes are counted."""
    root = tmp_path_factory.mktemp("sharded")
    two = [runs.job("biota", root / "marginal-2", *MARGINAL, "head.sharded=true")]
    for name, taxa in TAXA.items():
        for head in ("false", "true"):
            settings = [*PLAIN, *COUNTED, taxa, f"head.sharded={head}"]
            two.append(runs.job("biota", root / f"{name}-{head}", *settings, watch=["bytes_of_updates"]))
    runs.run_jobs(1, [runs.job("biota", root / "marginal-1", *MARGINAL)], root)
    runs.run_jobs(2, two, root)
    return root


@pytest.fixture(scope="module")
def probes(tmp_path_factory):
    """root / probe-<processes>: runs in which only the head is trained."""
    root = tmp_path_factory.mktemp("probes")
    runs.run_jobs(1, [runs.job("biota", root / "probe-1", *PROBE)], root)
    runs.run_jobs(2, [runs.job("biota", root / "probe-2", *PROBE, "head.sharded=true")], root)
    return root


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """root / one: the run of one process with the conditional head; chain: the run that goes from 1 process with the replicated head to 2
    and 3 with the sharded one, and back to 1."""
    root = tmp_path_factory.mktemp("changed")
    runs.run_jobs(1, [runs.job("biota", root / "one", *CONDITIONAL)], root)
    for processes, settings, stop in CHAIN:
        runs.run_jobs(processes, [runs.job("biota", root / "chain", *settings, stop=stop)], root)
    return root


def test_a_run_equals_that_of_the_replicated_head(results):
    check_equal(results / "marginal-1", results / "marginal-2")


@pytest.mark.slow
def test_a_run_that_trains_the_head_alone_equals_that_of_the_replicated_head(probes):
    check_equal(probes / "probe-1", probes / "probe-2")


@pytest.mark.slow
def test_a_run_that_changes_its_processes_and_its_head_equals_that_of_the_replicated_head(changed):
    check_equal(changed / "one", changed / "chain")
    text = (changed / "chain" / RUN / "train.log").read_text()
    assert "2 processes now, 1 when the checkpoint was written" in text and "1 process now, 3 when" in text


def check_equal(one: Path, other: Path) -> None:
    """Check losses, gradient norms and accuracies of every update and validation; weights, averages and moments in the last checkpoint."""
    assert distance(losses(one, "biota"), losses(other, "biota")) < 1e-10
    assert distance(parameters(one, "biota"), parameters(other, "biota")) < 1e-10
    a, b = (runs.newest(folder / RUN) for folder in (one, other))
    for key, average in a.ema_state.items():
        assert average.shape == b.ema_state[key].shape and (average - b.ema_state[key]).abs().max() < 1e-10, key
    moments = [checkpoint.training_state["optimizers"]["state"] for checkpoint in (a, b)]
    for key, state in moments[0].items():
        assert distance(state["exp_avg"], moments[1][key]["exp_avg"]) < 1e-8, key
        assert state["exp_avg_sq"].shape == moments[1][key]["exp_avg_sq"].shape and state["step"] == moments[1][key]["step"]
    for row, own in zip(*(runs.rows(folder / RUN / "metrics.jsonl") for folder in (one, other)), strict=True):
        assert row.keys() == own.keys()
        compared = {key: value for key, value in row.items() if "update_ratio" not in key}  # which leaves out the sharded head
        assert [key for key, value in compared.items() if value is not own[key] and abs(value - own[key]) > 1e-9 * max(abs(value), 1)] == []
    assert any(row.get("train/clip_rate") for row in runs.rows(one / RUN / "metrics.jsonl")), "no update was clipped"


def test_checkpoints_are_whole(results):
    shapes = [{key: list(t.shape) for key, t in runs.newest(results / f"marginal-{p}" / RUN).model_state.items()} for p in (1, 2)]
    assert runs.unequal(*shapes) == []
    counts = {row["model/parameters"] for p in (1, 2) for row in runs.rows(results / f"marginal-{p}" / RUN / "reports.jsonl")}
    assert len(counts) == 1, "reports state the number of parameters of all processes"


def test_bytes_of_an_update_do_not_depend_on_the_number_of_taxa(results):
    """Negative control: those of the replicated head grow by the gradients of its weights and biases, float64."""
    sent = {path.name: [json.loads((path / f"bytes-rank{r}.json").read_text()) for r in range(2)] for path in results.glob("*-[tf]*")}
    assert sent["few-true"] == sent["many-true"] and all(len(updates) == 1 for updates in sent["few-true"])
    width = runs.newest(results / "marginal-1" / RUN).model_state["head.leaves.weight"].shape[1]
    for few, many in zip(sent["few-false"][0], sent["many-false"][0], strict=True):
        assert sum(many.values()) - sum(few.values()) == 8 * (160 - 20) * (width + 1)
