"""Builds in a container, with a Docker that runs the script of the image on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fdl.libtorch.build.plan import CONTAINER, CONTAINER_CUDA
from tests.conftest import Fdl
from tests.fdl.libtorch_build.docker import Docker
from tests.fdl.libtorch_build.sources import GIT, make_repository

pytestmark = pytest.mark.slow

PATIENCE = 120

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="builds run on Linux")


def arguments(repository: Path, archs: str) -> tuple[str, ...]:
    fixed = ("--docker", "--global", "--jobs", "2", "--torch", "2.10.0")
    return ("libtorch", "build", "--archs", archs, *fixed, "--repository", str(repository))


@on_linux
def test_a_container_build_ends_with_a_variant_in_use(fdl: Fdl, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repositories")
    docker = Docker(tmp_path / "docker")
    env = {**GIT, "FLODL_HOME": str(tmp_path / "home"), "PATH": docker.path}
    typed = arguments(repository, "12.0 6.1,6.1+PTX")

    failed = fdl(*typed, env={**env, "SAMPLE_GATE": "fail"}, timeout=PATIENCE)
    done = fdl(*typed, env=env, timeout=PATIENCE)

    assert failed.exit == 1
    assert "#8 1.234 the gate is shut" in failed.err
    assert done.exit == 0, done.err
    assert "continuing the build of builds/sm61-sm120" in done.err
    store = tmp_path / "home" / "libtorch"
    folder = store / "builds" / "sm61-sm120"
    assert (store / ".active").read_text() == "builds/sm61-sm120\n"
    assert (folder / ".arch").read_text().splitlines() == [
        f"cuda={CONTAINER_CUDA}",
        "torch=2.10.0",
        "archs=6.1+PTX 12.0",
        "source=compiled",
    ]
    assert sorted(path.name for path in (folder / "lib").iterdir()) == [
        "libc10.so",
        # Where the image is gone, the toolkit's libraries are gone with it.
        "libcublas.so.12",
        "libtorch.so",
        "libtorch_cpu.so",
        "libtorch_cuda.so",
    ]
    assert not (folder / "lib/libcublas.so.12").is_symlink()
    assert (folder / "include/torch/torch.h").is_file()
    assert (folder / "share/cmake/Torch/TorchConfig.cmake").is_file()

    log = (store / ".cache" / "build-sm61-sm120.log").read_text()
    name, image = "flodl-libtorch-sm61-sm120", "flodl-libtorch-sm61-sm120:2.10.0"
    settings = (
        f"REPOSITORY={repository}",
        "TORCH_VERSION=2.10.0",
        "TORCH_CUDA_ARCH_LIST=6.1+PTX;12.0",
        "MAX_JOBS=2",
    )
    flags = [word for one in settings for word in ("--build-arg", one)]
    build = ["build", "--progress=plain", *flags, "--tag", image, str(CONTAINER)]
    tree = store / ".cache" / "build-sm61-sm120"
    assert docker.words() == [
        build,
        build,
        ["rm", "--force", name],
        ["create", "--name", name, image, "none"],
        ["cp", f"{name}:/usr/local/libtorch", str(tree)],
        ["rm", name],
        ["image", "rm", image],
    ]
    assert docker.calls()[0]["env"]["DOCKER_BUILDKIT"] == "1"
    assert [path.name for path in tree.iterdir()] == ["settings"], "no second copy is kept"

    assert log.count("c10.dir/c10/one.cpp.o") == 1, "the second build continues the first"
    assert log.count("$ git fetch") == 1
    assert re.search(r"libtorch 2.10.0 sm61-sm120: (\d+)/\1 steps 100%", done.err)


@on_linux
def test_a_docker_that_is_down_is_named(fdl: Fdl, tmp_path: Path) -> None:
    docker = Docker(tmp_path / "docker", daemon=False)

    done = fdl(*arguments(Path("/sources"), "7.5"), env={"PATH": docker.path})

    assert done.exit == 1
    assert "Docker cannot be used: Cannot connect to the Docker daemon" in done.err
    assert "fdl libtorch build --native" in done.err
    assert docker.words() == []


def test_the_dockerfile_has_no_faults() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("hadolint is not installed")

    done = subprocess.run([linter, str(CONTAINER / "Dockerfile")], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_image_has_the_cuda_that_is_recorded() -> None:
    base = re.search(
        r"^FROM nvidia/cuda:(\d+\.\d+)\.\d+-", (CONTAINER / "Dockerfile").read_text(), re.MULTILINE
    )

    assert base is not None
    assert base[1] == CONTAINER_CUDA
