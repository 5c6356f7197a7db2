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
    """A store of root with two variants; the wheel of one of them."""
    wheels = [torch_wheel(tmp_path / "wheels", f"2.14.1+{one}", cuda=cuda)
              for one, cuda in (("cpu", None), ("cu130", "13.0"))]  # fmt: skip
    for wheel in wheels:
        assert libtorch("install", "--from", str(wheel)).exit == 0
    # Another user must reach the folders of this test.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    return home, wheels[0]


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
    """Every command that reads, and the choice of a user alone."""
    listed = json.loads(nobody("list", "--json").stdout)
    assert [one["variant"] for one in listed if one["active"]] == ["precompiled/cu130"]
    again = nobody("install", "--from", str(wheel))
    assert (again.returncode, "already installed" in again.stderr) == (0, True), again.stderr
    assert nobody("activate", "precompiled/cpu").returncode == 0
    folder = home / "libtorch/precompiled/cpu"
    assert f"export LIBTORCH={folder}\n" in nobody("env").stdout
    # Whose choice it is: the user's own, in the state folder.
    assert "precompiled/cpu is active by " in nobody("list").stderr
    chosen = json.loads(nobody("info", "--json").stdout)["chosen_in"]
    assert "/active/" in chosen
    assert not chosen.startswith(str(home))
    done = nobody("exec", "--", "sh", "-c", "echo $LIBTORCH")
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr
    checked = nobody("check")
    assert "Traceback" not in checked.stderr
    assert "precompiled/cpu" in checked.stdout + checked.stderr
    # Others keep the choice of the store, which also counts where the own one was removed.
    assert (home / "libtorch/.active").read_text() == "precompiled/cu130\n"


def test_another_user_reads_and_chooses_for_himself(nobody, shared):
    reads(nobody, *shared)


def test_ones_own_choice_is_in_the_state_folder_and_costs_no_import(tmp_path):
    code = (
        "from fdl.libtorch.active import own_choice; "
        "print(own_choice('/opt/shared')); print(*sys.modules)"
    )
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    bare = [sys.executable, "-S", "-c", code]
    env = {"HOME": str(tmp_path), "XDG_STATE_HOME": ""}
    done = subprocess.run(bare, env=env, check=True, capture_output=True, text=True)
    file, modules = done.stdout.splitlines()
    assert file == f"{tmp_path}/.local/state/flodl/active/opt/shared/libtorch/.active"
    assert not {"platformdirs", "hashlib", "re", "pathlib", "typing"} & set(modules.split())
    asked = "from platformdirs import user_state_path; print(user_state_path('flodl'))"
    argv = [sys.executable, "-c", asked]
    theirs = subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
    assert file.startswith(f"{theirs.strip()}/active/")


def test_a_choice_that_was_removed_gives_way_to_that_of_the_store(nobody, libtorch, shared):
    assert nobody("activate", "precompiled/cpu").returncode == 0
    assert libtorch("remove", "precompiled/cpu").exit == 0
    found = shared[0] / "libtorch/precompiled/cu130"
    assert f"export LIBTORCH={found}\n" in nobody("env").stdout


def test_a_store_on_a_read_only_mount_is_read_by_every_command(nobody, shared):
    mount = ["mount", "--bind", "-o", "ro", str(shared[0]), str(shared[0])]
    made = subprocess.run(mount, capture_output=True, text=True)
    if made.returncode:
        pytest.skip("this machine mounts nothing")
    try:
        reads(nobody, *shared)
    finally:
        subprocess.run(["umount", str(shared[0])], check=True)


@pytest.mark.parametrize("words", [["remove", "precompiled/cpu"], ["install", "--from", "OTHER"]])
def test_what_writes_is_refused_in_one_line(nobody, tmp_path, words):
    other = torch_wheel(tmp_path / "wheels", "2.15.0+cpu")
    done = nobody(*(str(other) if word == "OTHER" else word for word in words))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    told = {
        "remove": "you may not write to",
        "install": "choose a folder you may write to: FLODL_HOME=DIR fdl libtorch install",
    }
    assert told[words[0]] in done.stderr
