"""What the trainings of the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from flodl.train.run import run_records


@pytest.fixture(autouse=True, scope="package")
def packages() -> Iterator[None]:
    """Look for the installed packages once, and not for the record of each training."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        once = cache(run_records.installed_packages)
        monkeypatch.setattr(run_records, "installed_packages", once)
        yield
