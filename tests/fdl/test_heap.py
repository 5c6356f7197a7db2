"""The heap of an entry's program: what fdl sets, and who can decline."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fdl.plan import heap
from fdl.plan.heap import TUNABLES_VARIABLE as TUNABLES, tunables
from tests.fdl.docker_engine import Engine
from tests.fdl.terminal import outside_container
from tests.rows import each_row

OURS = tunables()
FIRST = OURS.partition("=")[0]
ENTRY = "entry: python main.py\n"
PROJECT = {
    "fdl.yml": "commands: {train: , shell: {run: 'echo [$GLIBC_TUNABLES]'}}",
    "train/fdl.yml": ENTRY + "commands: {quick: {training: {epochs: 1}}}",
    "train/main.py": "import os  # flodl\nprint(os.environ.get('GLIBC_TUNABLES'))",
}

GLIBC = pytest.mark.skipif(
    not heap._glibc_can() or heap._trains_on_gpu(), reason="the tunables are glibc's"
)

# Frees a block of 50 MB and says how much of it the process still holds, and how many blocks it
# has taken from the system one by one.
MEASURE = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = resident()
size = 50_000_000
block = libc.malloc(size)
libc.memset(block, 1, size)
libc.free(block)
print("kept" if resident() - before > size // 2 else "given back")
"""


def variables(session):
    """Name -> variable of a dry run."""
    assert (session.exit, session.err) == (0, "")
    return {one["name"]: one for one in json.loads(session.out)["variables"]}


def plan(fdl, *words, **env):
    return variables(fdl("--dry-run", "--json", *words, env=env))


@GLIBC
@pytest.mark.parametrize("words", [["train"], ["train", "quick"]])
@pytest.mark.slow
def test_an_entry_gets_a_kept_heap_and_the_plan_says_from_whom(project, fdl, words):
    project(PROJECT)
    assert plan(fdl, *words)[TUNABLES] == {
        "name": TUNABLES,
        "value": OURS,
        "origin": "fdl",
        "secret": False,
        "losers": [],
    }
    assert fdl(*words).out == f"{OURS}\n"
    assert f"{TUNABLES}={OURS}  fdl\n" in fdl("--dry-run", *words).out
    why = fdl("why", f"env.{TUNABLES}", *words)
    assert why.out.splitlines()[0] == f'env.{TUNABLES} = "{OURS}"'


@GLIBC
def test_the_childs_allocator_obeys(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": ENTRY,
            "train/main.py": "# flodl" + MEASURE,
        }
    )
    assert fdl("train").out == "kept\n"
    assert fdl("train", env={"FDL_MEMORY": "default"}).out == "given back\n"


def test_a_run_command_gets_nothing(project, fdl):
    project(PROJECT)
    assert TUNABLES not in plan(fdl, "shell")
    assert fdl("shell").out == "[]\n"


@GLIBC
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"{FIRST}=1", f"{FIRST}=1:" + OURS.partition(":")[2]),
        ("glibc.malloc.arena_max=1", f"glibc.malloc.arena_max=1:{OURS}"),
        pytest.param(OURS, OURS, marks=pytest.mark.slow),
        ("nonsense", "nonsense"),
        pytest.param("", OURS, marks=pytest.mark.slow),
    ],
)
def test_what_the_user_has_set_stays(project, fdl, given, expected):
    project(PROJECT)
    assert fdl("train", env={TUNABLES: given}).out == f"{expected}\n"


@GLIBC
def test_the_plan_keeps_the_users_value_as_the_one_it_extends(project, fdl):
    project(PROJECT)
    known = plan(fdl, "train", GLIBC_TUNABLES="glibc.malloc.top_pad=1")[TUNABLES]
    assert known["losers"] == [{"value": "glibc.malloc.top_pad=1", "origin": "shell"}]


@GLIBC
def test_a_manifests_own_value_is_extended_too(project, fdl):
    project({**PROJECT, "train/fdl.yml": ENTRY + "env: {GLIBC_TUNABLES: glibc.malloc.top_pad=1}"})
    known = plan(fdl, "train")[TUNABLES]
    assert known["value"].startswith("glibc.malloc.top_pad=1:glibc.malloc.mmap_threshold=")
    assert known["value"].count("top_pad") == 1
    assert known["losers"] == [{"value": "glibc.malloc.top_pad=1", "origin": "train/fdl.yml:2:23"}]


@pytest.mark.parametrize(
    "files",
    [
        {"train/fdl.yml": ENTRY + "memory: default"},
        {"fdl.yml": "memory: default\ncommands: {train: }"},
        {"train/fdl.yml": ENTRY + "env: {FDL_MEMORY: default}"},
    ],
)
def test_a_manifest_declines_and_the_program_is_told(project, fdl, files):
    project({**PROJECT, **files, "train/main.py": "import os; print(os.environ['FDL_MEMORY'])"})
    known = plan(fdl, "train")
    assert TUNABLES not in known
    assert known["FDL_MEMORY"]["value"] == "default"
    assert ":" in known["FDL_MEMORY"]["origin"]
    assert fdl("train").out == "default\n"


@GLIBC
def test_the_closer_manifest_and_then_the_variable_decide(project, fdl):
    project(
        {
            **PROJECT,
            "fdl.yml": "memory: default\ncommands: {train: }",
            "train/fdl.yml": ENTRY + "memory: auto",
        }
    )
    assert TUNABLES in plan(fdl, "train")
    assert TUNABLES not in plan(fdl, "train", FDL_MEMORY="default")
    project({"train/fdl.yml": ENTRY + "memory: default"})
    assert TUNABLES in plan(fdl, "train", FDL_MEMORY="auto")


def test_an_unknown_word_is_refused(project, fdl):
    project(PROJECT)
    session = fdl("train", env={"FDL_MEMORY": "lots"})
    assert (session.exit, session.out) == (1, "")
    assert "FDL_MEMORY=lots (shell): must be `auto`, `keep` or `default`" in session.err
    project({"train/fdl.yml": ENTRY + "memory: lots"})
    session = fdl("train")
    assert session.exit == 1
    assert "train/fdl.yml:2:9: `memory` must be `auto`, `keep` or `default`" in session.err


@GLIBC
@pytest.mark.parametrize(
    ("asked", "seen"), [("", OURS), ("default", None)], ids=["kept", "declined"]
)
def test_a_container_gets_the_same(project, tmp_path_factory, asked, seen):
    mount = tmp_path_factory.mktemp("container") / "app"
    folder = project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": ENTRY + "docker: dev",
            "train/main.py": "import os  # flodl",
            "compose.yml": f"services: {{dev: {{image: x, volumes: ['.:{mount}']}}}}",
        }
    )
    mount.symlink_to(folder)
    engine = Engine(tmp_path_factory.mktemp("docker") / "engine", workdir=str(mount))
    env = {"PATH": engine.path, "FDL_MEMORY": asked}
    assert outside_container("train", cwd=folder, env=env).returncode == 0
    call = engine.runs()[-1]
    assert call["env"].get(TUNABLES) == seen
    named = ["FDL_MEMORY"] if asked else [TUNABLES]
    passed = [call["argv"][place + 1] for place, word in enumerate(call["argv"]) if word == "-e"]
    assert [name for name in passed if name in (TUNABLES, "FDL_MEMORY")] == named


@pytest.mark.parametrize(
    "change",
    [
        "def refuse(name): raise ValueError('unrecognized name')\nos.confstr = refuse",
        "import fdl.plan.heap as heap\nheap._DRIVERS = ('/dev/none', '/dev/null')",
    ],
    ids=["another library", "a GPU"],
)
def test_where_it_does_not_help_nothing_is_set(project, change):
    folder = project({**PROJECT, "train/fdl.yml": ENTRY + "memory: keep"})
    program = (
        f"import os, sys\n{change}\nfrom fdl.cli.entry import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != TUNABLES}
    done = subprocess.run(
        [sys.executable, "-c", program, "--dry-run", "--json", "train"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert TUNABLES not in json.loads(done.stdout)["env"]


@GLIBC
def test_only_programs_that_use_flodl_or_ask_keep_their_heap(project, fdl):
    project({**PROJECT, "train/main.py": "import numpy, part.model", "train/part/model.py": ""})
    assert TUNABLES not in plan(fdl, "train")
    assert TUNABLES in plan(fdl, "train", FDL_MEMORY="keep")
    project({"train/part/model.py": "from flodl import Graph"})
    assert TUNABLES in plan(fdl, "train")
    project({"train/main.py": "'see part.model for more'"})  # words, and no import
    assert TUNABLES not in plan(fdl, "train")
    project({"train/part/model.py": "", "train/fdl.yml": ENTRY + "memory: keep"})
    assert TUNABLES in plan(fdl, "train")


@each_row(
    ("memory", "most"),
    [(64 << 30, 1 << 30), (16 << 30, 1 << 30), (8 << 30, 512 << 20), (1 << 29, 1 << 25)],
)
def test_at_most_a_sixteenth_of_the_memory_and_a_gibibyte_is_kept(memory, most, monkeypatch):
    sizes = {"SC_PHYS_PAGES": memory // 4096, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    found = dict(one.split("=") for one in tunables().split(":"))
    assert found == {
        "glibc.malloc.mmap_threshold": str(most),
        "glibc.malloc.trim_threshold": str(most),
        "glibc.malloc.top_pad": str(min(64 << 20, most)),
    }
