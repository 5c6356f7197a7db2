"""GPU code for tests: made by nvcc where there is one, and written byte by byte everywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from struct import pack
from tempfile import TemporaryDirectory

import pytest

NVCC = shutil.which("nvcc")

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="there is no nvcc to make GPU code with")

KERNEL = """
__global__ void add(float* values, float more) { values[threadIdx.x] += more; }
extern "C" void NAME(float* values) { add<<<1, 32>>>(values, 2.0f); }
"""

SASS, PTX, LTO = 0x02, 0x01, 0x08
EXACT, FAMILY = 0x100000, 0x200000


def nvcc(*arguments: str | Path) -> None:
    done = subprocess.run([str(NVCC), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def nvcc_release() -> str:
    text = subprocess.run([str(NVCC), "--version"], capture_output=True, text=True).stdout
    return re.search(r"release (\d+\.\d+)", text)[1]


def library(folder: Path, *flags: str, name: str = "libkernels.so", cudart: str = "shared") -> Path:
    """A folder whose ``lib/NAME`` nvcc made with some flags."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    (folder / "lib" / name).write_bytes(_compiled(flags, name, cudart))
    return folder


@cache
def _compiled(flags: tuple[str, ...], name: str, cudart: str) -> bytes:
    """The library: nvcc takes seconds, so several tests look at one."""
    with TemporaryDirectory() as folder:
        source, target = Path(folder, f"{name}.cu"), Path(folder, name)
        source.write_text(KERNEL.replace("NAME", name.partition(".")[0].removeprefix("lib")))
        nvcc("-shared", "-cudart", cudart, "-Xcompiler", "-fPIC", "-o", target, *flags, source)
        return target.read_bytes()


def targets(*codes: str) -> list[str]:
    """Flags for real and virtual architectures: ``targets("sm_80", "compute_90")``."""
    flags = []
    for code in codes:
        digits = code.partition("_")[2]
        flags += ["-gencode", f"arch=compute_{digits},code={code}"]
    return flags


def entry(
    kind: int,
    architecture: int,
    payload: bytes = b"",
    *,
    flags: int = 0x11,
    isa: tuple[int, int] = (1, 8),
    extra: int = 0,
) -> bytes:
    """One entry of a fat binary; ``extra`` bytes make its header longer."""
    padded = payload + bytes(-len(payload) % 8)
    header = pack(
        "<HHIQIIHHIIIQQQ",
        kind,
        0x0101,
        64 + extra,
        len(padded),
        0,
        0,
        isa[1],
        isa[0],
        architecture,
        0,
        0,
        flags,
        0,
        0,
    )
    return header + bytes(extra) + padded


def container(*entries: bytes) -> bytes:
    """A fat binary."""
    body = b"".join(entries)
    return pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def sass(number: int, **more: int) -> bytes:
    """Machine code that is not there: nobody looks at it."""
    return entry(SASS, number, b"\x7fELF" + bytes(20), **more)


def ptx(number: int, isa: tuple[int, int] = (8, 7), flags: int = 0x11) -> bytes:
    return entry(PTX, number, b".version 8.7", isa=isa, flags=flags, extra=16)


def embed(folder: Path, sections: dict[str, bytes], name: str, links: Sequence[str] = ()) -> Path:
    """A folder whose ``lib/NAME`` is an ELF library with these sections."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (section, content) in enumerate(sections.items()):
        file = folder / f"{name}.{number}.bin"
        file.write_bytes(content)
        lines.append(f'.section {section},"a"\n.balign 8\n.incbin "{file}"')
    source = folder / f"{name}.s"
    source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""]))
    compile_library(folder / "lib" / name, source, *links)
    return folder


def compile_library(target: Path, *arguments: str | Path) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler to make libraries with")
    command = [compiler, "-shared", "-fPIC", "-O0", f"-Wl,-soname,{target.name}", "-o", target]
    done = subprocess.run([*map(str, [*command, *arguments])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target
