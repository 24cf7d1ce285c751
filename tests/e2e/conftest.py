"""Runs in this process wait for no disk; launched ones do, as a user's."""

from tests.laws.conftest import in_process_runs

__all__ = ["in_process_runs"]
