"""Law 3, and what else several processes must do alike: exact validation, an update skipped by all, the same collectives.

One group of two processes starts up once and runs all its jobs in turn; runs of one process happen here. Slow: all that needs four
processes, a run of four that is stopped, and a run that goes from one process to two and four.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from linnaeus.train import validation
from tests import runs

F64 = ["trainer.precision=float64", "trainer.length=1epochs"]
NORMAL = ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]"]  # the other passes: PENDING and "masked"
GRADNORM = ["weighting=gradnorm", "weighting.every=[3steps]", "trainer.ema_decay=0.99", "schedule.best_monitor=val_ema/loss"]
F32 = ["trainer.length=3steps", "debug.batch_hashes=true", "head.nulls=phase_in", "schedule.null_mask_prob.start=0.8", *NORMAL]
FP16 = ["trainer.precision=fp16", "trainer.length=6steps", "trainer.micro_batch_size=16", "trainer.ema_decay=0.9"]
FP16 += ["schedule.best_monitor=val_ema/loss"]
CONTINUED = ["trainer.length=10steps", "trainer.deterministic=true", "schedule.checkpoint=[4steps]", "schedule.log=[3steps]"]
CONTINUED += ["schedule.validate=[5steps]", "debug.batch_hashes=true", *GRADNORM]
ANYWHERE = ["trainer.deterministic=anywhere", "trainer.threads=null", "trainer.length=3steps", "trainer.ema_decay=0.9"]
ANYWHERE += ["weighting=gradnorm", "weighting.every=[2steps]", "weighting.place=trunk", "schedule.best_monitor=val_ema/loss"]
ANYWHERE += ["head.nulls=phase_in", "schedule.null_mask_prob.start=0.5", "schedule.meta_mask_prob.start=0.4", "schedule.log=[2steps]"]
ANYWHERE += NORMAL
CHAIN = ["trainer.deterministic=anywhere", "trainer.length=10steps", "schedule.log=[4steps]", "schedule.validate=[3steps]"]
CHAIN += ["schedule.checkpoint=[5steps]", "model.dropout=0.2", *GRADNORM]
STOPPED = {1: 2, 2: 7, 4: None}  # number of processes -> step at which the run of CHAIN is interrupted
JOBS = {
    "f64": ("biota", [*F64, *NORMAL]),
    # The micro-batches of the third update have 5, 0, 0 and 0 samples: of two processes one has none.
    "masked": ("masked", [*F64, "model.batch_norm=false", "data.train_samples=69"]),
    "gradnorm": ("vectors", ["trainer.precision=float64", "trainer.length=8epochs", *GRADNORM]),
    "dictionary": ("planted", [*F64, "trainer.length=3epochs"]),
    "separate": ("biota", [*F64, *NORMAL, "model=timm", "model.backbone=test_vit", "model.fusion=separate"]),
    "f32": ("biota", F32),
}
FOUR = ("f64", "masked", "dictionary")  # jobs of four processes


def jobs_of(folder: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the jobs of `names` and the validation of `PENDING` in `folder`, at micro-batches of 8 throughout."""
    shutil.copytree(folder.parent / "pending", folder / "validation")
    jobs = [runs.job(JOBS[n][0], folder / n, *JOBS[n][1], watch=["first_gradients"]) for n in names]
    return [*jobs, runs.job("biota", folder / "validation", *PENDING, watch=["collectives"])]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """root / <processes> / <job>: the jobs on one process and on two."""
    root = tmp_path_factory.mktemp("factorisation")
    leave_validation_pending(root / "pending")
    for processes in (1, 2):
        folder = root / str(processes)
        jobs = jobs_of(folder, JOBS)
        # last, for determinism is a switch of the whole process
        jobs.append(runs.job("vectors", folder / "straight", *CHAIN))
        jobs.append(runs.job("biota", folder / "anywhere", *ANYWHERE))
        if processes == 1:
            jobs.append(runs.job("vectors", folder / "ordinary", *CHAIN, "trainer.deterministic=true"))
        else:
            jobs.insert(0, runs.job("vectors", folder / "fp16", *FP16, watch=["inf_on_one_rank"]))
        runs.run_jobs(processes, jobs, folder)
    return root


@pytest.fixture(scope="module")
def interrupted(results, tmp_path_factory):
    """root / whole and cut: a run of four processes and the same, stopped once. root / chain: a run of one, then two, then four.
    Add the jobs of four processes to `results`."""
    root, folder = tmp_path_factory.mktemp("interrupted"), results / "4"
    for processes, stop in STOPPED.items():
        jobs = jobs_of(folder, FOUR) if processes == 4 else []
        jobs.append(runs.job("vectors", root / "chain", *CHAIN, stop=stop))
        if processes == 4:
            jobs += [
                runs.job("vectors", folder / "straight", *CHAIN),
                runs.job("vectors", root / "whole", *CONTINUED),
                runs.job("vectors", root / "cut", *CONTINUED, watch=["one_rank_is_stopped"], status=75),
                runs.job("vectors", root / "cut", *CONTINUED),
            ]
        runs.run_jobs(processes, jobs, root)
    return root


def parameters(folder: Path, workload: str) -> torch.Tensor:
    state = runs.newest(folder / run_of(workload)).model_state
    return torch.cat([tensor.reshape(-1).double() for _, tensor in sorted(state.items())])


def run_of(workload: str) -> str:
    return f"{workload}/run"


def gradients(folder: Path) -> torch.Tensor:
    return torch.cat([g.reshape(-1).double() for g in torch.load(folder / "gradients.pt")])


def losses(folder: Path, workload: str) -> torch.Tensor:
    """Every loss of every update and validation, [rows, losses]."""
    found = [[v for k, v in row.items() if k.endswith("loss")] for row in runs.rows(folder / run_of(workload) / "metrics.jsonl")]
    return torch.tensor([value for row in found for value in row], dtype=torch.float64)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference relative to the largest entry."""
    assert a.shape == b.shape and a.isfinite().all()
    return float((a - b).abs().max() / a.abs().max())


def check_equal(results: Path, name: str, processes: int) -> None:
    one, several = results / "1" / name, results / str(processes) / name
    assert distance(gradients(one), gradients(several)) < 1e-10
    assert distance(losses(one, JOBS[name][0]), losses(several, JOBS[name][0])) < 1e-10
    assert distance(parameters(one, JOBS[name][0]), parameters(several, JOBS[name][0])) < 1e-10


@pytest.mark.parametrize("name", [name for name in JOBS if name != "f32"])
def test_in_float64_a_whole_run_does_not_depend_on_the_split(results, name):
    check_equal(results, name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUR)
def test_in_float64_a_whole_run_does_not_depend_on_four_processes(results, interrupted, name):
    check_equal(results, name, 4)


def test_averages_and_task_weights_do_not_depend_on_the_split(results):
    one, two = (runs.newest(results / p / "gradnorm" / "vectors/run") for p in "12")
    for name, average in one.ema_state.items():
        assert distance(average.double(), two.ema_state[name].double()) < 1e-10, name
    weights = [found.training_state["weighting"]["weights"] for found in (one, two)]
    assert distance(*weights) < 1e-10
    assert distance(weights[0], torch.ones(2).double()) > 0.01, "GradNorm moved nothing"


def test_in_float32_first_gradients_and_losses_agree(results):
    one, two = results / "1" / "f32", results / "2" / "f32"
    assert distance(gradients(one), gradients(two)) < 1e-5
    assert distance(losses(one, "biota"), losses(two, "biota")) < 1e-3


def test_every_number_of_samples_agrees(results):
    seen = [[row.get("progress/samples_seen") for row in runs.rows(results / p / "masked/masked/run/metrics.jsonl")] for p in "12"]
    assert seen[0] == seen[1]
    assert [s for s in seen[0] if s][2] == 69  # the partial window counts what it has


def test_the_batches_of_all_processes_are_those_of_one(results):
    one = runs.rows(results / "1/f32/biota/run/batches-rank0.jsonl")
    two = [row for rank in range(2) for row in runs.rows(results / f"2/f32/biota/run/batches-rank{rank}.jsonl")]
    assert len(one) == 3 * 4
    assert sorted(two, key=lambda row: (row["global_step"], row["micro_batch"])) == one


def test_negative_control_own_denominators_break_the_law(results, tmp_path):
    """Normalising each micro-batch by its own labels is what most trainers do: partial windows and null labels show it."""
    wrong = runs.job("biota", tmp_path, *F64, "schedule.validate=[]", *NORMAL, watch=["first_gradients", "own_denominators"])
    runs.run_job(wrong)
    right = results / "1" / "f64"
    assert distance(gradients(right), gradients(tmp_path)) > 1e-4
    assert distance(losses(right, "biota")[:24], losses(tmp_path, "biota")[:24]) > 1e-4


def test_without_dropout_the_micro_batch_does_not_matter_either(tmp_path):
    """Dropout is keyed by micro-batch; without it any size gives the same updates, a whole global batch included. 37 samples: the second
    update has micro-batches of 5 and 0."""
    still = ["model.dropout=0", "model.drop_path=0", "trainer.precision=float64", "trainer.length=1epochs", "schedule.validate=[]", *NORMAL]
    found = []
    for micro in (32, 8):
        root = tmp_path / str(micro)
        root.mkdir()
        settings = [*still, "data.train_samples=37", "schedule.validate_at_end=false", f"trainer.micro_batch_size={micro}"]
        runs.run_job(runs.job("biota", root, *settings, watch=["first_gradients"]))
        found.append((gradients(root), parameters(root, "biota")))
    assert distance(found[0][0], found[1][0]) < 1e-10
    assert distance(found[0][1], found[1][1]) < 1e-10


# -- validation ------------------------------------------------------------------------------------------------------------------

PENDING = ["trainer.length=1steps", "schedule.all_combinations_at_end=true", "data.validation_batch=2"]


def leave_validation_pending(root: Path) -> None:
    """A run of one process that dies at its last step, with all validation passes of 13 samples pending."""
    with runs.killed(validation, "_run_batches", 1):
        runs.start(runs.configuration("biota", root, *PENDING))


def passes_of(results: Path, processes: str) -> dict[str, Any]:
    """Return {file: results} of the passes of the validation on `processes`."""
    folder = results / processes / "validation/biota/run/validation/step-00000001"
    return {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def test_validation_of_13_samples_is_the_same_to_the_last_digit(results):
    """The same weights, validated by one process and by two in seven batches of two."""
    one = passes_of(results, "1")
    assert len(one) == 8, "normal, all masked, and every proper combination of three components"
    assert json.dumps(passes_of(results, "2")) == json.dumps(one)
    metrics, masked = one["val.json"]["metrics"], one["val_mask_SPATIAL.json"]["metrics"]
    assert {"order/with_SPATIAL_top1"} == {k.partition("/")[2] for k in masked if "order/with_" in k and k.endswith("top1")}
    assert round(metrics["val/order/top1"] * 13, 9) == round(metrics["val/order/top1"] * 13), "13 samples, none padded, none twice"


@pytest.mark.slow
def test_validation_on_four_processes_is_the_same_to_the_last_digit(results, interrupted):
    assert json.dumps(passes_of(results, "4")) == json.dumps(passes_of(results, "1"))


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_processes_make_the_same_collectives(request, results, processes):
    if processes == 4:
        request.getfixturevalue("interrupted")
    calls = [(results / f"{processes}/validation" / f"calls-rank{r}.txt").read_text() for r in range(processes)]
    assert calls[0].count("all_reduce") > 8
    assert len(set(calls)) == 1


# -- a skipped update ------------------------------------------------------------------------------------------------------------


def test_an_inf_on_one_rank_skips_the_update_on_all(results):
    """fp16 with a scaled loss: same parameters on both, untouched by the third update; scale halved; one counter moves on."""
    histories = [torch.load(results / "2/fp16" / f"rank{r}.pt") for r in range(2)]
    assert runs.unequal(histories[0], histories[1]) == []
    second, third, fourth = histories[0][1:4]
    assert torch.equal(second["parameters"], third["parameters"])
    assert not torch.equal(third["parameters"], fourth["parameters"])
    assert [h["global_step"] for h in histories[0]] == [1, 2, 3, 4, 5, 6]
    assert [h["update"]["skipped_updates"] for h in histories[0]] == [0, 0, 1, 1, 1, 1]
    assert [h["update"]["skipped_in_a_row"] for h in histories[0]] == [0, 0, 1, 0, 0, 0]
    assert third["scale"]["scale"] == second["scale"]["scale"] / 2 == fourth["scale"]["scale"]
    assert third["ema"] == second["ema"] != fourth["ema"], "the average counts applied updates"
    logged = runs.rows(results / "2/fp16/vectors/run/metrics.jsonl")
    assert [row["train/skipped_updates"] for row in logged if "train/loss" in row] == [0, 0, 1, 1, 1, 1]
    (alarm,) = runs.alarms(results / "2/fp16/vectors/run")
    assert (alarm.kind, alarm.step, alarm.process_rank, alarm.sample_count) == ("not_finite", 3, 1, 5)  # of the 21 samples of a last window


# -- continuation of several processes ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_signal_to_one_of_four_processes_stops_all_and_the_run_goes_on_bit_for_bit(interrupted):
    """`trainer.deterministic` reduces in rank order: DDP changes its buckets after the first step, and with them the order of sums. Two
    processes: `test_stopping.py`."""
    whole, cut = (interrupted / name / "vectors/run" for name in ("whole", "cut"))
    assert len(list((cut / "launches").iterdir())) == 2
    assert "stopped at step 5" in (cut / "train.log").read_text()
    assert len(list(cut.glob("batches-rank*.jsonl"))) == 4
    assert runs.differences(whole, cut) == []


# -- the same bits on any number of processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, workload", [("straight", "vectors"), ("anywhere", "biota")])
def test_anywhere_all_files_of_a_run_are_the_same_on_two_processes(results, name, workload):
    """Dropout, drop-path, mixing, masking, null labels, GradNorm over the trunk, EMA, a partial last window with an empty micro-batch."""
    one, two = (results / number / name / workload / "run" for number in "12")
    assert runs.differences(one, two) == [] and runs.unequal_files(one, two) == []


@pytest.mark.slow
def test_anywhere_all_files_of_a_run_are_the_same_on_four_processes(results, interrupted):
    one, four = (results / number / "straight/vectors/run" for number in "14")
    assert runs.differences(one, four) == [] and runs.unequal_files(one, four) == []


@pytest.mark.slow
def test_anywhere_a_run_that_goes_from_1_to_2_to_4_processes_leaves_no_trace(results, interrupted):
    chain, straight = interrupted / "chain/vectors/run", results / "1/straight/vectors/run"
    text = (chain / "train.log").read_text()
    for now, before in ((2, 1), (4, 2)):
        assert f"{now} processes now, {before} when the checkpoint was written: the updates are the same bit for bit" in text
    assert "4 micro-batches of an update are summed in one tree, with the same bits on 1, 2 or 4 processes" in text
    assert "WARNING" not in text
    assert runs.differences(straight, chain) == [] and runs.unequal_files(straight, chain) == []


def test_anywhere_negative_control_the_ordinary_order_gives_other_bits(results):
    ordinary, anywhere = (results / "1" / name / "vectors/run" for name in ("ordinary", "straight"))
    assert "model_state.trunk.3.weight" in runs.differences(ordinary, anywhere)
    assert "checkpoints/step-00000010/model.safetensors" in runs.unequal_files(ordinary, anywhere)
    two, one = (results / number / "f32/biota/run" for number in ("2", "1"))
    assert len(runs.differences(one, two)) > 100
