"""Parts of downloads: what can be continued is kept, the rest goes."""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from fdl.libtorch.install import install, prune
from fdl.libtorch.sources import Wanted, local_archive
from fdl.libtorch.store import Store
from tests.fdl.libtorch.archives import torch_wheel


@pytest.fixture
def at(store):
    return Store(store.parent, "global")


@pytest.fixture
def part(at):
    """Write the part of a download: ``part("url-1", prefix=5)``; without a journal for None."""

    def make(slot, prefix, days=0):
        folder = at.cache / "downloads" / slot / "archive"
        folder.mkdir(parents=True)
        file = folder / "archive.part"
        file.write_bytes(b"12345")
        journal = {"source": "", "version": ["", "", 9]}
        if prefix is not None:
            text = json.dumps({**journal, "held": [[0, prefix]]})
            (folder / "archive.part.json").write_text(text)
        for one in folder.iterdir():
            os.utime(one, (time.time() - days * 86_400,) * 2)
        return folder.parent

    return make


def test_only_parts_that_a_later_call_can_use_are_kept(at, part, libtorch):
    kept = part("url-kept", 5, days=29)
    wheels = at.cache / "downloads/wheel-cpu/torch-2.14.1"
    wheels.mkdir(parents=True)
    (wheels / "torch-2.14.1.whl").write_bytes(b"whole")
    gone = [part("no-journal", None), part("too-short", 7), part("old", 5, days=31)]
    names = sorted(one.name for one in gone)
    assert [name for name, _ in prune(at, dry_run=True)] == names
    assert all(one.exists() for one in gone)
    done = libtorch("prune", "--global")
    assert re.fullmatch("".join(f"removed {name}, \\d+ bytes\n" for name in names), done.out)
    assert not any(one.exists() for one in gone)
    assert kept.exists()
    assert wheels.exists()
    assert "nothing to remove" in libtorch("prune", "--global").err
    assert libtorch("prune", "--global", "--all").exit == 0
    assert not kept.exists()


def test_what_another_process_works_on_is_left_alone(at, part):
    busy = part("archive-cpu", None)
    with at.hold("archive-cpu", "installing"):
        assert prune(at, everything=True) == []
    assert busy.exists()
    assert prune(at) == [("archive-cpu", 5)]


def test_an_installation_removes_old_parts(at, part, tmp_path):
    old = part("old", 5, days=31)
    wheel = torch_wheel(tmp_path / "wheels", "2.14.1+cpu")
    assert install(at, local_archive(wheel, Wanted()), activate=False).fresh
    assert not old.exists()
