"""Parts of downloads: what can be continued is kept, the rest goes."""

from __future__ import annotations

import os
import time

import pytest

from fdl.libtorch.install import install
from fdl.libtorch.sources import Wanted, local
from fdl.libtorch.store import Store
from tests.fdl.libtorch.archives import torch_wheel

JOURNAL = '{"validator": "", "length": 9, "begin": 0}'


@pytest.fixture
def at(store):
    return Store(store.parent, "global")


@pytest.fixture
def part(at):
    """Write the part of a download: ``part("url-1", JOURNAL)``; without a journal for None."""

    def make(slot, journal, days=0):
        folder = at.kept("downloads", slot, "archive")
        folder.mkdir(parents=True)
        file = folder / "archive.part"
        file.write_bytes(b"12345")
        if journal is not None:
            (folder / "archive.part.json").write_text(journal)
        for one in folder.iterdir():
            os.utime(one, (time.time() - days * 86_400,) * 2)
        return folder.parent

    return make


@pytest.fixture
def install_other(at, tmp_path):
    """Install something that needs none of the parts."""
    wheel = torch_wheel(tmp_path / "wheels", "2.14.1+cpu")
    return lambda: install(at, local(wheel, Wanted()), activate=False)


def test_an_installation_keeps_only_parts_that_a_later_call_can_use(at, part, install_other):
    kept = part("url-kept", JOURNAL, days=29)
    wheels = at.kept("downloads", "wheel-cpu", "torch-2.14.1")
    wheels.mkdir(parents=True)
    (wheels / "torch-2.14.1.whl").write_bytes(b"whole")
    torn = part("torn-journal", JOURNAL[:-5])
    gone = [part("no-journal", None), torn, part("old", JOURNAL, days=31)]
    assert install_other().fresh
    assert not any(one.exists() for one in gone)
    assert kept.exists()
    assert wheels.exists()


def test_what_another_process_works_on_is_left_alone(at, part, install_other):
    busy = part("archive-cpu", None)
    with at.hold("archive-cpu", "installing"):
        assert install_other().fresh
    assert busy.exists()
