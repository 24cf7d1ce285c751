"""Checkpoints: write them atomically, verify and load them, choose one to resume from, and delete old ones.

Other programs can read the weights (safetensors). The modules import torch when they first need it.
"""

from linnaeus.checkpoint.format import save_checkpoint
from linnaeus.checkpoint.loading import CheckpointDamaged, LoadedCheckpoint, load_checkpoint, verify
from linnaeus.checkpoint.resume import ResumePoint, auto_resume_helper, find_resume_point, list_checkpoints
from linnaeus.checkpoint.weight_files import convert_ddp_state
from linnaeus.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointDamaged",
    "CheckpointWriter",
    "LoadedCheckpoint",
    "ResumePoint",
    "auto_resume_helper",
    "convert_ddp_state",
    "find_resume_point",
    "list_checkpoints",
    "load_checkpoint",
    "save_checkpoint",
    "verify",
]
