"""Where a build runs: what is asked for, what is there, and what the user says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fdl.base.errors import BuildError
from fdl.libtorch.build.plan import (
    BackEnd,
    Tools,
    choose,
    docker_problem,
    find_tools,
    require_linux,
)
from tests.conftest import Fdl
from tests.fdl.libtorch_build.docker import Docker
from tests.fdl.terminal import Terminal

COMPLETE = Tools("", (), has_ninja=True)
BARE = Tools("", ("nvcc", "cmake"), has_ninja=True)


@pytest.mark.parametrize(
    ("wanted", "tools", "problem", "says", "chosen"),
    [
        (None, COMPLETE, "", "docker", "docker"),
        (None, COMPLETE, "", "native", "native"),
        (None, COMPLETE, "down", None, "native"),
        (None, BARE, "", None, "docker"),
        ("docker", COMPLETE, "", None, "docker"),
        ("native", COMPLETE, "", None, "native"),
    ],
)
def test_only_a_real_choice_is_asked_about(
    wanted: BackEnd | None, tools: Tools, problem: str, says: BackEnd | None, chosen: BackEnd
) -> None:
    def ask() -> BackEnd:
        assert says is not None, "there is nothing to choose"
        return says

    assert choose(wanted, tools, lambda: problem, ask) == chosen


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (None, "Docker cannot be used: down, and a native build lacks nvcc, cmake"),
        ("docker", "Docker cannot be used: down"),
        ("native", "a native build lacks nvcc, cmake"),
    ],
)
def test_what_is_missing_is_listed(wanted: BackEnd | None, words: str) -> None:
    with pytest.raises(BuildError) as refusal:
        choose(wanted, BARE, lambda: "down", lambda: "docker")

    assert refusal.value.message == words
    assert refusal.value.hint


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_refused(platform: str) -> None:
    require_linux("linux")
    with pytest.raises(BuildError, match=f"built on Linux, and this is {platform}"):
        require_linux(platform)


def test_on_a_machine_without_tools_all_are_listed(fdl: Fdl, tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "CUDA_HOME": "", "CUDA_PATH": "", "FLODL_HOME": str(tmp_path)}

    done = fdl("libtorch", "build", "--archs", "8.6", env=env)

    assert (done.exit, done.out) == (1, "")
    assert "Docker cannot be used: there is no docker" in done.err
    assert "a native build lacks nvcc, cmake, python3, git, gcc or cc" in done.err
    assert "hint: install Docker, or the missing tools" in done.err
    assert list(tmp_path.iterdir()) == []


def test_the_toolkit_of_cuda_home_is_found_behind_the_path(tmp_path: Path) -> None:
    tool = tmp_path / "cuda" / "bin" / "nvcc"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)

    assert "nvcc" in find_tools({"PATH": str(tmp_path)}).missing
    found = find_tools({"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path / "cuda")})
    assert "nvcc" not in found.missing
    assert found.path == os.pathsep.join([str(tmp_path), str(tool.parent)])


def test_docker_is_asked_whether_it_works(tmp_path: Path) -> None:
    up = Docker(tmp_path / "up")
    down = Docker(tmp_path / "down", daemon=False)

    assert docker_problem({"PATH": up.path}) == ""
    assert docker_problem({"PATH": down.path}).startswith("Cannot connect to the Docker daemon")
    assert docker_problem({"PATH": str(tmp_path)}) == "there is no docker"


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("typed", "begins"),
    [
        ("\n", "compile in a container"),
        ("d\n", "compile in a container"),
        ("n\n", "fetch the sources"),
    ],
)
def test_a_person_at_a_terminal_chooses(tmp_path: Path, typed: str, begins: str) -> None:
    docker = Docker(tmp_path / "docker")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("nvcc", "cmake", "git", "gcc"):
        (tools / name).write_text("#!/bin/sh\necho release 12.8\nexec test $1 != init\n")
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}{os.pathsep}{docker.path}", "FLODL_HOME": str(tmp_path / "home")}

    arguments = ("libtorch", "build", "--archs", "8.6")
    with Terminal(*arguments, cwd=tmp_path, env=env) as terminal:
        terminal.read_until("Build in Docker, or natively with the tools of this machine? [D/n] ")
        terminal.press(typed)
        terminal.read_until(begins)
        assert terminal.finish() == 1


def test_a_docker_that_is_silent_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nexec sleep 5\n")
    program.chmod(0o755)
    monkeypatch.setattr("fdl.libtorch.build.plan._DOCKER_PATIENCE_S", 0.1)

    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    assert docker_problem({"PATH": path}) == "it did not answer within 0.1 s"
