"""libtorch for a project of CMake: installed from a server, used, and exchanged for another one.

The server of this machine has archives in the form of PyTorch's. The first one has the libraries,
headers and CMake files of the installed torch. The second one has the same with a stand-in for the
library of CUDA, which holds code for two kinds of GPUs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from fdl.libtorch.catalog import find, this_platform
from tests.fdl.fetch.server import Server
from tests.fdl.prove.cuda import container, embed, sass
from tests.test_guides import files_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

VERSION = importlib.metadata.version("torch")
TORCH, _, VARIANT = VERSION.partition("+")

# A tensor, as the first page of every tutorial of libtorch makes one. The guide's own program
# includes no more than it needs, which compiles faster.
PROGRAM = """\
#include <torch/types.h>

#include <iostream>

int main() {
  torch::Tensor tensor = torch::arange(6, torch::kFloat32).reshape({2, 3});
  std::cout << tensor << std::endl;
  std::cout << "sum of squares " << (tensor * tensor).sum().item<float>() << std::endl;
}
"""

_ONLY_FOR_PYTHON = ("libtorch_python", "libshm")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two archives, as their server lays them out."""
    if VARIANT != "cpu":
        pytest.skip(f"the installed torch {VERSION} is not a build for the CPU")
    folder = tmp_path_factory.mktemp("server")
    (installed,) = importlib.util.find_spec("torch").submodule_search_locations
    first = folder / f"libtorch-shared-with-deps-{TORCH}+cpu.zip"
    with zipfile.ZipFile(first, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for place in ("lib", "include", "share"):
            for file in sorted(Path(installed, place).rglob("*")):
                if file.is_file() and not file.name.startswith(_ONLY_FOR_PYTHON):
                    made.write(file, f"libtorch/{file.relative_to(installed)}")
    second = folder / unquote(find(TORCH, "cu126", this_platform()).path)
    second.parent.mkdir(parents=True)
    shutil.copy(first, second)
    code = container(sass(80), sass(90))
    kernels = embed(tmp_path_factory.mktemp("cuda"), {".nv_fatbin": code}, "libtorch_cuda.so")
    for archive, variant in ((first, "cpu"), (second, "cu126")):
        with zipfile.ZipFile(archive, "a") as made:
            made.writestr("libtorch/build-version", f"{TORCH}+{variant}\n")
            if variant != "cpu":
                made.write(kernels / "lib/libtorch_cuda.so", "libtorch/lib/libtorch_cuda.so")
    return folder


@pytest.fixture
def server(archives: Path) -> Iterator[str]:
    """The address of a server with the archives; like the official one, it sends parts of files."""
    with Server() as running:
        for file in archives.rglob("*.zip"):
            running.put(f"/{quote(str(file.relative_to(archives)))}", file.read_bytes())
        yield running.url("")


@pytest.fixture
def programmer(people, installed):
    """Somebody who writes C++ and has CMake and a compiler."""
    for program in ("cmake", "c++"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    person = people(installed, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    # The CMake file of the guide, and a program of their own.
    (person.folder / "CMakeLists.txt").write_text(files_of("cpp-and-rust.md")["CMakeLists.txt"])
    (person.folder / "line.cpp").write_text(PROGRAM)
    return person


def test_a_program_is_built_with_one_libtorch_and_then_with_another(programmer, server):
    assert "no libtorch is installed" in programmer.type("fdl libtorch list").text
    archive = f"{server}/libtorch-shared-with-deps-{TORCH}%2Bcpu.zip"
    done = programmer.type(f"fdl libtorch install --source {archive}")
    assert "precompiled/cpu installed, and active" in done.text

    built = build_and_run(programmer)
    assert "precompiled/cpu/lib" in built
    second(programmer, server)
    exchange(programmer)


def build_and_run(programmer) -> str:
    """Type what the guide says for CMake; returns where the program's libraries are."""
    programmer.type("fdl libtorch env --format cmake > CMakePresets.json")
    programmer.type("cmake --preset libtorch > cmake.log 2>&1")
    programmer.type("cmake --build --preset libtorch > build.log", limit=300)
    told = programmer.type("./build/line").text
    assert "0  1  2" in told
    assert "3  4  5" in told
    assert "sum of squares 55" in told
    places = programmer.type("ldd build/line | grep -E 'libtorch|libc10'").text
    assert "not found" not in places
    return places.replace("\n", "")  # the screen cuts long paths into lines


def second(programmer, server):
    """Install the variant for CUDA beside the first one, from a mirror of the official server."""
    programmer.type(f"export FDL_LIBTORCH_MIRROR={server}")
    done = programmer.type(f"fdl libtorch install cu126 --torch {TORCH}")
    assert "precompiled/cu126 installed, and active" in done.text
    listed = programmer.type("fdl libtorch list").text
    assert re.search(rf"^precompiled/cpu +{TORCH}", listed, re.MULTILINE)
    assert re.search(rf"^precompiled/cu126 \(active\) +{TORCH} +12\.6", listed, re.MULTILINE)
    told = programmer.type("fdl diagnose", exits=None)
    assert re.search(r"Active:? +precompiled/cu126", told.text)
    assert re.search(r"Installed:? +precompiled/cpu, precompiled/cu126 \(active\)", told.text)
    # The first program still uses what it was built with.
    assert "sum of squares 55" in programmer.type("./build/line").text


def exchange(programmer):
    """Build with the second one in the same folder, and go back to the first one."""
    built = build_and_run(programmer)
    assert "precompiled/cu126/lib" in built
    assert "precompiled/cpu/lib" not in built

    slip = programmer.type("fdl libtorch activate cpu", exits=1)
    assert "did you mean `precompiled/cpu`?" in slip.text
    programmer.type("fdl libtorch activate precompiled/cpu")
    told = programmer.type("fdl diagnose", exits=None)
    assert re.search(r"Active:? +precompiled/cpu\b", told.text)
    programmer.type("fdl libtorch remove precompiled/cu126")
    built = build_and_run(programmer)
    assert "precompiled/cpu/lib" in built
    assert "cu126" not in built
