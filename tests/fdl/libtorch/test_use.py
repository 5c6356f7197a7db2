"""Listing, choosing, removing and using variants."""

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from fdl.libtorch.active import Variant
from fdl.libtorch.usage import render
from tests.fdl.libtorch.conftest import ids

pytestmark = pytest.mark.usefixtures("mirror")


def variant(store: Path, id: str, *facts: str) -> Path:
    folder = store / id
    (folder / "lib").mkdir(parents=True)
    (folder / ".arch").write_text("".join(f"{one}\n" for one in facts))
    return folder


@pytest.fixture
def cpu(store):
    return variant(store, "precompiled/cpu", "cuda=none", "torch=2.10.0", "archs=cpu")


@pytest.fixture
def cuda(store):
    folder = variant(
        store,
        "precompiled/cu128",
        "cuda=12.8",
        "torch=2.10.0",
        "archs=7.0 7.5",
        "source=precompiled",
    )
    (store / ".active").write_text("precompiled/cu128\n")
    return folder


def test_an_empty_list_names_the_command_that_installs(libtorch, store):
    shown = libtorch("list")
    assert (shown.exit, shown.out) == (0, "")
    assert shown.err == f"no libtorch is installed in {store}; type: fdl libtorch install\n"
    assert json.loads(libtorch("list", "--json").out) == []


@pytest.mark.usefixtures("cpu")
def test_list_shows_what_is_installed_and_active(libtorch, cuda, store):
    variant(store, "builds/sm61-sm120", "cuda=12.8", "source=compiled")
    (store / "precompiled" / "half").mkdir()
    shown = libtorch("list")
    assert shown.out.splitlines() == [
        f"{'VARIANT':<26}  TORCH   CUDA  GPU CODE",
        f"{'builds/sm61-sm120':<26}          12.8",
        f"{'precompiled/cpu':<26}  2.10.0        cpu",
        "precompiled/cu128 (active)  2.10.0  12.8  7.0 7.5",
    ]
    entries = json.loads(libtorch("list", "--json").out)
    assert [(one["variant"], one["active"]) for one in entries] == [
        ("builds/sm61-sm120", False),
        ("precompiled/cpu", False),
        ("precompiled/cu128", True),
    ]
    assert entries[2] == {
        "variant": "precompiled/cu128",
        "active": True,
        "torch": "2.10.0",
        "cuda": "12.8",
        "archs": "7.0 7.5",
        "source": "precompiled",
        "path": str(cuda),
    }


def test_an_empty_store_lists_nothing(libtorch, store):
    shown = libtorch("list")
    assert (shown.exit, shown.out) == (0, "")
    assert str(store) in shown.err
    assert json.loads(libtorch("list", "--json").out) == []
    assert not store.exists()


@pytest.mark.usefixtures("cpu")
def test_info_leaves_out_what_is_not_recorded(libtorch, cuda):
    rows = libtorch("info").out.splitlines()
    assert [row.split(maxsplit=1) for row in rows] == [
        ["Active:", "precompiled/cu128"],
        ["Version:", "2.10.0"],
        ["CUDA:", "12.8"],
        ["Archs:", "7.0 7.5"],
        ["Source:", "precompiled"],
        ["Path:", str(cuda)],
    ]
    libtorch("activate", "precompiled/cpu")
    assert "Source" not in libtorch("info").out
    document = json.loads(libtorch("info", "--json").out)
    assert document["active"] == "precompiled/cpu"
    assert (document["cuda"], document["source"]) == (None, None)


@pytest.mark.usefixtures("cpu")
def test_info_fails_when_nothing_is_active(libtorch, store):
    done = libtorch("info")
    assert (done.exit, done.out) == (1, "")
    assert "hint: fdl libtorch activate precompiled/cpu" in done.err
    (store / ".active").write_text("precompiled/cu126\n")
    assert "names precompiled/cu126, which is not installed any more" in libtorch("info").err


@pytest.mark.case("cli", 56)
def test_activate_unknown_lists_and_remove_active_blanks_and_remove_dots_is_refused(
    libtorch, cpu, cuda, store
):
    unknown = libtorch("activate", "precompiled/cu999")
    assert unknown.exit == 1
    assert "precompiled/cpu, precompiled/cu128" in unknown.err
    assert (store / ".active").read_text() == "precompiled/cu128\n"

    short = libtorch("activate", "cpu")
    assert short.exit == 1
    assert "hint: did you mean `precompiled/cpu`?\n" in short.err

    for climbing in ("..", "precompiled/..", "../elsewhere", "precompiled/../../home"):
        refused = libtorch("remove", climbing)
        assert refused.exit == 1
        assert "is not a libtorch variant" in refused.err
    assert cpu.is_dir()
    assert cuda.is_dir()

    assert libtorch("remove", "precompiled/cu128").exit == 0
    assert not cuda.exists()
    assert (store / ".active").read_text() == ""
    assert ids(libtorch("list")) == ["precompiled/cpu"]


@pytest.mark.parametrize("verb", ["activate", "remove"])
@pytest.mark.usefixtures("cpu", "cuda")
def test_without_an_id_the_variants_are_listed_on_stderr(libtorch, verb):
    done = libtorch(verb)
    assert (done.exit, done.out) == (2, "")
    assert f"fdl libtorch {verb} ID" in done.err
    assert "precompiled/cpu, precompiled/cu128\n" in done.err


@pytest.mark.usefixtures("cpu", "cuda")
def test_removing_another_variant_leaves_the_active_one(libtorch, store):
    assert libtorch("remove", "precompiled/cpu").exit == 0
    assert (store / ".active").read_text() == "precompiled/cu128\n"
    assert libtorch("remove", "precompiled/cpu").exit == 1


@pytest.mark.usefixtures("cuda")
def test_dry_runs_change_nothing(libtorch, cpu, store):
    assert str(cpu) in libtorch("remove", "precompiled/cpu", "--dry-run").out
    assert "precompiled/cpu" in libtorch("activate", "precompiled/cpu", "-n").out
    assert libtorch("remove", "precompiled/cu126", "--dry-run").exit == 1
    assert cpu.is_dir()
    assert (store / ".active").read_text() == "precompiled/cu128\n"


@pytest.mark.usefixtures("cpu")
def test_a_project_has_its_own_store_and_global_names_the_other(libtorch, project):
    root = project({"app/fdl.yml": "commands: {}\n"}) / "app"
    variant(root / "libtorch", "precompiled/cu126")
    assert ids(libtorch("list", cwd="app")) == ["precompiled/cu126"]
    assert ids(libtorch("list", "--global", cwd="app")) == ["precompiled/cpu"]
    (root / "deep").mkdir()
    libtorch("activate", "precompiled/cu126", cwd="app/deep")
    assert (root / "libtorch" / ".active").read_text() == "precompiled/cu126\n"


AWKWARD = 'it\'s a $HOME, "really" `so`;'


@pytest.fixture
def awkward(tmp_path):
    folder = tmp_path / AWKWARD
    (folder / "lib").mkdir(parents=True)
    return Variant("precompiled/cpu", str(folder), {"torch": "2.10.0"})


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish"])
@pytest.mark.parametrize("before", [None, "/opt/lib"])
def test_every_shell_takes_the_lines_literally(awkward, shell, before):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    lines = render("shell", awkward, {"SHELL": program}, "linux")
    environ = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}
    if before:
        environ["LD_LIBRARY_PATH"] = before
    done = subprocess.run(
        [program, "-c", f"{lines}\nenv -0"], env=environ, capture_output=True, text=True
    )
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)
    assert found["LIBTORCH"] == found["LIBTORCH_PATH"] == awkward.path
    expected = f"{awkward.path}/lib" + (f":{before}" if before else "")
    assert found["LD_LIBRARY_PATH"] == expected
    assert found["CMAKE_PREFIX_PATH"] == awkward.path


def test_direnv_gets_bash_whatever_the_users_shell_is(awkward):
    lines = render("direnv", awkward, {"SHELL": "/usr/bin/fish"}, "linux")
    assert lines == render("shell", awkward, {"SHELL": "/bin/bash"}, "linux")


def test_macos_and_windows_have_their_own_variables():
    one = Variant("precompiled/cpu", "/opt/torch", {})
    assert "export DYLD_LIBRARY_PATH=/opt/torch/lib" in render("shell", one, {}, "darwin")
    assert "$env:LIBTORCH = '/opt/torch'\n" in render("shell", one, {}, "win32")
    assert "$env:PATH = '/opt/torch/lib;' + $env:PATH\n" in render("shell", one, {}, "win32")
    assert "rustflags" not in render("cargo", one, {}, "win32")


TORCH_CONFIG = """
find_library(c10_LIBRARY libc10.so PATHS "${CMAKE_CURRENT_LIST_DIR}/../../../lib" NO_DEFAULT_PATH)
message(STATUS "found ${Torch_DIR} ${c10_LIBRARY}")
"""
"""As that of Torch, it leaves in CMake's cache what it has found."""


def test_a_build_folder_of_cmake_uses_the_libtorch_of_the_new_preset(libtorch, cpu, cuda, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    folder = tmp_path / "elsewhere"
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\nproject(line NONE)\nfind_package(Torch REQUIRED)\n"
    )
    for path in (cpu, cuda):
        config = path / "share/cmake/Torch"
        config.mkdir(parents=True)
        (config / "TorchConfig.cmake").write_text(TORCH_CONFIG)
        (path / "lib/libc10.so").touch()
        preset = libtorch("env", f"precompiled/{path.name}", "--format", "cmake")
        (folder / "CMakePresets.json").write_text(preset.out)
        done = subprocess.run(
            ["cmake", "--preset", "libtorch"], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert f"-- found {config} {path}/lib/libc10.so\n" in done.stdout


@pytest.mark.parametrize("format", ["shell", "direnv", "cargo", "json"])
def test_a_libtorch_of_the_old_abi_says_so_to_tch(libtorch, cuda, format):
    assert "ABI" not in libtorch("env", "--format", format).out
    config = cuda / "share/cmake/Torch"
    config.mkdir(parents=True)
    (config / "TorchConfig.cmake").write_text('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n')
    line = {
        "shell": "export LIBTORCH_CXX11_ABI=0\n",
        "direnv": "export LIBTORCH_CXX11_ABI=0\n",
        "cargo": 'LIBTORCH_CXX11_ABI = "0"\n',
        "json": '"LIBTORCH_CXX11_ABI": "0"',
    }
    assert line[format] in libtorch("env", "--format", format).out


def test_cargo_reads_the_snippet_as_toml(awkward):
    document = tomllib.loads(render("cargo", awkward, {}, "linux"))
    assert document["env"]["LIBTORCH"] == awkward.path
    assert document["build"]["rustflags"][-1] == f"link-arg={awkward.path}/lib"


def test_json_has_the_variables_as_a_script_sets_them(libtorch, cuda):
    env = {"LD_LIBRARY_PATH": "/other/lib", "CMAKE_PREFIX_PATH": ""}
    assert json.loads(libtorch("env", "--format", "json", env=env).out) == {
        "LIBTORCH": str(cuda),
        "LIBTORCH_PATH": str(cuda),
        "LD_LIBRARY_PATH": f"{cuda}/lib:/other/lib",
        "CMAKE_PREFIX_PATH": str(cuda),
    }


def test_json_has_the_variables_with_their_whole_values_at_top_level(libtorch, cuda):
    env = {"LD_LIBRARY_PATH": "/opt/lib", "CMAKE_PREFIX_PATH": ""}
    document = json.loads(libtorch("env", "--format", "json", env=env).out)
    assert document["LIBTORCH"] == document["LIBTORCH_PATH"] == str(cuda)
    assert document["LD_LIBRARY_PATH"] == f"{cuda}/lib:/opt/lib"
    assert document["CMAKE_PREFIX_PATH"] == str(cuda)


def test_env_of_a_variant_that_is_not_active(libtorch, cpu, cuda):
    assert f"export LIBTORCH={cpu}\n" in libtorch("env", "precompiled/cpu").out
    assert f"export LIBTORCH={cuda}\n" in libtorch("env").out
    assert libtorch("env", "precompiled/cu126").exit == 1
    assert libtorch("env", "--format", "make").exit == 2


def test_exec_sets_the_variables_for_one_program(libtorch, cuda):
    script = 'echo "$LIBTORCH|$LD_LIBRARY_PATH|$1"; exit 7'
    env = {"LD_LIBRARY_PATH": "/opt/lib"}
    done = libtorch("exec", "--", "sh", "-c", script, "sh", "--dry-run", env=env)
    assert done.out == f"{cuda}|{cuda}/lib:/opt/lib|--dry-run\n"
    assert done.exit == 7


@pytest.mark.usefixtures("cuda")
def test_exec_becomes_the_program(libtorch):
    done = libtorch("exec", "--", "sh", "-c", "kill -TERM $$")
    assert done.exit == -15


@pytest.mark.usefixtures("cuda")
def test_exec_of_what_cannot_run(libtorch, tmp_path):
    missing = libtorch("exec", "--", "no-such-program")
    assert missing.exit == 127
    assert "no such program: `no-such-program`" in missing.err
    (tmp_path / "elsewhere" / "data.txt").write_text("text")
    refused = libtorch("exec", "--", "./data.txt")
    assert refused.exit == 126
    assert "hint: chmod +x ./data.txt" in refused.err
    assert libtorch("exec").exit == 2
    assert libtorch("remove", "precompiled/cu128").exit == 0
    assert libtorch("exec", "--", "true").exit == 1


def test_exec_dry_run_shows_what_it_would_do(libtorch, cuda):
    shown = libtorch("exec", "--dry-run", "--", "touch", "a file").out
    assert shown.endswith("touch 'a file'\n")
    assert f"export LIBTORCH={cuda}\n" in shown


def test_escapes_in_the_facts_of_a_variant_do_not_reach_the_terminal(libtorch, cuda):
    facts = cuda / ".arch"
    facts.write_text("cuda=12.8\x1b]0;owned\x07\ntorch=2.10.0\x1b[2J\narchs=8.6\n")
    for words in (["list"], ["info"], ["env"], ["check"]):
        done = libtorch(*words)
        assert "\x1b" not in done.out + done.err
        assert "Traceback" not in done.err
    assert "2.10.0" in libtorch("list").out
