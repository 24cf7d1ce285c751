"""Law 4 and the plan: one counter, and the events `plan=true` lists are those that happen, step for step, in real runs."""

from __future__ import annotations

import contextlib
import re
from unittest import mock

import pytest

from linnaeus import train
from linnaeus.checkpoint.writer import CheckpointWriter
from linnaeus.schedule import OpsSchedule
from linnaeus.train import resolve_schedule
from linnaeus.train.measuring import readings
from linnaeus.weighting import GradientConflict, GradNorm
from tests import runs, watching

VECTORS = ["trainer.length=4epochs", "schedule.log=[5steps]", "schedule.report=[25%]", "schedule.validate=[40%, 1epochs]"]
VECTORS += ["schedule.checkpoint=[7steps]", "weighting=gradnorm", "weighting.every=[4steps]", "weighting.warmup=3steps"]
VECTORS += ["weighting.conflict=[5steps]"]
MASKED = ["trainer.length=7steps", "schedule.log=[2steps]", "schedule.validate=[3steps]", "schedule.validate_mask_meta=[50%]"]
MASKED += ["schedule.validate_partial_mask_meta=[1epochs]", "schedule.checkpoint=[2epochs]", "schedule.all_combinations_at_end=true"]
MASKED += ["weighting.conflict=[3steps]", "model.batch_norm=false"]
STOPPED = [*VECTORS, "schedule.early_stop.max_steps=9"]


def listed(text: str) -> dict[str, list[int]]:
    """Return the steps of every event in the text of a plan; few enough here that none is abbreviated."""
    assert "..." not in text
    lines = re.findall(r"^  (validate\w*|checkpoint|weighting|conflict|report|log) +(never|.*?: ([\d, ]+))", text, re.M)
    return {name: [int(step) for step in steps.split(",")] if steps else [] for name, _, steps in lines}


def planned(workload, root, settings, capsys) -> tuple[dict[str, list[int]], str]:
    assert runs.start(runs.configuration(workload, root, *settings, "plan=true", "logger.console=plain")) == 0
    text = capsys.readouterr().out
    path = runs.run_path(runs.configuration(workload, root, *settings))
    assert sorted(p.name for p in path.iterdir()) == ["schedule.svg", "schedule.txt"], "a plan trains nothing"
    return listed(text), (path / "schedule.txt").read_text()


def happened(workload, root, settings) -> tuple[dict[str, list[int]], str]:
    """The steps at which things were seen to happen in a run, by the names of the plan."""
    with contextlib.ExitStack() as stack:
        saves, restores = (stack.enter_context(watching.counted(*called)) for called in ((CheckpointWriter, "save"), (train, "restore")))

        def steps_of(owner, name: str, offset: int) -> list[int]:
            """Return a list to which each call of `owner.name` appends the current step, plus `offset`."""
            original, steps = getattr(owner, name), []

            def called(*arguments):
                steps.append(restores[0][0].progress.global_step + offset)
                original(*arguments)

            stack.enter_context(mock.patch.object(owner, name, called))
            return steps

        measured, compared = steps_of(GradNorm, "finish", 1), steps_of(GradientConflict, "update", 1)  # of the update that is being made
        reports = steps_of(readings, "report_progress", 0)
        run = runs.run(workload, root, *settings)
    logged = runs.rows(run / "metrics.jsonl")
    passes = {name: sorted({r["global_step"] for r in logged if f"{key}/loss" in r}) for name, key in PASSES.items()}
    partial = sorted({r["global_step"] for r in logged if any(k.startswith("val_mask_") and not k.startswith("val_mask_meta") for k in r)})
    validated = {step for steps in (*passes.values(), partial) for step in steps}
    saved = sorted({arguments[1] for arguments in saves})
    assert validated <= set(saved), "a validation has a checkpoint before and after it"
    events = {
        **passes,
        "validate_partial_mask_meta": partial,
        "checkpoint": saved,
        "weighting": measured,
        "conflict": compared,
        "report": reports,
        "log": [r["global_step"] for r in logged if "train/loss" in r],
    }
    return events, (run / "schedule.txt").read_text()


PASSES = {"validate": "val", "validate_mask_meta": "val_mask_meta"}


@pytest.mark.parametrize("workload, settings", [("vectors", VECTORS), ("masked", MASKED), ("vectors", STOPPED)])
def test_what_the_plan_lists_is_what_happens(tmp_path, capsys, workload, settings):
    plan, plan_text = planned(workload, tmp_path, settings, capsys)
    events, run_text = happened(workload, tmp_path, settings)
    assert plan_text == run_text
    validations = {step for name in plan if name.startswith("validate") for step in plan[name]}
    plan["checkpoint"] = sorted(set(plan["checkpoint"]) | validations)
    plan["conflict"] = sorted({*plan["conflict"], *plan["weighting"]})  # GradNorm compares what it measures
    assert not any(events.pop(name) for name in events.keys() - plan.keys()), "passes that nothing can be masked in"
    assert events == plan
    assert events["validate"] and events["log"] and events["checkpoint"]


def test_negative_control_a_validation_one_step_late_is_noticed(tmp_path, capsys):
    plan, _ = planned("vectors", tmp_path, VECTORS, capsys)
    original = OpsSchedule.should_validate
    with mock.patch.object(OpsSchedule, "should_validate", lambda self, step: original(self, step - 1)):
        events, _ = happened("vectors", tmp_path, VECTORS)
    assert events["validate"] != plan["validate"] and events["log"] == plan["log"]


def test_the_resolved_schedule_is_what_the_text_says(tmp_path):
    """The other half: the numbers behind the text, from the function the run itself calls."""
    from linnaeus import workloads
    from linnaeus.distributed import DistributedContext

    config = runs.configuration("masked", tmp_path, *MASKED)
    context = DistributedContext().initialize(device="cpu")
    plan = resolve_schedule(config, workloads.build_workload(config), context)
    context.shutdown()
    assert {name: every.steps() for name, every in plan.resolved.events().items()} == listed(plan.text)
    assert plan.resolved.events()["validate"].steps() == [3, 6, 7]


def test_all_combinations_run_at_the_end_only(tmp_path):
    run = runs.run("masked", tmp_path, *MASKED)
    found = {path.name: sorted(p.stem for p in path.glob("*.json")) for path in (run / "validation").iterdir()}
    singles = ["val_mask_ELEVATION", "val_mask_SPATIAL", "val_mask_TEMPORAL"]
    assert [n for n in found["step-00000003"] if n not in ("val", "val_mask_meta")] == singles
    assert len(found["step-00000007"]) == 8 and "val_mask_SPATIAL_TEMPORAL" in found["step-00000007"]


# -- skipped updates -------------------------------------------------------------------------------------------------------------


def broken_from(step: int):
    """The loss is not a number from the update after `step` on."""
    from linnaeus.train import loop

    original = loop.forward_backward

    def forward_backward(t, batch, shares):
        original(t, batch, shares * (float("nan") if t.progress.global_step >= step else 1.0))

    return mock.patch.object(loop, "forward_backward", forward_backward)


def test_too_many_skipped_updates_in_a_row_stop_the_run_with_a_clear_line(tmp_path):
    config = runs.configuration(
        "vectors", tmp_path, "trainer.length=20steps", "trainer.max_skipped_in_a_row=4", "schedule.checkpoint=[1steps]"
    )
    with (
        broken_from(3),
        pytest.raises(FloatingPointError, match=r"4 updates in a row up to step 7 .*trainer\.max_skipped_in_a_row") as error,
    ):
        runs.start(config)
    assert "\n" not in str(error.value)
    before, after = (runs.load_checkpoint(runs.run_path(config) / "checkpoints" / f"step-{n:08d}") for n in (5, 6))
    assert runs.unequal(before.model_state, after.model_state) == []
    assert runs.unequal(before.training_state["optimizers"], after.training_state["optimizers"]) == []
    assert (after.state["progress"]["global_step"], after.training_state["update"]["skipped_updates"]) == (6, 3)


def test_it_stops_without_any_row_too(tmp_path):
    """Nothing logged: it is noticed before the next checkpoint, which would have pushed out a sound one."""
    settings = ["trainer.length=20steps", "trainer.max_skipped_in_a_row=4", "schedule.checkpoint=[5steps]", "schedule.log=[]"]
    config = runs.configuration("vectors", tmp_path, *settings)
    with broken_from(3), pytest.raises(FloatingPointError, match="7 updates in a row up to step 10 "):
        runs.start(config)
    assert runs.newest(runs.run_path(config)).step == 5


def test_a_few_skipped_updates_do_not(tmp_path):
    run = runs.run("vectors", tmp_path, "trainer.length=6steps", "trainer.max_skipped_in_a_row=4")
    assert runs.rows(run / "metrics.jsonl")[-1]["global_step"] == 6
    with broken_from(3):
        broken = runs.run("vectors", tmp_path / "broken", "trainer.length=6steps", "trainer.max_skipped_in_a_row=4")
    state = runs.newest(broken).training_state["update"]
    assert (state["skipped_updates"], state["skipped_in_a_row"]) == (3, 3)
