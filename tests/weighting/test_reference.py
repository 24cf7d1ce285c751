"""Task weights and the model after every update of a run, compared with plain PyTorch on whole global batches in float64.

An update of the run has four micro-batches. Labels are missing in a micro-batch, in an update for one task, and in an update for both.
`Reference` has the formulas of the docstrings in `linnaeus/weighting`, with Python numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from linnaeus.train import loop
from tests import runs
from tests.vectors.workload import Vectors

STEPS, RATE, CLIP, DECAY = 20, 0.01, 1.0, 0.05
SETTINGS = ["trainer.precision=float64", f"trainer.length={STEPS}steps", "model.dropout=0", "lr_scheduler=constant"]
SETTINGS += [f"optimizer.lr={RATE}", "lr_scheduler.warmup=0steps", "schedule.validate_at_end=false", "schedule.validate=[]"]
RUNS = {  # name -> interval of the task weights, further settings
    "gradnorm": (1, ["weighting=gradnorm", "weighting.lr=0.1"]),
    "gradnorm from other weights": (3, ["weighting=gradnorm", "weighting.weights={first: 3}"]),
    "features": (2, ["weighting=gradnorm", "weighting.place=features", "weighting.conflict=[1steps]"]),
    "trunk": (2, ["weighting=gradnorm", "weighting.place=trunk", "trainer.deterministic=anywhere"]),
    "frozen": (1, ["weighting=gradnorm", "weighting.place=trunk", "trainer.freeze=[trunk.0]"]),
    "uncertainty": (1, ["weighting=uncertainty", "weighting.lr=0.1"]),
    "dwa": (3, ["weighting=dwa", "weighting.weights={first: 3}"]),
    "famo": (1, ["weighting=famo", "weighting.weights={first: 3}"]),
    "famo at intervals": (4, ["weighting=famo", "trainer.deterministic=anywhere"]),
}


class Recorded:
    """Values of a run: the model and task weights at the start, the global batch of each update, and task weights and parameters after
    it."""

    def __init__(self, root: Path, settings: Sequence[str]) -> None:
        self.batches: list[dict[str, Tensor]] = []
        self.weights: list[Tensor] = []
        self.parameters: list[Tensor] = []
        update, read = loop.update_on_window, Vectors.__getitems__

        def recorded(t: Any, window: Any, valid: Tensor) -> None:
            if not self.batches:
                self.model, self.config, self.initial = copy.deepcopy(t.model), t.config.weighting, t.weighting.weights.tolist()
            self.batches.append({name: torch.cat([host[name] for host, _ in window]) for name in ("x", "y", "known")})
            update(t, window, valid)
            self.weights.append(t.weighting.weights.clone())
            self.parameters.append(flat(t.model))

        def with_holes(data: Vectors, indices: list[Any]) -> dict[str, Tensor]:
            batch, step = read(data, indices), indices[0].global_step
            batch["known"][:, 1] &= step not in (0, 4)
            batch["known"] &= step != 6 and (step != 2 or indices[0].position % 32 != 8)
            return batch

        with mock.patch.object(loop, "update_on_window", recorded), mock.patch.object(Vectors, "__getitems__", with_holes):
            runs.run("vectors", root, *SETTINGS, *settings)
        torch.use_deterministic_algorithms(False)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


# -- reference -------------------------------------------------------------------------------------------------------------------


class Reference:
    """Task weights `w` of a weighting `name`. `finish` changes them after an update."""

    def __init__(self, config: Any, initial: list[float]) -> None:
        self.config, self.name, self.w, self.factors, self.number = config, config.name, list(initial), list(initial), len(initial)
        self.first, self.previous, self.sums, self.counts = ([0.0] * self.number for _ in range(4))
        self.variances, self.logits = [1 / w for w in initial], [0.0] * self.number
        self.moments, self.moves = [[0.0, 0.0] for _ in initial], [0] * self.number

    def finish(self, losses: list[float], counts: list[float], due: bool, norms: list[float], after: list[float]) -> None:
        if self.name == "dwa":
            self.sums = [s + loss * n for s, loss, n in zip(self.sums, losses, counts)]
            self.counts = [a + b for a, b in zip(self.counts, counts)]
        active = [t for t in range(self.number) if losses[t] > 0]
        target = getattr(self, self.name)(losses, norms, after, active) if due and (active or self.name == "dwa") else {}
        left = self.number - sum(w for t, w in enumerate(self.w) if t not in target)
        for t in target:
            self.w[t] = left * target[t] / sum(target.values())

    def gradnorm(self, losses: list[float], norms: list[float], after: list[float], active: list[int]) -> dict[int, float]:
        self.first = [first or loss for first, loss in zip(self.first, losses)]
        big, rates = ({t: self.w[t] * norms[t] for t in active}, {t: losses[t] / self.first[t] for t in active})
        mean, mean_rate = (sum(values.values()) / len(active) for values in (big, rates))
        goal = {t: mean * (rates[t] / mean_rate) ** self.config.alpha for t in active}
        return {t: self.w[t] * math.exp(-self.config.lr * max(-1.0, min(1.0, math.log(big[t] / goal[t])))) for t in active}

    def uncertainty(self, losses: list[float], norms: list[float], after: list[float], active: list[int]) -> dict[int, float]:
        for t in active:
            best = 2 * losses[t]
            self.variances[t] = best + (self.variances[t] - best) * math.exp(-self.config.lr / 2)
        return {t: 1 / self.variances[t] for t in active}

    def dwa(self, losses: list[float], norms: list[float], after: list[float], active: list[int]) -> dict[int, float]:
        means = [s / (n or 1) for s, n in zip(self.sums, self.counts)]
        both = [t for t in range(self.number) if means[t] > 0 and self.previous[t] > 0]
        target = {t: self.factors[t] * math.exp(means[t] / self.previous[t] / self.config.temperature) for t in both}
        self.previous = [mean or before for mean, before in zip(means, self.previous)]
        self.sums, self.counts = [0.0] * self.number, [0.0] * self.number
        return target

    def famo(self, losses: list[float], norms: list[float], after: list[float], active: list[int]) -> dict[int, float]:
        total = sum(math.exp(self.logits[t]) for t in active)
        share = {t: math.exp(self.logits[t]) / total for t in active}
        gain = {t: math.log(losses[t] / after[t]) for t in active}
        mean = sum(share[t] * gain[t] for t in active)
        for t in active:
            gradient = share[t] * (gain[t] - mean) + self.config.decay * self.logits[t]
            self.moves[t] += 1
            m, v = self.moments[t] = [0.9 * self.moments[t][0] + 0.1 * gradient, 0.999 * self.moments[t][1] + 0.001 * gradient**2]
            size = m / (1 - 0.9 ** self.moves[t]) / (math.sqrt(v / (1 - 0.999 ** self.moves[t])) + 1e-8)
            self.logits[t] -= self.config.lr * size
        return {t: self.factors[t] * math.exp(self.logits[t]) / after[t] for t in active}


def mean_losses(model: Any, batch: dict[str, Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return (mean loss of each task over its labels, features)."""
    outputs = model({"x": batch["x"]})
    sums = ((outputs["y"] - batch["y"]) ** 2 * batch["known"]).sum(0)
    return list(sums / batch["known"].sum(0).clamp(min=1)), outputs["per_rank"]


def norm_of(loss: Tensor, inputs: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(grad.square().sum()) for grad in torch.autograd.grad(loss, inputs, retain_graph=True)))


def replayed(run: Recorded, every: int, measure: Callable[[Tensor, Sequence[Tensor]], float] = norm_of) -> tuple[list[Any], list[Tensor]]:
    """Return the task weights and the parameters after each update, computed from the batches of `run`. `measure`: see `norm_of`."""
    model, reference = run.model, Reference(run.config, run.initial)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": [p for p in trained if (p.ndim > 1) == decayed], "weight_decay": DECAY * decayed} for decayed in (True, False)]
    optimizer, weights, parameters = torch.optim.AdamW(groups, lr=RATE), [], []
    for step, batch in enumerate(run.batches, 1):
        losses, features = mean_losses(model, batch)
        trunk = [parameter for parameter in model.trunk_parameters() if parameter.requires_grad]
        places = {"shared": model.shared_parameters(), "trunk": trunk, "features": [features]}
        norms = [measure(loss, places[getattr(run.config, "place", "shared")]) for loss in losses]
        optimizer.zero_grad()
        sum(weight * loss for weight, loss in zip(reference.w, losses)).backward()  # type: ignore[union-attr]
        total = math.sqrt(sum(float(parameter.grad.square().sum()) for parameter in trained))
        for parameter in trained:
            parameter.grad *= min(1.0, CLIP / (total or 1.0))
        optimizer.step()
        with torch.no_grad():
            after = [loss.item() for loss in mean_losses(model, batch)[0]]
        counts = batch["known"].sum(0).tolist()
        reference.finish([loss.item() for loss in losses], counts, step % every == 0, norms, after)
        weights.append(torch.tensor(reference.w, dtype=torch.float64))
        parameters.append(flat(model))
    return weights, parameters


@pytest.mark.parametrize("name", RUNS)
def test_weights_and_model_after_every_update(tmp_path, name):
    every, settings = RUNS[name]
    run = Recorded(tmp_path, [*settings, f"weighting.every=[{every}steps]"])
    weights, parameters = replayed(run, every)
    labels = [batch["known"].sum(0).tolist() for batch in run.batches]
    assert labels[0][1] == 0 < labels[0][0] and labels[6] == [0, 0]
    assert len(weights) == STEPS and (run.weights[-1] - torch.tensor(run.initial)).abs().max() > 0.01
    torch.testing.assert_close(run.weights, weights, rtol=1e-11, atol=0)
    torch.testing.assert_close(run.parameters, parameters, rtol=0, atol=1e-11)


def test_negative_control_a_norm_that_is_one_percent_larger_for_one_task_is_detected(tmp_path):
    every, settings = RUNS["gradnorm"]
    run, calls = Recorded(tmp_path, [*settings, f"weighting.every=[{every}steps]"]), []

    def larger(loss: Tensor, inputs: Sequence[Tensor]) -> float:
        calls.append(loss)
        return norm_of(loss, inputs) * (1.01 if len(calls) % 2 else 1.0)

    assert (replayed(run, every, larger)[0][-1] - run.weights[-1]).abs().max() > 1e-4
