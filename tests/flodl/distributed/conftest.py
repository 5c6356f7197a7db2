"""Ranks for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flodl.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Run ``function(group, *arguments)`` on several ranks: ``ranks(2, function, …)``."""
    pool = Ranks()
    yield pool
    pool.close()
