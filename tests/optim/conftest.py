from tests.laws.conftest import in_process_runs

__all__ = ["in_process_runs"]
