"""The whole way, for real: torch's CPU build, installed, found by CMake and Cargo, training.

From the wheel to a program of CMake that trains is the walk-through of docs/guide/libtorch.md,
which tests/test_guides.py types.
"""

import os
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from tests.fdl.fetch.server import Server
from tests.fdl.libtorch import archives
from tests.fdl.prove.cuda import compile_library
from tests.surroundings import of_machine

TORCH = "2.13.0"

PROGRAM = r"""
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <iostream>

int main() {
  torch::manual_seed(1);
  torch::nn::Linear layer(3, 1);
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  auto x = torch::randn({64, 3});
  auto y = x.sum(1, true) + 2;
  for (int step = 0; step < 50; ++step) {
    auto loss = torch::nn::functional::mse_loss(layer->forward(x), y);
    if (step == 0) std::cout << loss.item<double>() << "\n";
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step == 49) std::cout << loss.item<double>() << "\n";
  }
}
"""

CMAKE = """
cmake_minimum_required(VERSION 3.21)
project(train CXX)
find_package(Torch REQUIRED)
add_executable(train train.cpp)
target_link_libraries(train "${TORCH_LIBRARIES}")
set_property(TARGET train PROPERTY CXX_STANDARD 20)
install(TARGETS train DESTINATION bin)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the archives of Linux are used")


@pytest.fixture(scope="session")
def torch_wheel(tmp_path_factory):
    """torch's CPU wheel, from wherever pip takes it."""
    folder = tmp_path_factory.mktemp("torch-wheel")
    argv = [sys.executable, "-m", "pip", "download", f"torch=={TORCH}+cpu", "--no-deps"]
    argv += ["--dest", str(folder)]
    if subprocess.run(argv, env={**os.environ, **of_machine()}, capture_output=True).returncode:
        pytest.skip("pip finds no CPU build of torch 2.13.0")
    return next(folder.glob("*.whl"))


def as_official(wheel: Path) -> bytes:
    """An archive in the layout of the official ones, with the wheel's members as they are."""
    out, directory, count = bytearray(), bytearray(), 0
    with zipfile.ZipFile(wheel) as archive, wheel.open("rb") as raw:
        for member in archive.infolist():
            top, _, name = member.filename.partition("/")
            if top != "torch" or not name.startswith(("lib/", "include/", "share/", "bin/")):
                continue
            raw.seek(member.header_offset + 26)
            skip = sum(struct.unpack("<HH", raw.read(4)))
            raw.seek(skip, os.SEEK_CUR)
            data = raw.read(member.compress_size)
            sizes = (member.CRC, member.compress_size, member.file_size)
            count += 1
            _append(out, directory, f"libtorch/{name}", member, sizes, data)
    version = f"{TORCH}+cpu\n".encode()
    info = zipfile.ZipInfo()
    sizes = (zlib.crc32(version), len(version), len(version))
    _append(out, directory, "libtorch/build-version", info, sizes, version)
    end = struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, count + 1, count + 1, len(directory), len(out), 0
    )
    return bytes(out + directory + end)


def _append(out, directory, name, member, sizes, data):
    encoded = name.encode()
    same = struct.pack("<5H3L2H", 20, 0, member.compress_type, 0, 33, *sizes, len(encoded), 0)
    directory += b"PK\1\2" + struct.pack("<H", 0x0314) + same
    directory += struct.pack("<3H2L", 0, 0, 0, member.external_attr, len(out)) + encoded
    out += b"PK\3\4" + same + encoded + data


def environment(home, **more):
    base = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    return {**base, "FLODL_HOME": str(home), "CI": "1", "NO_PROXY": "127.0.0.1", **more}


def run(*argv, cwd, env, timeout=240):
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fdl(*args, cwd, env):
    return run(sys.executable, "-m", "fdl", *args, cwd=cwd, env=env)


def build_and_train(folder: Path, home: Path) -> tuple[float, float]:
    """Configure with the preset fdl prints, compile, run without any help from variables.

    Returns the first and the last loss; the program says the same before and after installation.
    """
    for program in ("cmake", "c++"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    env = environment(home)
    (folder / "train.cpp").write_text(PROGRAM)
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "CMakePresets.json").write_text(
        fdl("libtorch", "env", "--format", "cmake", cwd=folder, env=env)
    )
    run("cmake", "--preset", "libtorch", "-DCMAKE_CXX_FLAGS=-O0", cwd=folder, env=env)
    run("cmake", "--build", "--preset", "libtorch", cwd=folder, env=env)
    run("cmake", "--install", "build", "--prefix", "installed", cwd=folder, env=env)
    said = run("./build/train", cwd=folder, env=env)
    assert run("./installed/bin/train", cwd=folder, env=env) == said
    first, last = map(float, said.split())
    return first, last


@pytest.fixture(scope="session")
def from_the_wheel(torch_wheel, tmp_path_factory):
    """The folder of a user who has installed the wheel."""
    home = tmp_path_factory.mktemp("home")
    env = environment(
        home,
        PIP_FIND_LINKS=str(torch_wheel.parent),
        PIP_NO_INDEX="1",
        PIP_CONFIG_FILE=os.devnull,
    )
    fdl("libtorch", "install", "cpu", "--source", "wheel", "--torch", TORCH, cwd=home, env=env)
    return home


@pytest.mark.slow
def test_from_the_official_archive_to_a_program_that_trains(torch_wheel, tmp_path):
    home, folder = tmp_path / "home", tmp_path / "train"
    folder.mkdir()
    with Server() as server:
        server.put("/libtorch.zip", as_official(torch_wheel))
        fdl(
            "libtorch", "install", "--source", server.url("/libtorch.zip"),
            cwd=folder, env=environment(home),
        )  # fmt: skip
    first, last = build_and_train(folder, home)
    assert last < first / 10


@pytest.mark.slow
@pytest.mark.parametrize("way", [["--source", "wheel"], ["--from", "WHEEL"]])
def test_from_a_wheel_to_a_program_that_trains(torch_wheel, tmp_path, way):
    home, folder = tmp_path / "home", tmp_path / "train"
    folder.mkdir()
    pip = {"PIP_FIND_LINKS": str(torch_wheel.parent), "PIP_NO_INDEX": "1"}
    env = environment(home, **pip, PIP_CONFIG_FILE=os.devnull)
    words = [str(torch_wheel) if word == "WHEEL" else word for word in way]
    fdl("libtorch", "install", "cpu", *words, cwd=folder, env=env)
    first, last = build_and_train(folder, home)
    assert last < first / 10


BUILD_RS = """
fn main() {
    let libtorch = std::env::var("LIBTORCH").expect("LIBTORCH is not set");
    println!("cargo:rustc-link-search=native={libtorch}/lib");
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
}
"""

MAIN_RS = """
extern "C" {
    fn aoti_torch_device_type_cpu() -> i32;
    fn aoti_torch_dtype_float32() -> i32;
}

fn main() {
    unsafe { println!("{} {}", aoti_torch_device_type_cpu(), aoti_torch_dtype_float32()) };
}
"""


needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")


def crate(folder: Path, home: Path) -> str:
    """What a crate prints that is linked against the libtorch in use."""
    (folder / "src").mkdir(parents=True)
    (folder / ".cargo").mkdir()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "uses-torch"\nversion = "0.1.0"\nedition = "2021"\n'
    )
    (folder / "build.rs").write_text(BUILD_RS)
    (folder / "src" / "main.rs").write_text(MAIN_RS)
    env = environment(home)
    (folder / ".cargo" / "config.toml").write_text(
        fdl("libtorch", "env", "--format", "cargo", cwd=folder, env=env)
    )
    run("cargo", "build", "--offline", cwd=folder, env=env)
    return run("./target/debug/uses-torch", cwd=folder, env=env)


@pytest.mark.slow
@needs_cargo
def test_a_crate_links_and_runs_through_the_cargo_snippet(from_the_wheel, tmp_path):
    assert crate(tmp_path / "crate", from_the_wheel) == "0 6\n"


FUNCTIONS = {"torch_cpu": ("aoti_torch_device_type_cpu", 3), "c10": ("aoti_torch_dtype_float32", 7)}
"""Library -> the function of it that the crate calls, and what it answers here."""


@needs_cargo
def test_a_crate_links_and_runs_with_a_small_library(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    made = {}
    for name, (function, answer) in FUNCTIONS.items():
        source = tmp_path / f"{name}.cpp"
        source.write_text(f'extern "C" int {function}() {{ return {answer}; }}\n')
        library = compile_library(tmp_path / f"lib{name}.so", source)
        made[f"torch/lib/{library.name}"] = library.read_bytes()
    wheel = archives.torch_wheel(tmp_path / "wheels", f"{TORCH}+cpu", extra=made)
    words = ("libtorch", "install", "cpu", "--from", str(wheel))
    fdl(*words, cwd=home, env=environment(home))
    assert crate(tmp_path / "crate", home) == "3 7\n"
