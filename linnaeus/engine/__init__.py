"""The loop: `epoch.py` reads top to bottom; validation, checkpoints and logging are called from its step boundary."""

from linnaeus.engine.beginning import find_initial_weights
from linnaeus.engine.build import build_training, find_run_directory, join_group, open_outputs, run_record
from linnaeus.engine.epoch import train_one_epoch
from linnaeus.engine.finish import close, final_validations, finish, record_failure
from linnaeus.engine.planning import resolve_schedule
from linnaeus.engine.process import apply_process_settings
from linnaeus.engine.resume import check_named_checkpoint, finish_pending_validations, restore
from linnaeus.engine.stopping import StoppedBeforeTraining, StopRequest
from linnaeus.engine.validation import validate_one_pass, validate_with_partial_mask

__all__ = [
    "StopRequest",
    "StoppedBeforeTraining",
    "apply_process_settings",
    "build_training",
    "check_named_checkpoint",
    "close",
    "final_validations",
    "find_initial_weights",
    "find_run_directory",
    "finish",
    "finish_pending_validations",
    "join_group",
    "open_outputs",
    "record_failure",
    "resolve_schedule",
    "restore",
    "run_record",
    "train_one_epoch",
    "validate_one_pass",
    "validate_with_partial_mask",
]
