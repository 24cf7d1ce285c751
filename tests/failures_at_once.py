"""Plugin of pytest that prints the text of a failure when the test ends, as the tests may be stopped before their end:

pytest -p tests.failures_at_once"""

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        print(f"\n{report.nodeid}\n{report.longreprtext}", flush=True)
