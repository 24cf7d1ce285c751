"""Runs with growing connections: invariants after every update, selected weights, rows, several processes.

Killed runs are in `tests/laws/test_continuation.py`."""

import contextlib
import functools
from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.optim.growth import Growth
from linnaeus.optim.growth_selection import unpack
from linnaeus.train import loop
from tests import runs, watching

GROWING = ["growth=linear", "growth.start=0.1", "growth.end=0.9", "growth.begin=2steps", "growth.until=10steps", "growth.every=[3steps]"]
GROWING += ["trainer.length=12steps", "trainer.max_grad_norm=0.5", "trainer.ema_decay=0.9", "schedule.best_monitor=val_ema/loss"]
GROWING += ["optimizer.weight_decay=0.5", "schedule.checkpoint=[2steps]", "schedule.validate=[6steps]", "lr_scheduler.warmup=0steps"]
F64 = ["trainer.precision=float64", "trainer.deterministic=true"]
SIZES = {"trunk.0.weight": 192, "trunk.3.weight": 1024}  # of the workload vectors


def wanted(size: int, step: int) -> int:
    """Return the scheduled number of connected weights: from 0.1 at step 2 to 0.9 at step 10, every 3 steps and at step 10."""
    grown = 10 if step >= 10 else step // 3 * 3
    return round((0.1 + 0.8 * min(max(grown - 2, 0) / 8, 1)) * size)


@contextlib.contextmanager
def observed_after_updates(observe: Any) -> Iterator[list[Any]]:
    """Collect `observe(training)` after every update."""
    original, found = loop.train_one_step, []

    def train_one_step(t: Any, window: Any) -> None:
        original(t, window)
        found.append(observe(t))

    with mock.patch.object(loop, "train_one_step", train_one_step):
        yield found


def invariants(t: Any) -> dict[str, float]:
    """Check the invariants of growth. Return the values that the row must contain."""
    parameters, state, averages = dict(t.model.named_parameters()), t.optimizers.state_dict()["state"], t.ema.averaged()
    assert [m.name for m in t.growth.masked] == t.model.maskable_parameters()
    connected = 0
    for m in t.growth.masked:
        mask, p = m.mask.bool(), parameters[m.name]
        assert int(mask.sum()) == wanted(p.numel(), t.progress.global_step), m.name
        connected += int(mask.sum())
        for tensor in (p, p.grad, averages[m.name], *(kept for kept in state[m.name].values() if kept.dim())):
            assert tensor.shape == p.shape and (tensor[~mask] == 0).all(), m.name
    total, size = sum(p.numel() for p in parameters.values()), sum(m.mask.numel() for m in t.growth.masked)
    return {
        "growth/density": connected / size,
        "growth/active_parameters": total - size + connected,
        "growth/connected_now": connected,
    }


ADAMW, UNFUSED, SGD = "optimizer=adamw", "optimizer=adamw optimizer.fused=false", "optimizer=sgd"
PAIRS = [("vectors", "gradient", ADAMW), ("language", "random", ADAMW), ("vectors", "random", SGD), ("language", "gradient", SGD)]
OTHERS = [triple for triple in product(["vectors", "language"], ["gradient", "random"], [ADAMW, UNFUSED, SGD]) if triple not in PAIRS]


@pytest.mark.parametrize("workload, by, optimizer", [*PAIRS, *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)])
def test_invariants_and_rows_after_every_update(tmp_path, workload, by, optimizer):
    with observed_after_updates(invariants) as found:
        run = runs.run(workload, tmp_path, *GROWING, f"growth.by={by}", *optimizer.split())
    rows = {row["global_step"]: row for row in runs.rows(run / "metrics.jsonl") if "train/loss" in row}
    assert [{name: rows[step][name] for name in found[0]} for step in range(1, 13)] == found
    densities = [row["growth/density"] for row in found]
    assert densities[0] == pytest.approx(0.1, abs=1e-3) and densities[-1] == pytest.approx(0.9, abs=1e-3)
    assert sorted(set(densities)) == list(dict.fromkeys(densities)) and len(set(densities)) == 5, "3, 6, 9 and 10"
    checkpoint = runs.newest(run)
    for name, packed in checkpoint.training_state["growth"]["masks"].items():
        weights = checkpoint.model_state[name]
        mask = unpack(packed, weights.shape)
        assert packed.numel() == -(-weights.numel() // 8) and int(mask.sum()) == wanted(weights.numel(), 12)
        assert (weights[~mask] == 0).all() and (checkpoint.ema_state[name][~mask] == 0).all()


@pytest.mark.parametrize("growing", [True, False])
def test_active_parameters_are_trained_and_connected(tmp_path, growing):
    """Frozen weights are neither masked nor counted as active. Rows and reports have the same count."""
    more = GROWING if growing else GROWING[6:]
    more = [*more, "trainer.freeze=[trunk.0]", "schedule.report=[3steps]", "schedule.validate=[]", "schedule.validate_at_end=false"]
    run = runs.run("vectors", tmp_path, *more)
    weights = runs.newest(run).model_state
    active = sum(tensor.numel() for name, tensor in weights.items() if not name.startswith("trunk.0."))
    found = {row["global_step"]: row["model/active_parameters"] for row in runs.rows(run / "reports.jsonl")}
    if not growing:
        assert set(found.values()) == {active} and "growth" not in runs.newest(run).training_state
        assert not any(name.startswith("growth") for row in runs.rows(run / "metrics.jsonl") for name in row)
        return
    size = SIZES["trunk.3.weight"]
    assert set(runs.newest(run).training_state["growth"]["masks"]) == {"trunk.3.weight"}
    assert found == {step: active - size + wanted(size, step) for step in (0, 3, 6, 9, 12)}
    rows = {row["global_step"]: row["growth/active_parameters"] for row in runs.rows(run / "metrics.jsonl")}
    assert all(rows[step] == found[step] for step in (3, 6, 9, 12))


@pytest.mark.parametrize("workload", ["vectors", "language"])
def test_weights_with_the_largest_gradients_of_the_update_are_connected(tmp_path, workload):
    """Reference by sorting. The gradient includes unconnected weights, before masking and clipping."""
    original, checked = Growth.connect, 0

    def connect(self: Growth, number: int, grads: Any) -> Any:
        nonlocal checked
        before = [(m, m.mask.bool().reshape(-1), grads[m.index].abs().reshape(-1)) for m in self.masked]
        result = original(self, number, grads)
        for m, connected, magnitudes in before:
            new = m.mask.bool().reshape(-1) & ~connected
            order = magnitudes.masked_fill(connected, -1.0).argsort(descending=True, stable=True)
            assert new.nonzero().flatten().tolist() == sorted(order[: int(new.sum())].tolist())
            checked += bool(new.any())
            assert number > 3 or float(magnitudes[~connected].max()) > 0, "unconnected weights have a gradient"
        return result

    with mock.patch.object(Growth, "connect", connect):
        runs.run(workload, tmp_path, *GROWING, "schedule.validate=[]")
    assert checked >= 8


# -- kills -----------------------------------------------------------------------------------------------------------------------


def test_negative_control_masks_that_are_not_loaded_are_detected(tmp_path):
    whole = runs.run("vectors", tmp_path / "whole", *GROWING)
    config = runs.configuration("vectors", tmp_path / "stopped", *GROWING)
    with watching.stopped_at(7):
        assert runs.start(config) == 75
    with mock.patch.object(Growth, "load_state_dict", lambda self, state: None):
        assert runs.start(config) == 0
    assert "model_state.trunk.3.weight" in runs.differences(whole, runs.run_path(config))


def test_a_warm_start_from_dense_weights_starts_sparse(tmp_path):
    dense = runs.run("vectors", tmp_path / "dense", "trainer.length=2steps")
    with observed_after_updates(invariants) as found:
        sparse = runs.run("vectors", tmp_path / "sparse", *GROWING, f"run.init_from={dense}")
    assert len(found) == 12
    lost = sum(size - wanted(size, 0) for size in SIZES.values())
    assert f"growth: {lost:,} of these weights are not connected" in (sparse / "train.log").read_text()


def test_a_longer_growth_of_a_resumed_run_removes_no_connections(tmp_path):
    """`run.allow=[growth]`: while the new ramp has fewer connected weights than the run, the number does not change."""
    config = runs.configuration("vectors", tmp_path, *GROWING)
    with watching.stopped_at(6):
        assert runs.start(config) == 75
    observed = observed_after_updates(lambda t: t.growth.row()["growth/density"])
    with observed as densities:
        slower = ["growth.until=12steps", "growth.start=0.05", "growth.every=[1steps]", "run.allow=[growth]"]
        assert runs.start(runs.configuration("vectors", tmp_path, *GROWING, *slower)) == 0
    assert len(densities) == 6 and densities == sorted(densities) and densities[-1] == pytest.approx(0.9, abs=1e-3)


# -- several processes -----------------------------------------------------------------------------------------------------------

JOBS = {
    "vectors": [*GROWING, *F64, "trainer.global_batch_size=16", "trainer.micro_batch_size=4"],
    "random": [*GROWING, *F64, "growth.by=random", "optimizer=sgd"],
    "language": [*GROWING, *F64],
}


QUICK = ("vectors", "random")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return a function from "quick" or "slow" to the root of runs, in <processes>/<job>."""

    def job(name, folder, processes):
        return runs.job("language" if name == "language" else "vectors", folder, *JOBS[name], watch=["masks_of_each_rank"])

    @functools.cache
    def of(speed):
        names = [name for name in JOBS if (name in QUICK) == (speed == "quick")]
        return runs.run_on_one_and_two(tmp_path_factory.mktemp("processes"), names, job)

    return of


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in JOBS])
def test_two_processes_grow_like_one(results, name):
    results = results("quick" if name in QUICK else "slow")
    histories = [torch.load(path) for path in sorted(results.glob(f"*/{name}/masks-rank*.pt"))]
    assert len(histories) == 3 and len(histories[0]) == 12
    assert runs.unequal(histories[0], histories[1]) == runs.unequal(histories[0], histories[2]) == []
    one, two = (runs.newest(next((results / processes / name).glob("*/run"))) for processes in "12")
    for part in ("model_state", "ema_state"):
        for key, tensor in getattr(one, part).items():
            distance = (tensor - getattr(two, part)[key]).abs().max() / tensor.abs().max()
            assert tensor.dtype == torch.float64 and float(distance) < 1e-10, key


# -- errors ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workload, more, message",
    [
        ("vectors", ["growth.end=1.5"], "growth.end is 1.5; it must be at most 1"),
        ("vectors", ["growth.start=1"], "growth.start is 1.0; it must be less than 1"),
        ("vectors", ["growth.start=0"], "growth.start is 0.0; it must be more than 0"),
        ("vectors", ["growth.start=0.5", "growth.end=0.2"], "growth.end=0.2 is less than growth.start=0.5; connections are never removed"),
        ("vectors", ["growth.begin=50%", "growth.until=10%"], "growth.until=10% (step 2) comes before growth.begin=50% (step 6)"),
        ("vectors", ["growth.begin=0%", "growth.until=0%"], "growth.until=0% is step 0, before the first update"),
        ("vectors", ["growth.every=[5min]"], "growth.every is 5min; a time cannot be converted to steps"),
        ("vectors", ["growth.start=0.0001"], "growth.start=0.0001 connects none of the 192 weights of trunk.0.weight"),
        ("vectors", ["optimizer=muon"], "muon may change unconnected weights of trunk.0.weight"),
        ("vectors", ["trainer.freeze=[trunk.0,trunk.3]"], "growth=linear: all maskable parameters are frozen"),
        ("biota", [], "growth=linear: this model does not support growth"),
    ],
)
def test_impossible_growth_raises_one_line(tmp_path, workload, more, message):
    with pytest.raises(ConfigError) as caught:
        runs.start(runs.configuration(workload, tmp_path, "growth=linear", "trainer.length=12steps", "schedule.validate=[]", *more))
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("config.yaml")), "nothing was written"


def test_the_plan_lists_steps_and_densities(tmp_path):
    run = runs.run(
        "vectors", tmp_path, *GROWING, "schedule.validate=[]", "schedule.validate_at_end=false", "schedule.early_stop.max_steps=8"
    )
    text = (run / "schedule.txt").read_text()
    assert "2 times: 3, 6  (every 3steps)" in text and "0.1 -> 0.9, from step 2 to step 10" in text
    assert "growth\n  connected weights  " in text and "probabilities" not in text, "no probabilities in this workload"
    assert "connected weights" in (run / "schedule.svg").read_text()
    assert "1,216 weights of 2 matrices, 121 of them connected at the start" in (run / "train.log").read_text()
    note = "  note: growth: the ramp ends at step 10, after the last step 8, and reaches 0.5"  # 6 is the last update that connects any
    assert note in text.splitlines() and runs.rows(run / "metrics.jsonl")[-1]["growth/density"] == 0.5
