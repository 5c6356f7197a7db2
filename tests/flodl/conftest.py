"""What the tests of the library share."""

from __future__ import annotations

import itertools

import pytest

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give each test a cache folder of its own: no test finds what another one has decided."""
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(_numbers))
    monkeypatch.setenv("FLODL_CACHE_DIR", str(folder))
