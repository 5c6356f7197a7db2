"""A browser for the tests of this folder; without one they are skipped, and say so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .chromium import NAMES, Browser, find


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    binary = find()
    if binary is None and os.environ.get("CI"):
        pytest.fail(f"CI installs a browser, and none of {', '.join(NAMES)} is on PATH")
    if binary is None:
        pytest.skip(f"needs a browser on PATH, one of {', '.join(NAMES)}")
    browser = Browser(binary, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The browser with an empty page and an empty console."""
    # A live page of the test before asks for its server, which is gone, until it is left.
    chromium.open("about:blank")
    chromium.console.clear()
    chromium.requests.clear()
    return chromium
