"""Stores of somebody else: what reads works, what writes is answered in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fdl.libtorch.archives import torch_wheel

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can become another user",
)
NOBODY = 65534
ROOT = Path(__file__).parents[3]


@pytest.fixture
def shared(tmp_path, libtorch, home):
    """A store of root with two variants; the wheel of the active one."""
    wheels = [torch_wheel(tmp_path / "wheels", f"2.14.1+{one}", cuda=cuda)
              for one, cuda in (("cpu", None), ("cu130", "13.0"))]  # fmt: skip
    for wheel in wheels:
        assert libtorch("install", "--from", str(wheel)).exit == 0
    # Another user must reach the folders of this test.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    return home, wheels[1]


@pytest.fixture
def nobody(shared, tmp_path):
    """``nobody("list")`` is ``fdl libtorch list`` of a user who may not write to the store."""
    own = tmp_path / "nobody"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)

    def run(*words, **more):
        env = {
            "PATH": os.environ["PATH"], "HOME": str(own), "FLODL_HOME": str(shared[0]),
            "CI": "1", "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more,
        }  # fmt: skip
        # The interpreter may be in a folder of root; the capability lets this user read it.
        reads_all = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        return subprocess.run(
            [*become, *reads_all, sys.executable, "-m", "fdl", "libtorch", *words],
            cwd=own, env=env, text=True, capture_output=True,
        )  # fmt: skip

    return run


def reads(nobody, home, wheel):
    """Every command that reads."""
    listed = json.loads(nobody("list", "--json").stdout)
    assert [one["variant"] for one in listed if one["active"]] == ["precompiled/cu130"]
    again = nobody("install", "--from", str(wheel))
    assert (again.returncode, "already installed" in again.stderr) == (0, True), again.stderr
    folder = home / "libtorch/precompiled/cu130"
    assert f"export LIBTORCH={folder}\n" in nobody("env").stdout
    other = home / "libtorch/precompiled/cpu"
    assert f"export LIBTORCH={other}\n" in nobody("env", "precompiled/cpu").stdout
    assert json.loads(nobody("info", "--json").stdout)["active"] == "precompiled/cu130"
    done = nobody("exec", "--", "sh", "-c", "echo $LIBTORCH")
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr
    checked = nobody("check")
    assert "Traceback" not in checked.stderr
    assert "precompiled/cu130" in checked.stdout + checked.stderr
    assert (home / "libtorch/.active").read_text() == "precompiled/cu130\n"


def test_another_user_reads_all(nobody, shared):
    reads(nobody, *shared)


def test_a_store_on_a_read_only_mount_is_read_by_every_command(nobody, shared):
    mount = ["mount", "--bind", "-o", "ro", str(shared[0]), str(shared[0])]
    made = subprocess.run(mount, capture_output=True, text=True)
    if made.returncode:
        pytest.skip("this machine mounts nothing")
    try:
        reads(nobody, *shared)
    finally:
        subprocess.run(["umount", str(shared[0])], check=True)


@pytest.mark.parametrize(
    "words",
    [
        ["remove", "precompiled/cpu"],
        ["activate", "precompiled/cpu"],
        ["install", "--from", "OTHER"],
    ],
)
def test_what_writes_is_refused_in_one_line(nobody, tmp_path, words):
    other = torch_wheel(tmp_path / "wheels", "2.15.0+cpu")
    done = nobody(*(str(other) if word == "OTHER" else word for word in words))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    told = {
        "remove": "you may not write to",
        "activate": 'hint: take a variant for one shell: eval "$(fdl libtorch env ID)"',
        "install": "choose a folder you may write to: FLODL_HOME=DIR fdl libtorch install",
    }
    assert told[words[0]] in done.stderr
