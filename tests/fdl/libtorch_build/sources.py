"""A repository that is built the way PyTorch's is, and in seconds.

It has the tag ``v2.10.0``, a submodule, packages that its build script imports, and
``tools/build_libtorch.py``, which runs CMake and ninja in ``build`` below the working directory
and installs into ``torch`` between sources. The libraries carry GPU code for what
``TORCH_CUDA_ARCH_LIST`` names: compiled by nvcc with ``SAMPLE_NVCC=1``, else written as bytes.

``SAMPLE_GATE`` steers the one step in the middle: ``fail`` makes it fail, and the name of a file
makes it write its process id there and wait. An architecture in ``SAMPLE_LEAVES_OUT`` gets no code.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from textwrap import dedent

_FILES = {
    "CMakeLists.txt": """
        cmake_minimum_required(VERSION 3.18)
        project(sample LANGUAGES CXX)
        set(CMAKE_INSTALL_RPATH "$ORIGIN")
        add_library(c10 SHARED c10/one.cpp c10/two.cpp third_party/tiny/tiny.cpp)
        add_custom_command(OUTPUT gate.h DEPENDS c10 COMMENT "Passing the gate"
          COMMAND ${PYTHON} ${CMAKE_SOURCE_DIR}/tools/gate.py gate.h)
        add_library(torch_cpu SHARED aten/cpu.cpp ${CMAKE_BINARY_DIR}/gate.h)
        target_include_directories(torch_cpu PRIVATE ${CMAKE_BINARY_DIR})
        target_link_libraries(torch_cpu c10)
        if(WITH_NVCC)
          set(CMAKE_CUDA_ARCHITECTURES ${ARCHITECTURES})
          enable_language(CUDA)
          add_library(torch_cuda SHARED aten/kernel.cu)
        else()
          add_library(torch_cuda SHARED ${CMAKE_BINARY_DIR}/kernel.cpp)
        endif()
        add_library(torch SHARED aten/torch.cpp)
        # What stands for a library of the CUDA toolkit: needed, and not installed.
        add_library(cublas SHARED aten/cublas.cpp)
        set_target_properties(cublas PROPERTIES VERSION 12.8 SOVERSION 12)
        target_link_libraries(torch torch_cpu torch_cuda cublas)
        set_target_properties(torch PROPERTIES INSTALL_RPATH "$ORIGIN:${CMAKE_BINARY_DIR}")
        install(TARGETS c10 torch_cpu torch_cuda torch DESTINATION lib)
        install(DIRECTORY include/ DESTINATION include)
        install(FILES cmake/TorchConfig.cmake DESTINATION share/cmake/Torch)
    """,
    "c10/one.cpp": 'extern "C" int one() { return 1; }\n',
    "c10/two.cpp": "#include <string>\nstd::string two() { return std::string(2, 't'); }\n",
    "aten/cpu.cpp": '#include "gate.h"\nextern "C" int one();\nint cpu() { return one(); }\n',
    "aten/kernel.cu": 'extern "C" __global__ void fill(float *out) { out[threadIdx.x] = 1; }\n',
    "aten/cublas.cpp": "int cublas() { return 0; }\n",
    "aten/torch.cpp": "int cpu();\nint cublas();\nint torch() { return cpu() + cublas(); }\n",
    "include/torch/torch.h": "int torch();\n",
    "cmake/TorchConfig.cmake": "set(TORCH_FOUND TRUE)\n",
    "torch/lib/libshm/manager.cpp": "int main() {}\n",
    ".gitignore": "torch/lib/*\n!torch/lib/libshm\ntorch/include\ntorch/share\ntorch/bin\n",
    "requirements-build.txt": "./tools/build_probe-1.0-py3-none-any.whl\n",
    "tools/gate.py": """
        import os, pathlib, sys, time
        gate = os.environ.get("SAMPLE_GATE", "")
        if gate == "fail":
            sys.exit("the gate is shut")
        if gate:
            pathlib.Path(gate + ".new").write_text(str(os.getpid()))
            os.rename(gate + ".new", gate)
            time.sleep(120)
        pathlib.Path(sys.argv[1]).write_text("#define GATE 0\\n")
    """,
    "tools/build_libtorch.py": '''
        import os, pathlib, struct, subprocess, sys
        import build_probe

        MAGIC, PTX, ELF = 0xBA55ED50, 1, 2

        def fat_binary(archs):
            """A fat binary without code: a header, and one entry header per architecture."""
            entries = b""
            for arch in archs:
                major, minor = arch.removesuffix("+PTX").split(".")
                sm, kinds = int(major + minor), [ELF, PTX] if arch.endswith("+PTX") else [ELF]
                for kind in kinds:
                    entries += struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, 8, 0, 0,
                                           0, 7, sm, 0, 0, 0x11, 0, 0) + bytes(8)
            return struct.pack("<IHHQ", MAGIC, 1, 16, len(entries)) + entries

        print("built with", build_probe.NAME, "and", os.environ["MAX_JOBS"], "jobs", flush=True)
        assert os.environ["USE_CUDA"] == "1" and os.environ["BUILD_TEST"] == "0"
        root = pathlib.Path(__file__).resolve().parent.parent
        archs = os.environ["TORCH_CUDA_ARCH_LIST"].split(";")
        archs = [one for one in archs if one != os.environ.get("SAMPLE_LEAVES_OUT")]
        with_nvcc = os.environ.get("SAMPLE_NVCC", "0")
        pathlib.Path("build").mkdir(exist_ok=True)
        if not pathlib.Path("build/build.ninja").exists():
            numbers = ",".join(map(str, fat_binary(archs)))
            pathlib.Path("build/kernel.cpp").write_text(
                '__attribute__((section(".nv_fatbin"), used, aligned(8)))'
                f" static const unsigned char code[] = {{{numbers}}};")
            names = [a.replace(".", "").replace("+PTX", "") + ("" if "+" in a else "-real")
                     for a in archs]
            subprocess.check_call(
                ["cmake", "-GNinja", f"-DCMAKE_INSTALL_PREFIX={root / 'torch'}",
                 f"-DPYTHON={sys.executable}", f"-DWITH_NVCC={with_nvcc}",
                 f"-DARCHITECTURES={';'.join(names)}", str(root)], cwd="build")
        jobs = os.environ["MAX_JOBS"]
        try:
            subprocess.check_call(
                ["cmake", "--build", ".", "--target", "install", "--", "-j", jobs], cwd="build")
        except (subprocess.CalledProcessError, KeyboardInterrupt):
            sys.exit(1)
    ''',
}

# What git takes from the environment: an author, and leave to clone a submodule from a folder.
GIT = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
}


def make_repository(folder: Path) -> Path:
    """Write the repository with its submodule; returns its folder."""
    tiny, root = folder / "tiny", folder / "sample"
    _write(tiny / "tiny.cpp", "int tiny() { return 3; }\n")
    _commit(tiny)
    for name, text in _FILES.items():
        _write(root / name, dedent(text).lstrip("\n"))
    with zipfile.ZipFile(root / "tools" / "build_probe-1.0-py3-none-any.whl", "w") as wheel:
        info = "build_probe-1.0.dist-info"
        wheel.writestr("build_probe.py", 'NAME = "the probe"\n')
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: build-probe\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    git(root, "init", "--quiet")
    git(root, "submodule", "--quiet", "add", str(tiny), "third_party/tiny")
    _commit(root)
    git(root, "tag", "v2.10.0")
    return root


def change(root: Path, name: str, text: str, tag: str) -> None:
    """Commit a new text of one file under a new tag."""
    _write(root / name, text)
    _commit(root)
    git(root, "tag", tag)


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, **GIT},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def write_nvcc(folder: Path, *, release: str = "12.8", knows: str = "50 61 75 80 86 90 120") -> str:
    """A compiler that only answers questions; returns a PATH that begins with its folder."""
    archs = "\n".join(f"compute_{one}" for one in knows.split())
    script = f"""#!/bin/sh
case $1 in
--version) echo 'Cuda compilation tools, release {release}, V{release}.93' ;;
--list-gpu-arch) echo '{archs}' ;;
*) exit 1 ;;
esac
"""
    _write(folder / "nvcc", script)
    (folder / "nvcc").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def _commit(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A state to build")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
