"""Fixtures of the Hugging Face tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flodl.hf.fake_hub import FakeHub
from tests.flodl.hf.hub_loading import HubLoader, write_folder


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A Hub on this machine, empty; see :mod:`tests.flodl.hf.fake_hub`."""
    with FakeHub() as server:
        yield server


@pytest.fixture
def hub_load(hub: FakeHub, tmp_path: Path) -> HubLoader:
    """Load checkpoints from that Hub in a process of their own."""
    return HubLoader(hub, tmp_path)


@pytest.fixture
def repo_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write a directory to make a repository of: ``repo_folder("one", {"config.json": "…"})``."""

    def write(name: str, *args: Any, **kwargs: Any) -> Path:
        return write_folder(tmp_path / "sources" / name, *args, **kwargs)

    return write
