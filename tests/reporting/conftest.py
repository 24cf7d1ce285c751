"""Record the warnings of a run."""

import pytest


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr("linnaeus.reporting.sinks.soft_failure.LOGGER.warning", lines.append)
    return lines
