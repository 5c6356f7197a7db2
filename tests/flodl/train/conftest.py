"""What the trainings of the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from flodl.train.run import run_records
from flodl.train.step import auto


@pytest.fixture(autouse=True, scope="package")
def packages() -> Iterator[None]:
    """Look for the installed packages once, and not for the record of each training."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        once = cache(run_records.installed_packages)
        monkeypatch.setattr(run_records, "installed_packages", once)
        yield


class NobodyElse:
    """Plays :class:`OtherPrograms` on a machine that is idle, and shows it at the first step."""

    known, all_cores = True, 1024

    def seconds(self) -> float:
        return float("inf")

    def cores(self) -> float:
        return 0.0


@pytest.fixture(autouse=True, scope="package")
def idle_machine() -> Iterator[None]:
    """Let engine ``auto`` decide as if no other test ran."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(auto, "OtherPrograms", NobodyElse)
        yield
