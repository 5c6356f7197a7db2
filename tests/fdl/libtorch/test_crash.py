"""Two processes at once, and processes that are killed: the store is always right."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.fdl.libtorch.archives import archive, is_whole
from tests.fdl.libtorch.conftest import CUDA, TORCH, ids, offer
from tests.waiting import wait_for

SIZE = 3_000_000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


@pytest.fixture
def start(home, mirror, tmp_path):
    """Start ``fdl libtorch ARGS`` and return the process."""
    (tmp_path / "here").mkdir()
    environ = {
        **os.environ,
        "FLODL_HOME": str(home),
        "FDL_LIBTORCH_MIRROR": mirror.url(""),
        "NO_PROXY": "127.0.0.1",
        "CI": "1",
    }
    started = []

    def run(*args):
        process = subprocess.Popen(
            [sys.executable, "-m", "fdl", "libtorch", *args],
            cwd=tmp_path / "here",
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def test_two_installs_of_the_same_variant_fetch_it_once(start, store, mirror):
    content = archive(TORCH, "cpu", size=SIZE)
    both_came = threading.Event()
    offer(mirror, TORCH, "cpu", content=content, before=lambda _: both_came.wait(60))
    first = start("install", "cpu", "--torch", TORCH)
    wait_for(lambda: mirror.connections)
    second = start("install", "cpu", "--torch", TORCH)
    assert any("waiting for another fdl" in line for line in second.stderr)
    both_came.set()
    said = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    assert ["already installed" in one for one in said] == [False, True]
    assert "waiting for another fdl" not in "".join(said)
    # The tail of the archive, with its directory, may be read more than once.
    assert mirror.sent < 1.5 * len(content)
    assert is_whole(store / "precompiled" / "cpu", TORCH, "cpu", size=SIZE)


def test_two_installs_of_different_variants_do_not_disturb_each_other(
    start, libtorch, store, mirror
):
    for variant in ("cpu", CUDA):
        content = archive(TORCH, variant, size=SIZE)
        offer(mirror, TORCH, variant, content=content, drip=(200_000, 0.02))
    both = [start("install", variant, "--torch", TORCH) for variant in ("cpu", CUDA)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert not any("waiting" in one for one in said)
    for variant in ("cpu", CUDA):
        assert is_whole(store / "precompiled" / variant, TORCH, variant, size=SIZE)
    assert libtorch("list").out.count(" (active)") == 1
    lock = (store.parent / "libtorch.lock").read_text()
    assert lock.count("sha256") == 2


@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_store_is_right_and_the_next_call_continues(
    start, libtorch, store, mirror, kills
):
    content = archive(TORCH, "cpu", size=SIZE)
    resource = offer(mirror, TORCH, "cpu", content=content, drip=(150_000, 0.02))
    folder = store / "precompiled" / "cpu"
    began = time.monotonic()
    assert start("install", "cpu", "--torch", TORCH).wait(60) == 0
    longest = time.monotonic() - began
    moments = random.Random(4)
    killed = 0
    while killed < kills:
        if folder.exists():
            assert is_whole(folder, TORCH, "cpu", size=SIZE)
            assert libtorch("remove", "precompiled/cpu").exit == 0
        process = start("install", "cpu", "--torch", TORCH)
        began = time.monotonic()
        try:
            # At any moment up to its end, however long a busy machine makes it.
            process.wait(moments.uniform(0.0, 1.1 * longest))
            longest = min(longest, time.monotonic() - began)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.communicate()
        shown = libtorch("list")
        assert shown.exit == 0
        assert bool(ids(shown)) == folder.exists()

    resource.drip = None
    done = libtorch("install", "cpu", "--torch", TORCH)
    assert done.exit == 0, done.err
    assert is_whole(folder, TORCH, "cpu", size=SIZE)
    assert ids(libtorch("list")) == ["precompiled/cpu (active)"]
    assert not list((store / ".staging").iterdir())
    assert not list((store / ".cache").rglob("*.part"))


def test_what_a_killed_download_had_is_not_fetched_again(start, libtorch, store, mirror):
    content = archive(TORCH, "cpu", size=SIZE)
    # However busy the machine is, the rest does not come before the process is killed.
    slow = {"drip": (100_000, 0.05), "stall": SIZE * 2 // 3}
    resource = offer(mirror, TORCH, "cpu", content=content, **slow)
    process = start("install", "cpu", "--torch", TORCH)
    # More than what is fetched between two lines of the journal.
    wait_for(lambda: mirror_bytes(store) >= SIZE // 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = mirror_bytes(store)
    assert kept >= SIZE // 2
    resource.drip = None
    mirror.settle()
    before = mirror.sent
    assert libtorch("install", "cpu", "--torch", TORCH).exit == 0
    assert mirror.sent - before < len(content)
    assert is_whole(store / "precompiled" / "cpu", TORCH, "cpu", size=SIZE)


def mirror_bytes(store):
    """How much of the archive lies in the part file, as the disk counts it."""
    parts = list((store / ".cache").rglob("*.part"))
    return sum(one.stat().st_blocks * 512 for one in parts)
