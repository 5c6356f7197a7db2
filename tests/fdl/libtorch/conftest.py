"""A mirror on this machine, and ``fdl libtorch`` typed by somebody whose store is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Fdl, Session
from tests.fdl.fetch.server import Resource, Server
from tests.fdl.libtorch.archives import archive, listed

# Without a digest in the catalog, so that made-up archives can stand for the official ones.
TORCH = "2.11.0"
CUDA = "cu128"

Libtorch = Callable[..., Session]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's own folder, which is also the scope of everything typed outside of a project."""
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Path:
    """The folder of variants."""
    return home / "libtorch"


@pytest.fixture
def mirror() -> Iterator[Server]:
    """A server with the CPU and one CUDA archive of a version."""
    with Server() as server:
        for variant in ("cpu", CUDA):
            offer(server, TORCH, variant)
        yield server


def offer(server: Server, torch: str, variant: str, **behaviour: object) -> Resource:
    """Put a made-up archive where the official one would be."""
    content = behaviour.pop("content", None) or archive(torch, variant)
    official = listed(torch, variant)
    assert official.sha256 is None, f"{official.path} has a digest: take another variant"
    return server.put(f"/{official.path}", content, **behaviour)  # type: ignore[arg-type]


@pytest.fixture
def libtorch(fdl: Fdl, home: Path, mirror: Server, tmp_path: Path) -> Libtorch:
    """Type ``fdl libtorch ARGS`` with nothing but the mirror to fetch from."""
    (tmp_path / "elsewhere").mkdir()

    def run(*args: str, **more: object) -> Session:
        env = {
            "FLODL_HOME": str(home),
            "FDL_LIBTORCH_MIRROR": mirror.url(""),
            "NO_PROXY": "127.0.0.1",
            "SHELL": "/bin/sh",
            **more.pop("env", {}),  # type: ignore[dict-item]
        }
        return fdl("libtorch", *args, env=env, **{"cwd": "elsewhere", **more})

    return run


def ids(shown: Session) -> list[str]:
    """The first column of ``fdl libtorch list``."""
    return [line.split("  ")[0] for line in shown.out.splitlines()[1:]]
