"""Native builds, for real: cloned, configured, compiled, installed, verified, put into use."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Fdl, Project, Session
from tests.fdl.libtorch_build.sources import GIT, change, git, make_repository, write_nvcc

PATIENCE = 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="builds run on Linux"),
    *(
        pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}")
        for tool in ("git", "cmake", "ninja", "g++")
    ),
]


@dataclass(frozen=True)
class Workshop:
    """A repository and a store that the builds of these tests share, as a user's builds do.

    Each test builds for architectures of its own, so nothing that it asserts depends on others.
    """

    repository: Path
    home: Path
    env: dict[str, str]

    @property
    def store(self) -> Path:
        return self.home / "libtorch"

    def cache(self) -> Path:
        """Where sources and packages are kept; there also before the first build."""
        folder = self.store / ".cache"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def args(self, archs: str, *more: str) -> tuple[str, ...]:
        fixed = ("--native", "--global", "--jobs", "1", "--torch", "2.10.0")
        source = ("--repository", str(self.repository))
        return ("libtorch", "build", "--archs", archs, *fixed, *source, *more)

    def log(self, name: str) -> str:
        return (self.store / ".cache" / f"build-{name}.log").read_text("utf-8")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("workshop")
    home = folder / "home"
    path = write_nvcc(folder / "bin")
    env = {**GIT, "FLODL_HOME": str(home), "PATH": path, "CUDA_VISIBLE_DEVICES": ""}
    return Workshop(make_repository(folder / "repositories"), home, env)


def build(fdl: Fdl, workshop: Workshop, archs: str, *more: str, **env: str) -> Session:
    return fdl(*workshop.args(archs, *more), env={**workshop.env, **env}, timeout=PATIENCE)


def test_a_build_ends_with_a_variant_in_use(fdl: Fdl, workshop: Workshop) -> None:
    done = build(fdl, workshop, "12.0 6.1,6.1+PTX")

    assert done.exit == 0, done.err
    folder = workshop.store / "builds" / "sm61-sm120"
    assert f"export LIBTORCH={folder}\n" in done.out
    assert "builds/sm61-sm120 is built, and active" in done.err
    assert (workshop.store / ".active").read_text() == "builds/sm61-sm120\n"
    assert (folder / ".arch").read_text().splitlines() == [
        "cuda=12.8",
        "torch=2.10.0",
        "archs=6.1+PTX 12.0",
        "source=compiled",
    ]
    assert (folder / "build-version").read_text() == "2.10.0+cu128\n"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "include",
        "lib",
        "share",
    ]
    # The folder of sources that stands among the built libraries is no part of the variant.
    assert sorted(path.name for path in (folder / "lib").iterdir()) == [
        "libc10.so",
        "libtorch.so",
        "libtorch_cpu.so",
        "libtorch_cuda.so",
    ]
    assert (folder / "include/torch/torch.h").is_file()
    assert (folder / "share/cmake/Torch/TorchConfig.cmake").is_file()
    assert list((workshop.store / ".staging").iterdir()) == []

    checked = fdl("libtorch", "check", "--archs", "6.1;12.0;9.0", "--json", env=workshop.env)
    verdicts = {one["sm"]: one["verdict"] for one in json.loads(checked.out)["gpus"]}
    assert verdicts == {"sm_61": "native", "sm_120": "native", "sm_90": "jit"}

    log = workshop.log("sm61-sm120")
    assert "$ git fetch --depth 1 --force origin refs/tags/v2.10.0:refs/tags/v2.10.0" in log
    assert "built with the probe and 1 jobs" in log, "packages of the build come from its list"
    assert re.search(r"^\[1/\d+\] Building CXX object", log, re.MULTILINE)
    assert "installed" in log.splitlines()[-1]
    assert re.search(r"libtorch 2.10.0 sm61-sm120: (\d+)/\1 steps 100%", done.err)


def test_a_second_call_builds_nothing_and_still_activates(fdl: Fdl, workshop: Workshop) -> None:
    assert build(fdl, workshop, "7.5").exit == 0
    (workshop.store / ".active").write_text("")
    log = workshop.log("sm75")

    again = build(fdl, workshop, "7.5")

    assert again.exit == 0
    assert "builds/sm75 is built already" in again.err
    assert (workshop.store / ".active").read_text() == "builds/sm75\n"
    assert workshop.log("sm75") == log


def test_in_a_project_the_variant_is_the_projects(
    fdl: Fdl, workshop: Workshop, project: Project
) -> None:
    folder = project({"fdl.yml": "commands: {}\n"})
    own = [word for word in workshop.args("12.0") if word != "--global"]
    # The sources and packages of the other builds serve here as well.
    shutil.copytree(workshop.cache(), folder / "libtorch" / ".cache", symlinks=True)

    done = fdl(*own, env=workshop.env, timeout=PATIENCE)

    assert (done.exit, done.out) == (0, ""), done.err
    assert (folder / "libtorch" / ".active").read_text() == "builds/sm120\n"
    assert (folder / "libtorch" / "builds" / "sm120" / "lib" / "libtorch.so").is_file()
    assert "how to use it: fdl libtorch env" in done.err
    assert not (workshop.store / "builds" / "sm120").exists()


def test_a_failed_build_continues_where_it_stopped(fdl: Fdl, workshop: Workshop) -> None:
    active = workshop.store / ".active"
    before = active.read_text() if active.exists() else None

    failed = build(fdl, workshop, "8.0", SAMPLE_GATE="fail")

    assert failed.exit == 1
    log = workshop.store / ".cache" / "build-sm80.log"
    assert "failed with exit code 1; its last lines:" in failed.err
    assert "the gate is shut" in failed.err
    shown = failed.err[failed.err.index("its last lines:") :].splitlines()[1:-1]
    assert 1 < len([line for line in shown if line.startswith("  ")]) <= 4
    assert f"hint: all output is in {log}" in failed.err
    assert not (workshop.store / "builds" / "sm80").exists()
    assert (active.read_text() if active.exists() else None) == before
    assert "Building CXX object CMakeFiles/c10.dir/c10/one.cpp.o" in log.read_text()

    resumed = build(fdl, workshop, "8.0")

    assert resumed.exit == 0, resumed.err
    assert "continuing the build of builds/sm80 that an earlier call has begun" in resumed.err
    assert "continuing" not in failed.err
    compiled = re.findall(r"Building CXX object \S*/(\S+)\.cpp\.o", log.read_text())
    expected = ["cpu", "cublas", "kernel", "one", "tiny", "torch", "two"]
    assert sorted(compiled) == expected, "each file is compiled once"
    fetched = log.read_text().count("$ git fetch")
    assert fetched <= 1, "sources that are complete are not fetched again"
    assert active.read_text() == "builds/sm80\n"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_build_leaves_no_process_and_continues(
    workshop: Workshop, tmp_path: Path, fdl: Fdl, number: signal.Signals
) -> None:
    archs = {signal.SIGINT: "8.6", signal.SIGTERM: "9.0"}[number]
    name = f"sm{archs.replace('.', '')}"
    gate = tmp_path / "gate"
    running = subprocess.Popen(
        [sys.executable, "-m", "fdl", *workshop.args(archs)],
        env={**os.environ, **workshop.env, "CI": "1", "SAMPLE_GATE": str(gate)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + PATIENCE
    while not gate.exists():
        assert running.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.05)

    running.send_signal(number)
    _, err = running.communicate(timeout=PATIENCE)

    assert running.returncode == 128 + number
    assert "stopped; what is compiled is kept: run the same command again" in err
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(gate.read_text()), 0)
    assert workshop.log(name).endswith("interrupted\n")
    assert not (workshop.store / "builds" / name).exists()

    resumed = build(fdl, workshop, archs)

    assert resumed.exit == 0, resumed.err
    assert workshop.log(name).count("c10.dir/c10/one.cpp.o") == 1


def test_a_second_build_waits_for_the_first(workshop: Workshop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    env = {**os.environ, **workshop.env, "CI": "1", "SAMPLE_GATE": str(gate)}
    command = [sys.executable, "-m", "fdl"]
    first = subprocess.Popen([*command, *workshop.args("7.5;8.6")], env=env)
    limit = time.monotonic() + PATIENCE
    while not gate.exists():
        assert first.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.05)

    second = subprocess.Popen(
        [*command, *workshop.args("7.5;9.0")], env=env, stderr=subprocess.PIPE, text=True
    )
    assert second.stderr is not None
    said = second.stderr.readline()
    for process in (second, first):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)

    assert "waiting for another fdl" in said
    assert (first.returncode, second.returncode) == (130, 130)
    assert not (workshop.store / ".cache" / "build-sm75-sm90").exists()


def test_libraries_without_the_code_that_was_asked_for_are_not_installed(
    fdl: Fdl, workshop: Workshop
) -> None:
    failed = build(fdl, workshop, "6.1;8.6+PTX", SAMPLE_LEAVES_OUT="6.1")

    assert failed.exit == 1
    assert "what was built has no code for 6.1; it has code for 8.6+PTX" in failed.err
    assert str(workshop.store / ".cache" / "build-sm61-sm86.log") in failed.err
    assert not (workshop.store / "builds" / "sm61-sm86").exists()
    assert list((workshop.store / ".staging").iterdir()) == []


def test_a_version_without_a_tag_is_told_by_git_itself(fdl: Fdl, workshop: Workshop) -> None:
    done = build(fdl, workshop, "5.0 7.5", "--torch", "9.9.9")

    assert done.exit == 1
    assert "couldn't find remote ref refs/tags/v9.9.9" in done.err
    assert not (workshop.store / "builds" / "sm50-sm75").exists()


def test_a_compiler_that_does_not_know_a_card_is_refused_before_hours_are_lost(
    fdl: Fdl, workshop: Workshop, tmp_path: Path
) -> None:
    path = write_nvcc(tmp_path / "bin", release="13.0", knows="75 80 86 90 120")

    done = build(fdl, workshop, "6.0;12.0+PTX", PATH=path)

    assert done.exit == 1
    assert "nvcc of CUDA 13.0" in done.err
    assert "cannot compile for 6.0; it knows 7.5 8.0 8.6 9.0 12.0" in done.err
    assert "hint: build in a container: fdl libtorch build --docker" in done.err
    assert not (workshop.cache() / "build-sm60-sm120.log").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA compiler")
def test_code_of_the_real_compiler_is_found_in_what_was_built(fdl: Fdl, workshop: Workshop) -> None:
    done = build(fdl, workshop, "7.5;8.0+PTX", PATH=os.environ["PATH"], SAMPLE_NVCC="1")

    assert done.exit == 0, done.err
    facts = (workshop.store / "builds" / "sm75-sm80" / ".arch").read_text()
    told = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True)
    release = re.search(r"release (\d+\.\d+)", told.stdout)
    assert release is not None
    assert f"cuda={release[1]}\n" in facts
    assert "archs=7.5 8.0+PTX\n" in facts


@pytest.mark.slow
def test_sources_of_another_version_replace_those_that_are_there(
    fdl: Fdl, workshop: Workshop
) -> None:
    _tag_newer(workshop.repository)
    assert build(fdl, workshop, "5.0").exit == 0
    # As a git that was killed in the middle leaves it.
    sources = workshop.store / ".cache" / "pytorch"
    (sources / ".git" / "index.lock").touch()
    (sources / "generated.h").touch()

    done = build(fdl, workshop, "5.0", "--torch", "2.10.1")

    assert done.exit == 0, done.err
    folder = workshop.store / "builds" / "sm50"
    assert (folder / "include/torch/torch.h").read_text() == "int newer();\n"
    assert "torch=2.10.1" in (folder / ".arch").read_text()
    assert not (sources / "generated.h").exists()


def test_a_change_of_version_that_breaks_off_is_not_taken_for_either(
    fdl: Fdl, workshop: Workshop
) -> None:
    _tag_newer(workshop.repository)
    modules = (workshop.repository / ".gitmodules").read_text()
    change(workshop.repository, ".gitmodules", modules.replace("tiny\n", "gone\n"), "v2.10.2")
    change(workshop.repository, ".gitmodules", modules, "v2.10.3")
    assert build(fdl, workshop, "5.0;9.0", "--torch", "2.10.1").exit == 0

    broken = build(fdl, workshop, "5.0;8.0", "--torch", "2.10.2")
    done = build(fdl, workshop, "5.0;8.0", "--torch", "2.10.1")

    assert broken.exit == 1
    assert "submodule" in broken.err
    assert done.exit == 0, done.err
    sources = workshop.store / ".cache" / "pytorch"
    assert git(sources, "describe", "--tags").strip() == "v2.10.1"


def _tag_newer(repository: Path) -> None:
    if "v2.10.1" not in git(repository, "tag").split():
        change(repository, "include/torch/torch.h", "int newer();\n", "v2.10.1")
