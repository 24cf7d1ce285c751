"""Prepare runs in this process, which do not wait for the disk. Launched runs wait for it, as runs of a user do."""

from tests.laws.conftest import in_process_runs

__all__ = ["in_process_runs"]
