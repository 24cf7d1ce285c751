"""Start Debian's Chromium for the tests of `make test-browser`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium, which is installed if it is missing."""
    from playwright.sync_api import sync_playwright  # `make test` reads this file without playwright

    if shutil.which("chromium") is None:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
            subprocess.run(command, env=quiet, check=True, stdout=subprocess.DEVNULL)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def messages() -> list[str]:
    """Return a list for the console messages, errors and requests of the page of a test."""
    return []
