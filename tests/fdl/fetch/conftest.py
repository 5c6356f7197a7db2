"""A server that misbehaves, and fetching from it."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fdl.base.progress import Progress
from fdl.libtorch.archive import Job, Options, Unpacked
from fdl.libtorch.download import unpack_url
from tests.fdl.fetch.archives import QUICK, Tree, inside, tree
from tests.fdl.fetch.server import Server


@dataclass
class Fetch:
    """Calls `unpack_url`, each time into a new folder and with the same part file.

    A call ends when all answers of the server have ended: then it has counted what it sent.
    """

    folder: Path
    server: Server
    calls: int = 0

    @property
    def part(self) -> Path:
        return self.folder / "cache" / "archive.part"

    @property
    def journal(self) -> Path:
        return self.folder / "cache" / "archive.part.json"

    @property
    def target(self) -> Path:
        """The folder of the last call."""
        return self.folder / f"target{self.calls}"

    @property
    def tree(self) -> Tree:
        """What the last call has unpacked."""
        return tree(self.target)

    def __call__(
        self,
        *urls: str,
        sha256: str | None = None,
        options: Options = QUICK,
        select=inside,
        target: Path | None = None,
        part: Path | None = None,
        typed: str = "",
    ) -> Unpacked:
        self.calls += 1
        target = target or self.target
        target.mkdir()
        try:
            with Progress("archive") as progress:
                return unpack_url(
                    urls,
                    Job(
                        target=target,
                        select=select,
                        progress=progress,
                        sha256=sha256,
                        options=options,
                    ),
                    part=part or self.part,
                    environ=os.environ,
                    typed=typed,
                )
        finally:
            self.server.settle()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def fetch(tmp_path: Path, server: Server) -> Iterator[Fetch]:
    yield Fetch(tmp_path, server)
    surviving = [thread for thread in threading.enumerate() if thread.name.startswith("fetch")]
    assert surviving == []
