"""Train a run: build its parts, restore them from a checkpoint, run the epochs, end each step, validate, finish. Read `loop.py` first."""

from linnaeus.train.building.build import build_training
from linnaeus.train.building.micro_batch import find_micro_batch
from linnaeus.train.building.planning import resolve_schedule
from linnaeus.train.finish import close, describe_loss, final_validations, finish, record_failure
from linnaeus.train.loop import train_one_epoch
from linnaeus.train.measuring.clock import StartTimes
from linnaeus.train.outputs import open_outputs
from linnaeus.train.restore import check_checkpoint, describe_start, finish_pending_validations, restore
from linnaeus.train.start import CoreUse, apply_process_settings, choose_at_start, find_run_directory, join_group, run_record, start_workers
from linnaeus.train.state import INTERRUPTED
from linnaeus.train.validation import validate_one_pass, validate_with_partial_mask
from linnaeus.train.warm_start import find_initial_weights

__all__ = [
    "INTERRUPTED",
    "CoreUse",
    "StartTimes",
    "apply_process_settings",
    "build_training",
    "check_checkpoint",
    "choose_at_start",
    "close",
    "describe_loss",
    "describe_start",
    "final_validations",
    "find_initial_weights",
    "find_micro_batch",
    "find_run_directory",
    "finish",
    "finish_pending_validations",
    "join_group",
    "open_outputs",
    "record_failure",
    "resolve_schedule",
    "restore",
    "run_record",
    "start_workers",
    "train_one_epoch",
    "validate_one_pass",
    "validate_with_partial_mask",
]
