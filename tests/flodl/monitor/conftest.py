"""A run to watch: a monitor whose clock the test moves."""

from __future__ import annotations

import pytest

from flodl.log import set_verbosity, verbosity
from flodl.monitor import Monitor


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _normal_verbosity():
    before = verbosity()
    set_verbosity("normal")
    yield
    set_verbosity(before)


@pytest.fixture
def monitor(clock):
    """Five epochs, nothing on the terminal."""
    monitor = Monitor(5, clock=clock, terminal=False)
    yield monitor
    monitor.finish()
