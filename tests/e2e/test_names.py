"""Test the field's vocabulary (design, section 5): every name is not only defined but called on the main path.

One small run of the taxonomy workload, stopped and continued, is watched by a profiler that notes which functions ran.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import threading
from types import CodeType, FrameType
from typing import Any

import pytest

from linnaeus import train
from tests import runs, watching

FUNCTIONS = {
    "linnaeus.distributed": [
        *[f"DistributedContext.{name}" for name in ("initialize", "master_only", "on_rank", "all_gather", "all_reduce")],
        *["DistributedContext.broadcast_object", "DistributedContext.barrier", "DistributedContext.shutdown"],
        *["get_world_size", "get_rank_safely"],
    ],
    "linnaeus.progress": [
        *[f"TrainingProgress.{name}" for name in ("start_training_epoch", "update_step", "end_epoch", "get_progress_fraction")],
        *[f"TrainingProgress.{name}" for name in ("is_fraction_point", "schedule_validation", "start_validation")],
        *[f"TrainingProgress.{name}" for name in ("complete_validation", "has_pending_validations", "state_dict", "load_state_dict")],
        *["TrainingConsistencyChecker.initialize_with_first_epoch", "TrainingConsistencyChecker.validate_epoch_steps"],
        "TrainingConsistencyChecker.calculate_expected_fractions",
    ],
    "linnaeus.schedule": [
        *[f"OpsSchedule.should_{name}" for name in ("validate", "validate_mask_meta", "validate_partial_mask_meta", "save_checkpoint")],
        *[f"OpsSchedule.should_{name}" for name in ("stop_early", "update_gradnorm", "log_metrics")],
        *[f"OpsSchedule.get_{name}" for name in ("meta_mask_prob", "partial_meta_mask_prob", "null_mask_prob", "mixup_prob")],
        *["OpsSchedule.get_mixup_group_level", "resolve_all_schedule_params", "EarlyStopping.check"],
    ],
    "linnaeus.metrics": ["MetricsTracker.dump_metrics_state", "StepMetricsLogger.row"],
    "linnaeus.checkpoint": ["save_checkpoint", "load_checkpoint", "auto_resume_helper", "convert_ddp_state"],
    "linnaeus.workloads.taxonomy.workload": ["TaxonomyWorkload.build_datasets", "process_and_save_dataset_metadata"],
    "linnaeus.data.loader": ["build_loaders"],
    "linnaeus.train.building.build": ["build_model"],
    "linnaeus.optim": ["build_optimizer", "build_scheduler"],
    "linnaeus.train": ["train_one_epoch", "validate_one_pass", "validate_with_partial_mask"],
    "linnaeus.workloads.taxonomy.losses": ["weighted_hierarchical_loss"],
    "linnaeus.workloads.taxonomy.tree": ["TaxonomyTree.__init__"],
    "linnaeus.workloads.taxonomy.augment": ["AugmentationPipelineFactory.build"],
}
ATTRIBUTES = {
    "progress": ["current_stage", "current_epoch", "step", "global_step", "samples_seen", "expected_total_steps", "pending_validations"],
    "context": ["rank", "local_rank", "world_size", "is_master", "device"],
    "early_stopping": ["best_loss", "counter"],
}
ATTRIBUTES["progress"] += ["completed_validations", "partial_validation_indices"]
SETTINGS = ["data.train_samples=64", "trainer.length=5steps", "schedule.checkpoint=[2steps]", "debug.dump_metrics=true"]
SETTINGS += ["schedule.early_stop.patience=9", "schedule.null_mask_prob.start=0.5", "head.nulls=phase_in"]
SETTINGS += ["weighting=gradnorm", "weighting.every=[2steps]"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Code that ran, the `Training` of the second launch, and the run directory."""
    config = runs.configuration("biota", tmp_path_factory.mktemp("names"), *SETTINGS)
    ran: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            ran.add(frame.f_code)

    with watching.counted(train, "finish") as calls:
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            with watching.stopped_at(3):
                first = runs.start(config)
            second = runs.start(config)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert (first, second) == (75, 0)
    return ran, calls[-1][0], runs.run_path(config)


def code_of(module: str, name: str) -> CodeType:
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = inspect.getattr_static(value, part)
    if isinstance(value, property):
        value = value.fget
    return inspect.unwrap(getattr(value, "__func__", value)).__code__


NAMES = [(module, name) for module, names in FUNCTIONS.items() for name in names]


@pytest.mark.parametrize("module, name", NAMES)
def test_the_name_is_called_on_the_main_path(watched, module, name):
    assert code_of(module, name) in watched[0], f"{module}.{name} is defined, but a run does not call it"


@pytest.mark.parametrize("owner, name", [(owner, name) for owner, names in ATTRIBUTES.items() for name in names])
def test_the_attribute_is_there(watched, owner, name):
    assert hasattr(getattr(watched[1], owner), name)


def test_negative_control_a_function_nobody_calls_is_noticed(watched):
    assert runs.unequal.__code__ not in watched[0]
    assert runs.start.__code__ in watched[0]


def test_what_they_did_is_in_the_run_directory(watched):
    run = watched[2]
    dumped = json.loads((run / "debug/metrics-step-00000005.json").read_text())
    assert dumped["tasks"] == list(watched[1].workload.tasks)
    assert json.loads((run / "dataset.json").read_text())
    assert watched[1].early_stopping.best_loss < float("inf")
