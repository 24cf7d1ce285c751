"""A planted problem is named with its step, process and samples, once, and again after a resume; healthy updates raise no alarm."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from linnaeus.config.load import compose
from linnaeus.data.sampler import PositionSampler
from linnaeus.health import Alarm, HealthMonitor, RowNumbers, Updates, ValidationNumbers
from linnaeus.health.running_scale import BLOCK, LOSS, RunningScale, Spike
from linnaeus.metrics.update_sums import UpdateLosses
from linnaeus.optim.param_groups import Parameter, ParamGroup
from linnaeus.optim.update_ratio import UpdateRatio
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.train import loop
from linnaeus.train.measuring import health
from linnaeus.workloads.taxonomy.heads.conditional import ConditionalHead
from linnaeus.workloads.taxonomy.heads.head import LinearHead
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.tree import TaxonomyTree
from tests import runs
from tests.vectors import workload
from tests.vectors.workload import MLP, Vectors

STEPS = 110
SETTINGS = [f"trainer.length={STEPS}steps", "trainer.micro_batch_size=32", "schedule.log=[10steps]", "schedule.validate=[]"]
SETTINGS += ["schedule.validate_at_end=false", "schedule.report=[50%]", "optimizer.lr=0.0001", "schedule.checkpoint=[20steps]"]
SETTINGS += ["data.train_samples=640", "debug.batch_hashes=true"]


def planted(step: int, change: Any) -> Any:
    """Return a context manager in which `change` is applied to the loss sums of update `step`."""
    original = loop.checked_per_task

    def checked(t: Any, member: str, values: Any) -> Any:
        found = original(t, member, values)
        return change(found) if member == "loss_sums" and t.progress.global_step == step - 1 else found

    return mock.patch.object(loop, "checked_per_task", checked)


TROUBLE = {  # name -> (update, change of its losses, kinds of the alarms)
    "loss": (76, lambda sums: sums * 3, {"loss_spike"}),
    "gradient": (96, lambda sums: sums * 10, {"loss_spike", "gradient_spike"}),
    "one task": (83, lambda sums: sums * sums.new_tensor([1.0, 4.0]), {"loss_spike"}),
    "nan": (5, lambda sums: sums * math.nan, {"not_finite"}),
}


@pytest.mark.parametrize("name", TROUBLE)
def test_planted_problem_is_named(tmp_path, name):
    step, change, kinds = TROUBLE[name]
    with planted(step, change):
        run = runs.run("vectors", tmp_path, *SETTINGS)
    alarms = runs.alarms(run)
    assert {(alarm.kind, alarm.step, alarm.process_rank) for alarm in alarms} == {(kind, step, 0) for kind in kinds}
    (used,) = [row["samples"] for row in runs.rows(run / "batches-rank0.jsonl") if row["global_step"] == step]
    assert all(list(alarm.samples) == used and alarm.sample_count == 32 for alarm in alarms)
    assert [row["global_step"] for row in runs.rows(run / "alarms.jsonl")] == [-(-step // 10) * 10] * len(kinds)
    assert alarms[0].tasks == {"one task": ("second",), "nan": ("first", "second")}.get(name, alarms[0].tasks)
    summary = runs.summary(run)["alarms"]
    assert summary["count"] == len(kinds) and set(summary["kinds"]) == kinds and f"step {step}: " in summary["newest"][0]["text"]
    text = (run / "train.log").read_text()
    assert text.count(f"WARNING step {step}: ") == len(kinds)
    rows = [row["train/alarms"] for row in runs.rows(run / "metrics.jsonl") if row["global_step"] % 10 == 0]  # others: denser
    assert rows == [0] * ((step - 1) // 10) + [len(kinds)] * (11 - (step - 1) // 10)


def test_mean_losses_without_labels_and_with_losses_that_are_not_finite():
    sums = torch.tensor([[3.0, 0.0], [math.inf, 4.0], [math.nan, math.inf]]).double()
    labels = torch.tensor([[2, 0], [2, 2], [2, 0]]).double()
    assert str(health.task_means(sums, labels).tolist()) == "[[1.5, nan], [inf, 2.0], [inf, nan]]"
    losses = UpdateLosses(sums, labels, sums.sum(1, keepdim=True), sums.new_zeros(3, 0), sums.sum(0), labels.sum(0), None)
    assert health.updates(9, losses, [1.0, 2.0, 3.0], lambda valid: valid).total == [1.5, math.inf, math.inf]
    shared = health.updates(9, losses, [1.0, 2.0, 3.0], lambda valid: valid.sum(-1, keepdim=True).expand_as(valid))
    assert shared.total == [0.75, math.inf, math.inf] and shared.losses[0][0] == 1.5


@pytest.mark.parametrize(("last", "expected"), [(4, []), (3, [True, False, True])])  # of 8 samples; the last batch of an epoch of 3
def test_a_small_last_batch_is_not_compared(last, expected):
    sampler = PositionSampler(16 + last, 0, global_batch_size=8, micro_batch_size=8, steps_per_epoch=3, total_steps=6)
    training = mock.Mock(sampler=sampler, **{"ops.resolved.phases": None})
    assert health.settled(training, 2, 3) == expected


def test_a_healthy_run_has_no_alarm_and_the_key_switches_them_off(tmp_path):
    run = runs.run("vectors", tmp_path / "healthy", *SETTINGS)
    assert runs.alarms(run) == [] and runs.summary(run)["alarms"] == {"count": 0, "kinds": {}, "newest": []}
    rates = [row["train/clip_rate"] for row in runs.rows(run / "metrics.jsonl")]
    assert all(0 <= rate <= 1 for rate in rates) and any(rates)
    with planted(77, lambda sums: sums * 30):
        off = runs.run("vectors", tmp_path / "off", *SETTINGS, "logger.alarms=false")
    assert runs.alarms(off) == [] and "train/alarms" not in runs.rows(off / "metrics.jsonl")[0]


@pytest.mark.parametrize(("norms", "expected"), [([2.0, math.inf, math.nan, 0.5], {"train/clip_rate": 0.5}), ([math.inf, math.nan], {})])
def test_skipped_updates_do_not_count_as_clipped(norms, expected):
    training = mock.Mock(**{"update.norms.read.return_value": torch.tensor(norms)})
    training.config.trainer.max_grad_norm, training.config.logger.alarms = 1.0, False
    assert health.check_health(training, {}) == expected


def test_reports_are_denser_after_an_alarm_and_quiet_again(tmp_path):
    with planted(33, lambda sums: sums * math.nan):
        run = runs.run("vectors", tmp_path, *SETTINGS)
    lines = [line for line in (run / "train.log").read_text().splitlines() if f"/{STEPS} " in line]
    steps = [int(line.split(f"/{STEPS}")[0].split()[-1]) for line in lines]
    dense = list(range(45, 100, 5))  # a tenth of the interval of 55 updates, for one interval
    assert steps == [0, 40, *dense, 110]
    assert [row["global_step"] for row in runs.rows(run / "metrics.jsonl")] == [10, 20, 30, 40, *dense, 100, 110]
    assert [row["global_step"] for row in runs.rows(run / "reports.jsonl")] == [0, 55, 110]


def test_a_run_that_is_killed_while_rows_are_denser_has_the_same_rows(tmp_path):
    with planted(33, lambda sums: sums * math.nan):
        whole = runs.run("vectors", tmp_path / "whole", *SETTINGS)
        config = runs.configuration("vectors", tmp_path / "cut", *SETTINGS)
        cut = runs.resumed(config, (loop, "train_one_step", 48), (loop, "train_one_step", 15))
    assert runs.differences(whole, cut) == []


@pytest.mark.parametrize(("length", "expected"), [(300, range(31, 34)), (5000, range(35, 81, 5)), (1_000_000, range(1000, 10_001, 1000))])
def test_rows_are_denser_with_the_default_schedule(length, expected):
    """After trouble at step 30, for one interval of reports (1 % of the run)."""
    schedule = resolve_all_schedule_params(compose([]), length, length)
    ops = OpsSchedule(schedule)
    assert [step for step in range(31, 20_000) if ops.dense_due(step, 30)] == list(expected)
    assert ops.next_dense(30, 30) == expected[0] and ops.next_dense(expected[-1], 30) is None and not ops.dense_due(40, None)


def test_trouble_lasts_until_the_last_row_with_it():
    monitor, newest = HealthMonitor(["a", "b"]), []
    for step in range(1, 12):
        monitor.observe_row(RowNumbers(step, weights=[1.9 if step in (3, 4, 5, 6, 9) else 0.1, 0.1]))
        newest.append(monitor.newest_trouble)
    assert newest == [None, None, None, 4, 5, 6, 6, 6, 9, 9, 9], "from the alarm on; known trouble counts at once"


def test_the_alarms_of_another_run_are_not_those_of_this_one(tmp_path):
    """The second run continues the first one. Its problem follows an equal one of the first run by 12 updates."""
    nan = lambda sums: sums * math.nan
    with planted(13, nan):
        first = runs.run("vectors", tmp_path / "a", *SETTINGS, "trainer.length=20steps")
    with planted(25, nan):
        second = runs.run("vectors", tmp_path / "b", *SETTINGS, "trainer.length=30steps", f"run.resume={first}")
    assert [alarm.step for alarm in runs.alarms(first)] == [13] and [alarm.step for alarm in runs.alarms(second)] == [25]
    counts = {row["global_step"]: row["train/alarms"] for row in runs.rows(second / "metrics.jsonl")}
    assert counts[30] == runs.summary(second)["alarms"]["count"] == 1


def test_the_same_alarms_after_kills(tmp_path):
    """Killed before and after the row that raises the alarm, and between the checkpoint and the row: the files are the same."""
    change = lambda sums: sums * 3
    with planted(76, change):
        whole = runs.run("vectors", tmp_path / "whole", *SETTINGS)
        config = runs.configuration("vectors", tmp_path / "cut", *SETTINGS)
        cut = runs.resumed(config, (loop, "train_one_step", 79), (loop, "train_one_step", 2), (loop, "train_one_step", 21))
    assert len(runs.alarms(whole)) == 1
    assert runs.differences(whole, cut) == []


def normal(count: int, seed: int = 0, noise: float = 0.1) -> list[float]:
    """Return `count` losses that fall from 2 to 1, with normal noise."""
    draws = random.Random(seed)
    return [1 + math.exp(-5 * i / count) + draws.gauss(0, noise) for i in range(count)]


def observed(monitor: HealthMonitor, losses: list[float], rows: int, first: int = 1, norms: list[float] | None = None) -> list[Any]:
    """Return the alarms of a run of one task that logs every `rows` updates."""
    found = []
    for start in range(0, len(losses), rows):
        part = losses[start : start + rows]
        own = part if norms is None else norms[start : start + rows]
        found += monitor.observe(Updates(first + start, [[loss] for loss in part], part, [[loss] for loss in part], own))
    return found


def test_alarms_do_not_depend_on_the_log_interval_or_on_a_restart():
    losses = normal(1000)
    for step in (100, 101, 400, 800):
        losses[step - 1] *= 3
    expected = [("loss_spike", 100), ("loss_spike", 400), ("loss_spike", 800)]  # 101 is not news
    for rows in (1, 7, 50, 1000):
        assert [(alarm.kind, alarm.step) for alarm in observed(HealthMonitor(["a"]), losses, rows)] == expected
    first, second = HealthMonitor(["a"]), HealthMonitor(["a"])
    found = observed(first, losses[:333], 50)
    second.load_state_dict(first.state_dict())
    assert [(a.kind, a.step) for a in found + observed(second, losses[333:], 50, first=334)] == expected


def test_spikes_are_those_of_a_scale_computed_for_every_block():
    """The scale is computed only for blocks with a high value. Reference: all values compared with the scale of their block."""
    draws = random.Random(0)
    values = [math.exp(draws.gauss(-i / 2000, 0.15)) * (4.0 if draws.random() < 0.005 else 1.0) for i in range(2000)]
    scale, reference = RunningScale(LOSS), RunningScale(LOSS)
    found = [spike for start in range(0, len(values), 37) for spike in scale.spikes(1 + start, values[start : start + 37])]
    expected = [spike for step, value in enumerate(values, 1) for spike in compared(reference, step, value)]
    assert found == expected and len(found) > 5


def compared(scale: RunningScale, step: int, value: float) -> list[Spike]:
    if step % BLOCK == 0:
        scale._start_block()
    return list(scale._compare(step, [value], []))


def test_losses_of_0_are_usual_or_too_small_to_be_checked():
    """A loss is exactly 0 where all samples are certain in float32."""
    (alarm,) = observed(HealthMonitor(["a"]), [*[0.0] * 100, 3.0], rows=10, norms=[1.0] * 101)
    assert alarm.kind == "loss_spike" and "the loss is 3, and usually 0" in alarm.text
    assert observed(HealthMonitor(["a"]), [*[2.5] * 64, *[0.0] * 200, 0.25], rows=10, norms=[1.0] * 265) == []


def test_fp16_may_search_its_loss_scale():
    norms = [math.inf] * 8 + [1.0] * 20
    assert observed(HealthMonitor(["a"], scaled=True), [1.0] * 28, 10, norms=norms) == []
    assert [a.step for a in observed(HealthMonitor(["a"], scaled=True), [1.0] * 28, 10, norms=[math.inf] * 9 + norms[9:])] == [9]
    assert [a.step for a in observed(HealthMonitor(["a"]), [1.0] * 28, 10, norms=norms)] == [1]


def test_the_process_with_the_excess_is_named():
    losses = normal(200, noise=0.02)
    monitor = HealthMonitor(["a"])
    parts = [[loss / 2, loss / 2] for loss in losses]
    for step, rank in ((100, 1),):
        parts[step - 1][rank] += 4.0
        losses[step - 1] = sum(parts[step - 1])
    found = monitor.observe(Updates(1, [[loss] for loss in losses], losses, parts, losses))
    assert [(alarm.step, alarm.process_rank) for alarm in found if alarm.kind == "loss_spike"] == [(100, 1)]


# -- lasting problems ------------------------------------------------------------------------------------------------------------


def rows_of(monitor: HealthMonitor, values: Sequence[float], /, **numbers: Any) -> list[Alarm]:
    """Return the alarms of a run of one task that logs every 10 updates, whose rows all have these `numbers`."""
    found = []
    for step in range(10, len(values) + 1, 10):
        part = list(values[step - 10 : step])
        found += monitor.observe(Updates(step - 9, [[loss] for loss in part], part, [[loss] for loss in part], [1.0] * 10))
        row = RowNumbers(step, step / len(values), head_norms=[1.0], losses=[part[-1]], weights=[1.0])
        found += monitor.observe_row(dataclasses.replace(row, **numbers))
    return found


LASTING = {  # name -> (losses, numbers of the rows, expected alarms)
    "healthy": (normal(300), {}, []),
    "rate far too high, nothing learned": ([3.0] * 100, {"update_ratios": {"default": 0.1}}, [("learning_rate", 50)]),
    "rate far too high at first": (normal(300), {"update_ratios": {"default": 0.1}}, []),
    "norms and biases may move much": (normal(300), {"update_ratios": {"default_no_decay": 5.0}}, []),
    "weights replaced": (normal(100), {"update_ratios": {"default": 0.7}}, [("learning_rate", 20)]),
    "diverged": ([1.0] * 10 + [9.0] * 90, {}, [("divergence", 50)]),
    "nothing learned": ([3.0] * 200, {}, [("no_progress", 110)]),
    "no gradient": (normal(100), {"head_norms": [0.0]}, [("dead_task", 20)]),
    "no gradient, loss 0": (normal(100), {"head_norms": [0.0], "losses": [0.0]}, []),
    "no gradient, weight 0": (normal(100), {"head_norms": [0.0], "weights": [0.0]}, []),
    "losses of a task above those of the untrained model": (normal(60) + [5.0] * 90, {}, [("divergence", 90)]),
    "not trained": (normal(100), {"head_norms": [math.nan]}, []),
}


@pytest.mark.parametrize("name", LASTING)
def test_lasting_problem_is_said_once(name):
    losses, numbers, expected = LASTING[name]
    assert [(alarm.kind, alarm.step) for alarm in rows_of(HealthMonitor(["a"]), losses, **numbers)] == expected


def test_a_run_from_given_weights_may_stay_at_its_first_loss():
    assert rows_of(HealthMonitor(["a"], warm=True), [3.0] * 200) == []


@pytest.mark.parametrize(("high", "warm", "expected"), [(4.5, False, [("saturated_task", 90, ("b",))]), (3.5, False, []), (9.0, True, [])])
def test_a_task_whose_loss_is_twice_that_of_the_untrained_model_is_saturated(high, warm, expected):
    """After update 60 the loss of b rises from 1 to `high`. In the first update, with few labels, it was 0.5, and then 2."""
    losses = [0.5, 2.0, 2.0] + [1.0] * 57 + [high] * 90
    monitor, found = HealthMonitor(["a", "b"], warm=warm), list[Alarm]()
    for step in range(10, 151, 10):
        part = [[1.0, loss] for loss in losses[step - 10 : step]]
        monitor.observe(Updates(step - 9, part, [1.0] * 10, [[1.0]] * 10, [1.0] * 10))
        found += monitor.observe_row(RowNumbers(step, losses=part[-1], weights=[1.0, 1.0]))
        copy = HealthMonitor(["a", "b"], warm=warm)
        copy.load_state_dict(monitor.state_dict())
        monitor = copy
    assert [(alarm.kind, alarm.step, alarm.tasks) for alarm in found] == expected


def test_runaway_weights_and_lasting_problem_after_a_pause():
    monitor = HealthMonitor(["a", "b"])
    row = lambda step, weight: monitor.observe_row(RowNumbers(step, weights=[weight, 2 - weight]))
    found = [[alarm.kind for alarm in row(step, 1.9 if step in (3, 4, 5, 15, 16) else 1.0)] for step in range(1, 20)]
    assert [step for step, kinds in enumerate(found, 1) if kinds == ["task_weights"]] == [4, 16]


@pytest.mark.parametrize("weighting, kinds", [("fixed", []), ("uncertainty", ["task_weights"])])
def test_constant_weights_that_the_user_has_set_are_not_runaway_weights(tmp_path, weighting, kinds):
    settings = [f"weighting={weighting}", "weighting.weights={first:0.01}", "schedule.log=[1steps]", "trainer.length=1epochs"]
    run = runs.run("vectors", tmp_path, *settings)
    assert [alarm.kind for alarm in runs.alarms(run)] == kinds


def test_a_validation_worse_than_the_untrained_model_is_named_once():
    monitor = HealthMonitor(["a"])
    validated = lambda step, loss: [alarm.kind for alarm in monitor.observe_validation(ValidationNumbers(step, loss=loss))]
    assert validated(1, 99.0) == []  # the loss of the untrained model is not known yet
    rows_of(monitor, [3.0] * 10 + [0.5] * 40)
    assert validated(50, 3.2) == [] == validated(50, None)
    assert validated(50, 3.4) == ["validation_gap"]
    assert validated(60, 3.4) == []


def test_update_ratio_of_groups():
    weights = [torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.ones(40, 1000))]
    parameters = [Parameter(str(index), weight, torch.nn.Identity()) for index, weight in enumerate(weights)]
    groups = [ParamGroup("default", (parameters[0], parameters[2]), 1.0, 0.1), ParamGroup("default", (parameters[1],), 1.0, 0.0)]
    ratio = UpdateRatio(groups)
    assert ratio.read() == {}
    ratio.start()
    with torch.no_grad():
        weights[0] += 0.5
        weights[2] += 0.5
        weights[1] += 1
    found = ratio.read()
    assert found["default"] == pytest.approx(0.5) and math.isnan(found["default_no_decay"])
    assert ratio.sizes == {"default": 12 + 16_384, "default_no_decay": 3}, "a part of a large tensor"


def test_update_ratio_of_weights_that_are_not_in_row_order():
    channels_last = torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last)
    for tensor in (channels_last, torch.ones(5, 3).T, torch.ones(1, 3)[:, None], torch.ones(())):
        weight = torch.nn.Parameter(tensor)
        ratio = UpdateRatio([ParamGroup("default", (Parameter("w", weight, torch.nn.Identity()),), 1.0, 0.1)])
        ratio.start()
        with torch.no_grad():
            weight *= 0.75
        assert ratio.read() == {"default": pytest.approx(0.25)} and ratio.sizes == {"default": tensor.numel()}
    gaps = torch.nn.Parameter(torch.ones(4, 4)[:, :2])
    assert UpdateRatio([ParamGroup("default", (Parameter("w", gaps, torch.nn.Identity()),), 1.0, 0.1)]).sizes == {"default": 0}


def test_update_ratio_without_a_measured_weight():
    weight = Parameter("head.weight", torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Identity())
    ratio = UpdateRatio([ParamGroup("default", (weight,), 1.0, 0.1)], sharded=["head.weight"])
    ratio.start()
    assert math.isnan(ratio.read()["default"])


TINY = ["schedule.mixup_prob.start=0", "schedule.mixup_prob.end=0", "trainer.length=3steps", "trainer.global_batch_size=8"]
TINY += ["data.train_samples=24", "data.validation_samples=4", "schedule.validate=[]", "schedule.validate_at_end=false"]
TINY += ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]", "schedule.partial_combinations=[]"]


@pytest.mark.parametrize(("name", "head"), [("linear", LinearHead), ("conditional", ConditionalHead)])
def test_a_dead_task_of_the_classifier_is_named(tmp_path, name, head):
    """A detached output layer of the species is named at the second row."""
    forward = head.forward

    def detached(self: Any, features: Any) -> Any:
        scores = forward(self, features)
        scores.logits = [*scores.logits[:3], scores.logits[3].detach()]
        return scores

    with mock.patch.object(head, "forward", detached):
        run = runs.run("biota", tmp_path, f"head={name}", *TINY)
    assert [(alarm.kind, alarm.step, alarm.tasks) for alarm in runs.alarms(run)] == [("dead_task", 2, ("species",))]
    ratios = [row["train/update_ratio/default"] for row in runs.rows(run / "metrics.jsonl") if "train/update_ratio/default" in row]
    assert len(ratios) == 2 and min(ratios) > 0, "once between two reports: a report every 2 updates"


@pytest.mark.slow
def test_a_saturated_task_of_the_classifier_is_named(tmp_path):
    """From update 41 on the scores of the species are 200 times as large: certain, and mostly wrong."""
    forward = LinearHead.forward
    updates = {"made": 0}

    def certain(self: LinearHead, features: Any) -> Any:
        scores = forward(self, features)
        updates["made"] += 1
        scores.logits = [*scores.logits[:3], scores.logits[3] * (200.0 if updates["made"] > 40 else 1.0)]
        return scores

    with mock.patch.object(LinearHead, "forward", certain):
        settings = ["trainer.length=80steps", "schedule.log=[10steps]", "schedule.checkpoint_at_end=false", "schedule.report=[]"]
        run = runs.run("biota", tmp_path, *TINY, *settings)
    lasting = [(alarm.kind, alarm.step, alarm.tasks) for alarm in runs.alarms(run) if alarm.kind != "loss_spike"]
    assert lasting == [("saturated_task", 70, ("species",))]


def test_a_run_whose_model_names_no_output_layer_and_has_no_gradient_is_named(tmp_path):
    with planted(1, lambda sums: sums), mock.patch.object(loop, "loss_factors", lambda factor, counts, dtype, device: torch.zeros(2)):
        run = runs.run("vectors", tmp_path, "trainer.length=3steps")
    assert [(alarm.kind, alarm.step, alarm.tasks) for alarm in runs.alarms(run)] == [
        ("dead_task", 2, (task,)) for task in ("first", "second")
    ]


@pytest.mark.parametrize(("change", "checked"), [({}, [1, 2, 3]), ({"xps": "", "xqs": "", "yps": ""}, [1, 2]), ({"x": ""}, [1, 3])])
def test_a_rank_of_only_children_or_in_several_levels_is_not_checked(change, checked):
    """The only order is certain. Then three of five species are only children; then a family is unknown, so its genera are in its level."""
    rows = [[change.get(name, name) for name in ("o", a, a + b, a + b + c)] for a in "xy" for b in "pq" for c in "st"]
    tree, _ = TaxonomyTree.from_lineages(("order", "family", "genus", "species"), np.array(rows))
    assert sorted(Layout(tree, null=False).own_levels) == checked


class OwnLayer(MLP):
    """MLP in which the second task has an output layer of its own."""

    def __init__(self, width: int, config: Any) -> None:
        super().__init__(width, config)
        self.second = torch.nn.Linear(config.hidden, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = super().forward(batch)
        return found | {"y": torch.cat([found["y"][:, :1], self.second(found["per_rank"])], 1)}

    def head_parameters(self) -> list[list[torch.nn.Parameter]]:
        return [[], [self.second.weight]]


def test_a_task_without_labels_in_the_update_of_a_row_is_not_dead(tmp_path):
    read = Vectors.__getitems__

    def labels_of_every_other_update(self: Vectors, indices: list[Any]) -> dict[str, torch.Tensor]:
        batch = read(self, indices)
        batch["known"][:, 1] &= indices[0].global_step % 2 == 0
        return batch

    with mock.patch.object(Vectors, "__getitems__", labels_of_every_other_update), mock.patch.object(workload, "MLP", OwnLayer):
        run = runs.run("vectors", tmp_path, "schedule.log=[2steps]", "trainer.length=8steps")
    assert all(row["train/second/loss"] > 0 for row in runs.rows(run / "metrics.jsonl") if "train/second/loss" in row)
    assert runs.alarms(run) == []
