"""The folder of variants: whose it is, what gets in, what a dead process leaves behind."""

import signal
import subprocess
import sys

import pytest

from fdl.base.errors import LibtorchError
from fdl.libtorch.store import Store, home, locate
from tests.rows import each_row

FACTS = {"cuda": "none", "torch": "2.10.0"}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "root", "project")


def put(store, id="precompiled/cpu", text="first"):
    with store.staging() as staging:
        (staging / "new" / "lib").mkdir(parents=True)
        (staging / "new" / "lib" / "libtorch.so").write_text(text)
        with store.lock(id):
            return store.commit(staging / "new", id, FACTS)


def library(store, id="precompiled/cpu"):
    return (store.path(id) / "lib" / "libtorch.so").read_text()


def test_a_variant_gets_in_whole_and_in_the_place_of_another(store):
    assert store.installed() == []
    put(store)
    assert store.activate("precompiled/cpu").facts == FACTS
    put(store, text="second")
    assert library(store) == "second"
    assert [one.id for one in store.installed()] == ["precompiled/cpu"]
    assert store.required().id == "precompiled/cpu"
    assert list((store.folder / ".staging").iterdir()) == []


def test_what_is_no_libtorch_does_not_get_in(store):
    put(store)
    with store.staging() as staging:
        (staging / "lib").mkdir()
        with pytest.raises(LibtorchError, match="not a libtorch"):
            store.commit(staging, "precompiled/cpu", FACTS)
    assert library(store) == "first"


def test_a_variant_that_cannot_be_removed_stays_active(store, monkeypatch):
    put(store)
    store.activate("precompiled/cpu")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    with pytest.raises(LibtorchError, match=r"cannot remove .*: Permission denied"):
        store.remove("precompiled/cpu")
    assert store.required().id == "precompiled/cpu"


def test_a_move_that_fails_puts_the_old_one_back(store):
    put(store)
    with store.staging() as staging:
        new = staging / "new"
        (new / "lib").mkdir(parents=True)
        (new / "lib" / "libtorch.so").write_text("second")
        # Somebody tidies up too early.
        new.rename(staging / "away")
        with pytest.raises(LibtorchError):
            store.commit(new, "precompiled/cpu", FACTS)
    assert library(store) == "first"


@each_row("id", ["", "cpu", "precompiled/", "precompiled/a/b", "lib/cpu", "builds/."])
def test_what_names_no_variant_is_refused(store, id):
    for function in (store.path, store.get, store.activate, store.remove):
        with pytest.raises(LibtorchError, match="is not a libtorch variant"):
            function(id)


def test_variants_of_others_are_not_looked_at(store):
    put(store, "builds/sm61-sm120")
    (store.folder / "precompiled" / "not installed" / "lib").mkdir(parents=True)
    (store.folder / "precompiled" / "empty").mkdir()
    assert [one.id for one in store.installed()] == ["builds/sm61-sm120"]
    with pytest.raises(LibtorchError, match="installed: builds/sm61-sm120"):
        store.get("precompiled/cpu")


STAGES = """
import sys, time
from pathlib import Path
from fdl.libtorch.store import Store
store = Store(Path(sys.argv[1]), "project")
with store.staging() as folder:
    (folder / "half").write_text("made")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_the_staging_of_a_dead_process_is_removed_and_that_of_a_living_one_is_not(store):
    argv = [sys.executable, "-c", STAGES, str(store.root)]
    dead, living = (subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2))
    try:
        folders = [process.stdout.readline().strip() for process in (dead, living)]
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        with store.staging():
            pass
        left = {str(one) for one in (store.folder / ".staging").iterdir() if one.is_dir()}
        assert left == {folders[1]}
    finally:
        for process in (dead, living):
            process.kill()
            process.communicate()


def test_the_lock_of_a_dead_process_is_free(store, capsys):
    holds = STAGES.replace("store.staging() as folder", "store.lock('precompiled/cpu')").replace(
        '(folder / "half").write_text("made")', "folder = 1"
    )
    argv = [sys.executable, "-c", holds, str(store.root)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.kill()
    process.communicate()
    with store.lock("precompiled/cpu"):
        assert capsys.readouterr().err == ""


def test_whose_store_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    environ = {"FLODL_HOME": str(tmp_path / "home")}
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    assert locate(str(deep), environ) == Store(tmp_path / "home", "global")
    assert home({}) == tmp_path / "me" / ".flodl"

    (tmp_path / "a" / "b" / "fdl.yml").write_text("commands: {}\n")
    assert locate(str(deep), environ) == Store(tmp_path / "a" / "b", "project")
    (tmp_path / "a" / "pyproject.toml").write_text(
        '[project]\nname = "a"\ndependencies = ["numpy", "flodl[train]==1.0"]\n'
    )
    assert locate(str(deep), environ) == Store(tmp_path / "a", "project")
    (deep / "libtorch").mkdir()
    (deep / "libtorch" / ".active").write_text("")
    assert locate(str(deep), environ) == Store(deep, "project")
    assert locate(str(deep), environ, use_global=True).scope == "global"


@each_row(
    "name",
    [
        *("flodl", "Flodl>=1", "flodl[train] ; python_version > '3'", " flodl (>=1)"),
        "flodl @ https://example.org/flodl.whl",
    ],
)
def test_a_requirement_on_flodl_makes_a_project(tmp_path, name):
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "a"\ndependencies = ["{name}"]\n')
    environ = {"FLODL_HOME": str(tmp_path / "home")}
    assert locate(str(tmp_path), environ) == Store(tmp_path, "project")


@each_row("name", ["flodl-extras", "flodl_x", "flodlx", "notflodl", "flodl >< 1"])
def test_a_requirement_with_a_similar_name_makes_no_project(tmp_path, name):
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "a"\ndependencies = ["{name}"]\n')
    environ = {"FLODL_HOME": str(tmp_path / "home")}
    assert locate(str(tmp_path), environ).scope == "global"


@each_row(
    "text", ["project = 5", "[project]\ndependencies = 5", "[project]\ndependencies = [5]", "["]
)
def test_a_project_file_that_makes_no_sense_names_no_project(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    environ = {"FLODL_HOME": str(tmp_path / "home")}
    assert locate(str(tmp_path), environ).scope == "global"
