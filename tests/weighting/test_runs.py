"""Runs with every weighting: two processes equal one, measuring changes no gradient.

Killed runs are in `tests/laws/test_continuation.py`."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from linnaeus.errors import ConfigError
from linnaeus.optim.update import Precision
from linnaeus.train import loop
from linnaeus.train.building import compiling
from linnaeus.weighting import FAMO
from linnaeus.workloads.base import Workload
from tests import runs
from tests.laws.test_factorisation import distance, gradients, losses, parameters
from tests.vectors import workload
from tests.vectors.workload import MLP, VectorsWorkload

WEIGHTINGS = {
    **{name: [f"weighting={name}"] for name in ("gradnorm", "uncertainty", "dwa", "famo", "surgery")},
    **{place: ["weighting=gradnorm", f"weighting.place={place}", "weighting.every=[3steps]"] for place in ("features", "trunk")},
}
COUNTED: list[int] = []
LENGTH = ["trainer.length=12steps", "schedule.log=[5steps]", "schedule.validate=[]", "schedule.best_monitor=val/loss"]


# -- resume of the conflict --------------------------------------------------------------------------------------------------------


def test_negative_control_a_conflict_that_is_not_loaded_is_detected(tmp_path):
    """It is measured at step 3, saved at step 4 and logged at step 5."""
    from linnaeus.weighting import GradientConflict

    options = [*LENGTH, "schedule.checkpoint=[4steps]", "weighting.conflict=[3steps]"]
    whole = runs.run("vectors", tmp_path / "whole", *options)
    with runs.killed(loop, "train_one_step", 5):
        runs.start(runs.configuration("vectors", tmp_path / "cut", *options))
    with mock.patch.object(GradientConflict, "load_state_dict", lambda self, state: None):
        cut = runs.run("vectors", tmp_path / "cut", *options)
    assert "metrics.jsonl" in runs.differences(whole, cut)


# -- other initial weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gradnorm", "uncertainty"])
def test_other_initial_weights_are_refused_if_they_would_have_no_effect(tmp_path, name):
    """Continue a run in its own directory, and from another run."""
    options = [f"weighting={name}", *LENGTH]
    run = runs.run("vectors", tmp_path, *options, "trainer.length=4steps")
    other = ["weighting.weights={first: 3}", "trainer.length=6steps"]
    for root, more in ((tmp_path, "run.allow=[weighting.weights,trainer.length]"), (tmp_path / "second", f"run.resume={run}")):
        with pytest.raises(ConfigError, match=r"^weighting\.weights=.*has no effect.*step-00000004; use weighting\.weights=\{\}"):
            runs.start(runs.configuration("vectors", root, *options, *other, more))
    assert not (tmp_path / "second").exists() and len(list((run / "launches").iterdir())) == 1


@pytest.mark.parametrize("name", ["fixed", "dwa", "famo", "surgery"])
def test_other_initial_weights_take_effect_at_once_or_later(tmp_path, name):
    """With a weight of 1000, nearly the whole sum of the weights is that of one task."""
    options = [f"weighting={name}", *LENGTH, "trainer.micro_batch_size=32"]
    runs.run("vectors", tmp_path, *options, "trainer.length=4steps")
    other = ["weighting.weights={first: 1000}", "trainer.length=15steps", "run.allow=[weighting.weights,trainer.length]"]
    run = runs.run("vectors", tmp_path, *options, *other)
    assert max(row.get("train/first/weight", 0) for row in runs.rows(run / "metrics.jsonl") if row["global_step"] == 15) > 1.9
    line = f"weighting.weights takes effect when weighting={name} next changes the task weights"
    assert (line in (run / "train.log").read_text()) == (name in ("dwa", "famo"))


# -- several processes ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return the root of the runs, in <processes>/<name>. No batch statistics: they depend on the split. Surgery has one micro-batch."""

    def job(name: str, folder: Path, processes: int) -> dict[str, Any]:
        surgery = [f"trainer.micro_batch_size={32 // processes}", "model.dropout=0"] if name == "surgery" else []
        more = ["trainer.precision=float64", "weighting.conflict=[4steps]", *surgery]
        return runs.job("vectors", folder, *LENGTH, *WEIGHTINGS[name], *more, watch=["first_gradients"])

    return runs.run_on_one_and_two(tmp_path_factory.mktemp("split"), WEIGHTINGS, job)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_two_processes_equal_one(split, name):
    one, two = split / "1" / name, split / "2" / name
    assert distance(gradients(one), gradients(two)) < 1e-10
    assert distance(parameters(one, "vectors"), parameters(two, "vectors")) < 1e-10
    assert distance(losses(one, "vectors"), losses(two, "vectors")) < 1e-10
    states = [runs.newest(folder / "vectors/run").training_state for folder in (one, two)]
    for part in ("weighting", "conflict"):
        for key, value in states[0][part].items():
            if isinstance(value, torch.Tensor):
                assert torch.allclose(value, states[1][part][key], rtol=1e-10, atol=1e-14, equal_nan=True), (part, key)
    rows = [runs.rows(folder / "vectors/run/metrics.jsonl") for folder in (one, two)]
    cosines, others = ([row.get("train/conflict/first/second", math.nan) for row in logged] for logged in rows)
    assert not all(map(math.isnan, cosines)) and cosines == pytest.approx(others, abs=1e-10, rel=0, nan_ok=True)


def test_negative_control_every_weighting_has_different_weights(split):
    """Weights that do not depend on the data would also agree between one and two processes."""
    found = {name: runs.newest(split / "1" / name / "vectors/run").training_state["weighting"]["weights"] for name in WEIGHTINGS}
    for name in WEIGHTINGS.keys() - {"surgery"}:  # its weights are those of the last update alone
        assert distance(found[name], torch.ones(2)) > 1e-5, f"the weights of {name} have not moved"
    assert len({str(weights.tolist()) for weights in found.values()}) == len(found)
    assert distance(found["gradnorm"], found["trunk"]) > 1e-6


# -- measuring does not change an update ---------------------------------------------------------------------------------------------

MEASURED = {
    "conflict": ["weighting.conflict=[1steps]"],
    **{
        place: ["weighting=gradnorm", f"weighting.place={place}", "weighting.every=[1steps]", "weighting.lr=1e-30"]
        for place in ("shared", "features", "trunk")
    },
}


def trained(root: Path, *options: str) -> tuple[dict, dict]:
    found = runs.newest(runs.run("vectors", root, *LENGTH, "model.batch_norm=true", "weighting.conflict=[]", *options))
    return found.model_state, found.training_state["optimizers"]


@contextlib.contextmanager
def compiled_without_inductor() -> Iterator[None]:
    """Compile autograd only: inductor takes a minute. Backwards donate their buffers, the default of torch; graphs that other tests have
    compiled are not used."""
    import torch._functorch.config as functorch

    compile_part = nn.Module.compile
    aot_eager = mock.patch.object(nn.Module, "compile", lambda part, **more: compile_part(part, backend="aot_eager", **more))
    torch._dynamo.reset()
    with functorch.patch(donated_buffer=True), aot_eager:
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", MEASURED)
def test_the_optimizer_sees_the_same_bits_with_and_without_measuring(tmp_path, plain, name):
    """Compare weights, moments and batch statistics at the end of a run."""
    assert runs.unequal(plain, trained(tmp_path, *MEASURED[name])) == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("plain"))


@pytest.mark.slow
def test_a_compiled_model_has_the_same_bits_too(tmp_path):
    with compiled_without_inductor():
        plain = trained(tmp_path / "plain", "trainer.compile=whole")
        for name in ("conflict", "trunk"):
            found = trained(tmp_path / name, "trainer.compile=whole", *MEASURED[name])
            assert runs.unequal(plain, found) == [], name


@pytest.mark.slow
def test_negative_control_measuring_fails_with_donated_buffers(tmp_path):
    """torch donates no buffers in a graph whose first backward keeps them, so the graph is compiled by a run without measuring."""
    nothing = mock.patch.object(compiling, "keep_compiled_graphs", lambda: None)
    with compiled_without_inductor(), nothing:
        trained(tmp_path / "plain", "trainer.compile=whole")
        with pytest.raises(RuntimeError, match="donated"):
            trained(tmp_path / "measured", "trainer.compile=whole", *MEASURED["trunk"])


def test_the_second_forward_changes_no_buffer_and_has_the_same_dropout(tmp_path):
    """A run with FAMO equals one without it until its weights move. If an update changes nothing, the losses after it are equal."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    original = FAMO.finish

    def finish(self, measured):
        seen.append((measured.loss_sums.clone(), measured.loss_sums_after.clone()))
        original(self, measured)

    famo = ["weighting=famo", "weighting.warmup=6steps", "trainer.length=6steps", "weighting.conflict=[]"]
    with mock.patch.object(FAMO, "finish", finish):
        measured = trained(tmp_path / "famo", *famo)
        plain = trained(tmp_path / "plain", *famo[2:])
        assert runs.unequal(plain, measured) == [], "the second forward is after the last update"
        assert len(seen) == 1 and not torch.equal(*seen[0])
        trained(tmp_path / "still", *famo, "weighting.warmup=0steps", "optimizer.lr=1e-30", "optimizer.weight_decay=0")
    for before, after in seen[1:]:
        torch.testing.assert_close(before, after, rtol=1e-6, atol=0)


class Counting(MLP):
    """MLP that counts the samples of its forward passes. `after_update` adds the count of an update to `COUNTED`."""

    def __init__(self, width: int, config: Any) -> None:
        super().__init__(width, config)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.training:
            self.count += len(batch["x"])
        return super().forward(batch)

    def after_update(self, skipped: torch.Tensor) -> None:
        COUNTED.append(int(self.count))
        self.count.zero_()


def test_the_second_forward_is_not_counted_by_the_model(tmp_path):
    COUNTED.clear()
    with mock.patch.object(workload, "MLP", Counting):
        runs.run("vectors", tmp_path, "weighting=famo", "weighting.conflict=[]", "trainer.length=4steps", "data.train_samples=64")
    assert COUNTED == [32] * 4


# -- rows --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in WEIGHTINGS if name not in ("features", "trunk")])
def test_a_row_has_the_weights_that_were_differentiated(tmp_path, monkeypatch, name):
    """Rows of three updates: the weights of the third, and the mean of the weighted losses of all three, each with its own weights."""
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # per update: loss sums, weights, valid labels, float64 [T]
    backward, update_on_window = Precision.backward, loop.update_on_window
    valid_now = torch.zeros(())

    def recorded(self, losses, factors=None):
        seen.append((losses.detach().double(), factors.double() * valid_now, valid_now))
        backward(self, losses, factors)

    def with_valid(t, window, valid):
        nonlocal valid_now
        valid_now = valid.clone()
        update_on_window(t, window, valid)

    monkeypatch.setattr(Precision, "backward", recorded)
    monkeypatch.setattr(loop, "update_on_window", with_valid)
    cadence = [] if name == "surgery" else ["weighting.every=[1steps]"]
    more = ["schedule.log=[3steps]", "trainer.length=6steps", "trainer.micro_batch_size=32", *cadence]
    run = runs.run("vectors", tmp_path, *LENGTH, *WEIGHTINGS[name], *more)
    rows = [row for row in runs.rows(run / "metrics.jsonl") if "train/weighted_loss" in row]
    tasks = [key.split("/")[1] for key in rows[0] if key.endswith("/weight")]
    assert len(rows) == 2 and len(seen) == 6
    for number, row in enumerate(rows):
        losses, weights, valid = (torch.stack(column) for column in zip(*seen[3 * number : 3 * number + 3], strict=True))
        shown = torch.tensor([row[f"train/{task}/weight"] for task in tasks], dtype=torch.float64)
        torch.testing.assert_close(shown, weights[-1], rtol=1e-6, atol=0)
        assert row["train/weighted_loss"] == pytest.approx(((losses * weights).sum(0) / valid.sum(0)).sum().item(), rel=1e-6)
    assert len({row[f"train/{tasks[0]}/weight"] for row in rows}) == 2


def test_labels_of_little_weight_have_the_weighted_loss_that_was_differentiated(tmp_path):
    """All labels in a global batch weigh 0.32 together. The task weights are 1, so the weighted loss is the sum of the mean losses."""
    share = 0.01
    counts, sums = VectorsWorkload.valid_counts, VectorsWorkload.loss_sums
    with (
        mock.patch.object(VectorsWorkload, "valid_counts", lambda self, batch: share * counts(self, batch)),
        mock.patch.object(VectorsWorkload, "loss_sums", lambda self, outputs, batch: share * sums(self, outputs, batch)),
        mock.patch.object(VectorsWorkload, "training_metrics", Workload.training_metrics),
    ):
        run = runs.run("vectors", tmp_path, "trainer.length=2steps", "weighting.conflict=[]")
    for row in [row for row in runs.rows(run / "metrics.jsonl") if "train/weighted_loss" in row]:
        assert row["train/weighted_loss"] == pytest.approx(row["train/first/loss"] + row["train/second/loss"])
