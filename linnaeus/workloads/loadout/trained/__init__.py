"""Use a trained loadout model: complete builds."""

from linnaeus.workloads.loadout.trained.gear_questions import questions
from linnaeus.workloads.loadout.trained.load_loadout_model import load_model

__all__ = ["load_model", "questions"]
